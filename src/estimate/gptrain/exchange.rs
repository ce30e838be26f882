//! What to do about the time that replicas take to sum up gradients: larger steps first, then
//! compression, with the bandwidth below which it pays.

use super::dry_run;
use crate::base::Bytes;
use crate::estimate::setup::Setup;
use crate::manifest::{Manifest, Topology};

/// Sums of gradients with and without compression, on the stage that sends most of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// Bytes that a rank sends to replicas in a step: as they are, and compressed.
    pub plain: f64,
    pub compressed: f64,
    /// Seconds of a step: all of them, and those of the plain sums.
    pub step: f64,
    pub sums: f64,
    /// What computing the factors adds to a step, in seconds.
    pub factors: f64,
}

/// From so large a share of a step on, the sums are worth a word.
const WORTH: f64 = 0.1;

/// Accumulating so many times as long is suggested.
const TIMES: usize = 4;

impl Exchange {
    /// None where no gradient is sent, or compression would be refused.
    pub fn of(m: &Manifest, setup: &Setup) -> Option<Exchange> {
        let t = &m.topology;
        if t.data == 1 || t.zero > 1 {
            return None;
        }
        let settings = t.compression.unwrap_or_default();
        let [plain, compressed] = [None, Some(settings)].map(|compression| {
            let topology = Topology { compression, ..t.clone() };
            dry_run::stages(&Manifest { topology, ..m.clone() })
        });
        let sent = |stages: &[dry_run::Stage]| {
            stages.iter().map(|stage| stage.sends(setup.micros())[2]).fold(0.0, f64::max)
        };
        let part = |stages: &[dry_run::Stage], name| -> f64 {
            let parts = dry_run::parts(stages, setup).into_iter();
            parts.filter(|(part, _)| *part == name).map(|(_, seconds)| seconds).sum()
        };
        let once = "once a step: optimizer";
        Some(Exchange {
            plain: sent(&plain),
            compressed: sent(&compressed),
            step: dry_run::seconds(&plain, setup),
            sums: part(&plain, "once a step: sums"),
            factors: part(&compressed, once) - part(&plain, once),
        })
    }

    /// Gb/s that a rank sends at, below which the factors cost less than they save.
    pub fn break_even(&self) -> f64 {
        8.0 * (self.plain - self.compressed) / self.factors / 1e9
    }
}

/// In words, one paragraph; empty where there is nothing to say.
pub fn advice(m: &Manifest, setup: &Setup) -> String {
    let Some(e) = Exchange::of(m, setup) else { return String::new() };
    let t = &m.topology;
    let compressed = t.compression.is_some();
    let share = e.sums / e.step;
    if e.plain <= e.compressed || !(compressed || share >= WORTH) {
        return String::new();
    }
    let near = t.tensor * t.data <= setup.per_node;
    let here = 8.0 * setup.hardware.link(near, setup.per_node).gb_s;
    let size = |bytes: f64| Bytes(bytes as u64);
    let what = format!(
        "{} in place of {} a step; that costs {:.1} ms and pays below {:.0} Gb/s a rank (here {here:.0})",
        size(e.compressed),
        size(e.plain),
        1e3 * e.factors,
        e.break_even(),
    );
    if compressed {
        return format!("\nGradients between replicas, compressed: a rank sends\n  {what}\n");
    }
    let times = TIMES as f64;
    let larger = e.sums / (times * (e.step - e.sums) + e.sums);
    format!(
        "\nGradients between replicas take {:.0} % of a step. Less of it:\n  \
         --set batch.global={} sends them once for {TIMES} times the tokens: {:.0} %\n  \
         --set topology.compression=powersgd sends\n  {what}\n",
        100.0 * share,
        TIMES * setup.global,
        100.0 * larger,
    )
}
