//! `gptrain run --probe`: a few steps of the real schedule, measured and forgotten.

use anyhow::Result;
use base::output::{self, Existing};
use base::table::{Printout, Table};
use base::{Bytes, Count, Seconds, number};
use launch::messages::Messages;
use manifest::Loaded;
use std::path::PathBuf;
use train::memory::{FullestRank, RankMemory};
use train::probe::{self, ProbeOptions};

#[derive(clap::Args)]
pub struct Probe {
    /// Take this many steps as the run would, with new weights, and print their time, speed and
    /// memory; the first of several is not counted. Saves nothing and leaves no folder
    #[arg(long = "probe", value_name = "STEPS", value_parser = number::whole_in(1..=u64::MAX))]
    #[arg(conflicts_with_all = ["example", "minutes", "resume_from", "reset_optimizer",
        "verify_resume", "trace", "ops"])]
    pub steps: Option<u64>,
    /// Probe the steps after this many samples of the run: another stage of its ramp-up and its
    /// learning rate
    #[arg(long, value_name = "SAMPLES", requires = "steps", default_value = "0")]
    #[arg(value_parser = number::whole::<u64>)]
    at_samples: u64,
    /// Print what was probed as JSON
    #[arg(long, requires = "steps")]
    json: bool,
    /// Also write this JSON to a file
    #[arg(long, value_name = "FILE", requires = "steps")]
    probe_output: Option<PathBuf>,
}

impl Probe {
    /// Probes a manifest with `words`, the arguments of this command.
    pub fn run(
        self,
        steps: u64,
        loaded: &Loaded,
        words: &[std::ffi::OsString],
        messages: &Messages,
    ) -> Result<()> {
        if train::start_probe_processes(loaded, words)? {
            return Ok(());
        }
        let options = ProbeOptions { steps, at_samples: self.at_samples };
        let Some(measured) = probe::probe(loaded, options, messages)? else { return Ok(()) };
        if let Some(path) = &self.probe_output {
            let text = serde_json::to_vec_pretty(&measured)?;
            output::write(path, Existing::Replaced, &text)?;
        }
        printout(&measured).say(self.json);
        Ok(())
    }
}

fn printout(measured: &probe::Probe) -> Printout {
    let steps = &measured.steps;
    let first = steps[0].step;
    let last = steps[steps.len() - 1].step;
    let counted = if steps.len() > 1 { ", the first not counted" } else { "" };
    let tokens = measured.global_batch * measured.seq_len;
    let samples = Count(measured.global_batch).with_noun("sample");
    let mut facts = vec![
        ("step", Seconds(measured.sec).to_string()),
        ("batch", format!("{samples}, {} tokens", Count(tokens))),
        ("tokens/s", Count(measured.tokens_per_s.round() as u64).to_string()),
        (
            "TFLOP/s per rank",
            format!("{:.3} simple, {:.3} improved", measured.tflops_simple, measured.tflops),
        ),
    ];
    facts.extend(describe_memory(measured));
    let mut out = Printout::new(measured);
    out.table(
        Table::facts(facts)
            .titled(format!("{}: steps {first} to {last} of its schedule{counted}", measured.name)),
    );
    out
}

/// Rows about memory, of the fullest rank of several.
fn describe_memory(measured: &probe::Probe) -> Vec<(&'static str, String)> {
    let FullestRank { rank, stage, memory } = measured.memory;
    let RankMemory { reserved, in_use, gpu, host } = memory;
    let named = match measured.ranks {
        1 => String::new(),
        _ => format!(", rank {rank}, stage {stage}"),
    };
    let process = gpu
        .process
        .map_or(String::new(), |bytes| format!("; {} of the whole process", Bytes(bytes)));
    let device = format!("{} used of {} reserved{process}{named}", Bytes(in_use), Bytes(reserved));
    let mut facts = vec![("device memory", device)];
    facts.extend(host.map(|bytes| ("host memory", Bytes(bytes).to_string())));
    facts
}
