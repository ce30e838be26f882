//! State of a measuring rank: its device and manifest, the nodes of all ranks, and the time.

use super::BenchOptions;
use device::Backend;
use estimate::hardware::Hardware;
use estimate::machine;
use launch::Device;
use launch::rank::Rank;
use manifest::Manifest;
use std::io::{IsTerminal, Write};
use std::time::Instant;

pub struct BenchRank<'a> {
    pub rank: &'a Rank<'a>,
    pub device: &'a Device,
    pub m: &'a Manifest,
    pub options: &'a BenchOptions,
    /// Node of each rank.
    pub nodes: Vec<String>,
    started: Instant,
}

impl<'a> BenchRank<'a> {
    /// Gathers the nodes. A collective.
    pub fn new(
        rank: &'a Rank<'a>,
        device: &'a Device,
        m: &'a Manifest,
        options: &'a BenchOptions,
        node: &str,
    ) -> anyhow::Result<BenchRank<'a>> {
        let started = Instant::now();
        let nodes = rank.all_gather(&node.to_string())?;
        Ok(BenchRank { rank, device, m, options, nodes, started })
    }

    pub fn backend(&self) -> &dyn Backend {
        self.device.backend()
    }

    /// For example "NVIDIA H100 80GB HBM3" or "CPU (AMD EPYC, AVX2), 8 threads".
    pub fn device_name(&self) -> String {
        self.device
            .gpu()
            .map_or_else(|| self.device.description(self.m.precision), |gpu| gpu.name.clone())
    }

    /// Maximum number of ranks on a node.
    pub fn per_node(&self) -> usize {
        self.nodes
            .iter()
            .map(|node| self.nodes.iter().filter(|other| *other == node).count())
            .max()
            .expect("this rank at least")
    }

    /// Whether several ranks of a node compute on its processors and slow each other.
    pub fn shares_processors(&self) -> bool {
        self.device.gpu().is_none() && self.per_node() > 1
    }

    /// Seconds of a measurement: `usual`, or `quick` for a quick check.
    pub fn allow(&self, usual: f64, quick: f64) -> f64 {
        if self.options.quick { quick } else { usual }
    }

    /// Seconds since the start, on this rank's clock.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Starts a phase, which is shown in a hang diagnosis and on rank 0's terminal.
    pub fn phase(&self, what: &str) {
        tracing::debug!("{what}, from {:.2} s on", self.seconds());
        self.rank.set_phase(what);
        self.show(&format!("{what} …"));
    }

    /// Clears the line of the terminal.
    pub fn done(&self) {
        self.show("");
    }

    fn show(&self, line: &str) {
        let mut terminal = std::io::stderr();
        if self.rank.is_first() && terminal.is_terminal() {
            let _ = write!(terminal, "\r\x1b[2K{line}").and_then(|()| terminal.flush());
        }
    }

    /// Name of the machine of the manifest's plan.hardware, as a plan has it.
    pub fn hardware_name(&self) -> Option<String> {
        let name = self.m.plan.hardware.as_deref()?;
        let row = machine::find(name, "plan.hardware");
        Some(row.map_or_else(|_| name.to_string(), |row| row.name.clone()))
    }

    /// The manifest's plan.hardware, if the measured GPUs communicate directly.
    pub fn hardware(&self, direct: bool) -> Option<&'static Hardware> {
        let name = self.m.plan.hardware.as_deref().filter(|_| direct)?;
        machine::find(name, "plan.hardware").ok()
    }
}
