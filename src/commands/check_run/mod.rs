//! `gptrain check-run`: computes the next steps of another trainer from its checkpoint, and compares them
//! with its log.
//!
//! Exit codes: 0 the log agrees, 1 it differs, 2 the command is wrong.

mod altered_update;
mod change;
mod cost;
mod hypotheses;
mod log;
mod report;
mod samples;
mod search;
mod steps;
mod trainer;
mod verdict;

use crate::completions::SETTINGS;
use crate::options::Json;
use anyhow::ensure;
use base::progress::{Progress, Unit};
use base::{Problems, number};
use log::RunLog;
use report::CheckReport;
use samples::Recorded;
use search::Evidence;
use std::path::PathBuf;
use steps::NextSteps;
use trainer::Trainer;
use verdict::{Tolerance, compare, departure};

/// Check another trainer's loss: compute its next steps from its checkpoint, and compare with its log
///
/// Agreement means that both programs computed the same losses and gradient norms. On disagreement the
/// known errors of trainers are tried one by one, and the one that explains the numbers is named.
#[derive(clap::Args)]
pub struct CheckRun {
    /// Checkpoint of a trainer that `gptrain import` reads
    #[arg(value_name = "CKPT")]
    checkpoint: PathBuf,
    /// Log of the run: of Megatron-LM, Megatron-DeepSpeed, torchtitan or Hugging Face's Trainer, or its
    /// trainer_state.json. Several files are read as one
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    log: Vec<PathBuf>,
    /// Dataset of the run: PREFIX of PREFIX.bin and PREFIX.idx, as data.train
    #[arg(long, value_name = "PREFIX", conflicts_with = "batches")]
    data: Option<String>,
    /// Samples that the trainer read after the checkpoint, in their order: safetensors with input_ids
    /// [samples, tokens + 1], or input_ids and targets [samples, tokens]
    #[arg(long, value_name = "FILE")]
    batches: Option<PathBuf>,
    /// Number of steps to compute
    #[arg(long, default_value_t = 3, value_parser = number::whole_in(1..=1000u64))]
    steps: u64,
    /// Change a setting of the manifest that an import would make
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    /// Steps for each line of a log that does not number its lines (Hugging Face's logging_steps)
    #[arg(long, default_value_t = 1, value_parser = number::whole_in(1..=1_000_000u64))]
    steps_per_line: u64,
    #[command(flatten)]
    json: Json,
}

impl CheckRun {
    pub fn run(self) -> anyhow::Result<()> {
        let log = RunLog::read(&self.log, self.steps_per_line)?;
        let batches = self.batches.as_deref().map(Recorded::read).transpose()?;
        let trainer = Trainer::open(&self.checkpoint, self.sets())?;
        let steps = self.steps_of(&trainer);
        let from = trainer.found.step;
        check_overlap(&log, from, steps)?;
        let next = NextSteps { trainer: &trainer, steps, batches: batches.as_ref() };
        cost::announce(&next)?;
        let bar = Progress::new("computing", steps, Unit::Items("steps"));
        let computed = next.compute(&trainer.base, &mut |_| {
            bar.add(1);
            true
        })?;
        drop(bar);
        let tolerance = Tolerance::for_precision(trainer.manifest.precision);
        let compared = compare(&log, from, &computed.steps, tolerance);
        let departed = departure(&compared, from);
        let lines = compared.len();
        let evidence = Evidence { next: &next, log: &log, tolerance, lines };
        let tested = departed.as_ref().map(|departed| evidence.search(departed));
        let agrees = departed.is_none();
        let report = CheckReport {
            log: &log,
            trainer: &trainer,
            compared,
            departed,
            tested: tested.unwrap_or_default(),
            remarks: computed.remarks,
        };
        report.printout().say(self.json.json);
        ensure!(agrees, "the log differs from the steps computed here");
        Ok(())
    }

    /// Steps to compute: one if the moments that the second depends on are not in the checkpoint.
    fn steps_of(&self, trainer: &Trainer) -> u64 {
        let found = &trainer.found;
        match &found.without_states {
            Some(why) if found.step > 0 && self.steps > 1 => {
                tracing::warn!("only the first step is compared: {why}");
                1
            }
            _ => self.steps,
        }
    }

    /// Settings of the command line. The CPU is a device that every run has.
    fn sets(&self) -> Vec<String> {
        let mut sets = vec!["train.device=cpu".to_string()];
        sets.extend(
            self.data
                .iter()
                .map(|prefix| format!("data.train={prefix}")),
        );
        sets.extend(self.batches.iter().map(|_| "data.train=none".to_string()));
        sets.extend(self.set.iter().cloned());
        sets
    }
}

/// Fails unless the log has a line whose steps are all computed.
fn check_overlap(log: &RunLog, from: u64, steps: u64) -> Result<(), Problems> {
    let [first, last] = log.range();
    let mut lines = log.steps.values();
    let Some(row) = lines.find(|row| row.step > from && row.step - row.averaged >= from) else {
        return Err(Problems::one(
            "--log",
            format!("has steps {first} to {last}, and the checkpoint is of step {from}"),
            "give the log of the steps after it, or an earlier checkpoint",
        ));
    };
    if row.step <= from + steps {
        return Ok(());
    }
    let needed = row.step - from;
    Err(Problems::one(
        "--log",
        format!("its first line after step {from} is that of step {}", row.step),
        format!("compute {needed} steps: --steps {needed}"),
    ))
}
