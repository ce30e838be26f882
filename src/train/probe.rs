//! Probe of a run: a few steps of its real schedule from a sample on, with new weights, measured. It
//! saves nothing and leaves no folder.

use super::memory::{FullestRank, RankMemory, find_fullest};
use super::start;
use super::watch::{Event, Requests, RunView, Watcher};
use anyhow::{Result, bail};
use base::Problems;
use checkpoint::Progress;
use estimate::hardware::{self, CPU};
use estimate::setup::{Program, Setup};
use launch::LocalRanks;
use launch::messages::Messages;
use launch::rank::Rank;
use launch::run_folder;
use manifest::{Loaded, Manifest};
use plan::robust::median;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::path::PathBuf;

/// Steps that are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    pub steps: u64,
    /// Samples that the run has consumed before them.
    pub at_samples: u64,
}

/// Step of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbedStep {
    pub step: u64,
    /// Samples consumed by the run up to and with this step, and samples of the step.
    pub consumed_samples: u64,
    pub global_batch: u64,
    /// Tokens of each sample.
    pub seq_len: u64,
    pub lr: f64,
    pub lm_loss: f64,
    pub sec: f64,
}

/// Measurements of a probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    pub name: String,
    pub nodes: usize,
    pub ranks: usize,
    /// Batch of the last step, and tokens of each sample. The figures below are of steps with both.
    pub global_batch: u64,
    pub seq_len: u64,
    /// Median seconds of a step. The first step of several is not counted.
    pub sec: f64,
    pub tokens_per_s: f64,
    /// TFLOP/s of a rank by the rule of 8 FLOPs (6 without recomputation) per parameter and token, and
    /// of all that it computes.
    pub tflops_simple: f64,
    pub tflops: f64,
    /// Memory after the last step, of the rank that uses most of its device.
    pub memory: FullestRank,
    pub steps: Vec<ProbedStep>,
}

impl ProbeOptions {
    /// State of the run before the first step. Fails if it has fewer steps from there on.
    fn first(&self, m: &Manifest) -> Result<Progress, Problems> {
        let ramp = m.batch.ramp();
        let total = ramp.steps(m.train.samples);
        let step = ramp.steps(self.at_samples.min(m.train.samples));
        let left = total - step;
        if left >= self.steps {
            return Ok(Progress { step, consumed_samples: ramp.samples_after(step) });
        }
        let has = format!("the run has {total} steps, of {} samples", m.train.samples);
        if left == 0 {
            let last = ramp.samples_after(total.saturating_sub(self.steps));
            let remedy = format!("--at-samples {last}");
            let what = format!("no step begins at sample {}: {has}", self.at_samples);
            return Err(Problems::one("--at-samples", what, remedy));
        }
        let what = format!("{} steps after step {step}: {has}", self.steps);
        Err(Problems::one("--probe", what, format!("--probe {left}")))
    }
}

/// Records the steps, and stops the run after them.
struct Steps<'a> {
    wanted: u64,
    queued: u64,
    done: &'a RefCell<Vec<ProbedStep>>,
}

impl Watcher for Steps<'_> {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn requests(&mut self, _: &RunView) -> Result<Requests> {
        Ok(Requests::STOP.when(self.queued == self.wanted))
    }

    fn after_step(&mut self, _: &RunView, _: u64) -> Result<()> {
        self.queued += 1;
        Ok(())
    }

    fn notice(&mut self, run: &RunView, event: &Event) -> Result<()> {
        let Event::Step(done) = event else { return Ok(()) };
        let step = ProbedStep {
            step: done.step,
            consumed_samples: done.samples.end,
            global_batch: done.samples.end - done.samples.start,
            seq_len: run.steps.micro(&done.samples).tokens as u64,
            lr: done.lr,
            lm_loss: done.outcome.loss,
            sec: done.seconds,
        };
        if run.rank.is_first() {
            let ProbedStep { step, sec, lm_loss, .. } = step;
            tracing::info!("step {step}: {}, loss {lm_loss:.4}", base::Seconds(sec));
        }
        self.done.borrow_mut().push(step);
        Ok(())
    }
}

/// Probes a manifest. The measurements are returned in the process of rank 0, None in the others.
pub fn probe(loaded: &Loaded, options: ProbeOptions, messages: &Messages) -> Result<Option<Probe>> {
    let m = &loaded.manifest;
    m.runnable()?;
    let first = options.first(m)?;
    let clean_up = launch::clean_up_on_signal(m)?;
    // The rendezvous of processes makes it for a moment.
    let created = run_folder::outermost_missing(&m.log.folder);
    let joined = LocalRanks::rendezvous_without_dumps(loaded, &format!("{options:?}"));
    if let (Err(_), Some(outermost)) = (&joined, &created) {
        run_folder::remove_unused(&m.log.folder, outermost);
    }
    let mut ranks = joined?;
    let run_options = start::RunOptions { keeps_nothing: true, ..Default::default() };
    let process = start::Process::new(loaded, &run_options, messages, Vec::new(), &ranks)?;
    drop(clean_up); // the process listens
    let node = ranks.node.clone();
    let measured = ranks.run(m, messages, |rank, device| {
        remove_folder(rank, m, &created)?;
        let done = RefCell::default();
        let watcher = Steps { wanted: options.steps, queued: 0, done: &done };
        let mut run = start::probe::open(&process, rank, device, first, Box::new(watcher))?;
        run.train()?;
        let memory = RankMemory::read(&run.engine, run.cx.monitor.as_deref());
        drop(run);
        let nodes = rank.gather(&node)?;
        let fullest = find_fullest(rank, &memory)?;
        let steps = done.into_inner();
        if (steps.len() as u64) < options.steps {
            bail!("stopped by a signal after {} of {} steps", steps.len(), options.steps);
        }
        let Some(memory) = fullest else { return Ok(None) };
        Ok(Some(summarise(m, &nodes, steps, memory)))
    })?;
    process.signals.suppress_message();
    Ok(measured)
}

/// Removes the folder that the rendezvous made, on rank 0, once all ranks have met. A collective.
fn remove_folder(rank: &Rank, m: &Manifest, created: &Option<PathBuf>) -> Result<()> {
    let made: Vec<Option<PathBuf>> = rank.gather(created)?;
    let outermost = made
        .into_iter()
        .flatten()
        .min_by_key(|path| path.as_os_str().len());
    if let Some(outermost) = outermost {
        run_folder::remove_unused(&m.log.folder, &outermost);
    }
    Ok(())
}

fn summarise(m: &Manifest, nodes: &[String], steps: Vec<ProbedStep>, memory: FullestRank) -> Probe {
    let last = steps.last().expect("a probe has a step");
    let ProbedStep { global_batch, seq_len, .. } = *last;
    let counted = &steps[usize::from(steps.len() > 1)..];
    let of_last_batch = counted
        .iter()
        .filter(|step| (step.global_batch, step.seq_len) == (global_batch, seq_len));
    let sec = median(of_last_batch.map(|step| step.sec));
    let hardware = hardware::find(CPU, "plan.hardware").expect("the table has a CPU");
    let setup = Setup::new(m, Program::Gptrain, hardware);
    let micro = m.batch.micros().at(global_batch as usize);
    let setup = Setup { global: global_batch as usize, micro, ..setup };
    let setup = setup.with_length(seq_len as usize);
    let ranks = setup.ranks();
    Probe {
        name: m.name.clone(),
        nodes: (0..nodes.len())
            .filter(|i| !nodes[..*i].contains(&nodes[*i]))
            .count(),
        ranks,
        global_batch,
        seq_len,
        sec,
        tokens_per_s: (global_batch * seq_len) as f64 / sec,
        tflops_simple: setup.simple_tflops(sec),
        tflops: setup.flops().1 / (sec * ranks as f64 * 1e12),
        memory,
        steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches 2, 4, 6, 8 over the first 24 samples of 80.
    const RAMP: &str = "
model: {layers: 1, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 8, ramp_up: {start: 2, increment: 2, samples: 24}}
lr: {peak: 1e-3}
train: {samples: 80}
";

    fn first(steps: u64, at_samples: u64) -> Result<Progress, String> {
        let m = manifest::for_test::<&str>(RAMP, &[]);
        let first = ProbeOptions { steps, at_samples }.first(&m);
        first.map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_probe_begins_where_a_step_of_the_run_does() {
        let m = manifest::for_test::<&str>(RAMP, &[]);
        let ramp = m.batch.ramp();
        let total = ramp.steps(80);
        for at in 0..70 {
            let Progress { step, consumed_samples } = first(1, at).unwrap();
            assert_eq!(consumed_samples, ramp.samples_after(step));
            let next = consumed_samples + ramp.batch_at(consumed_samples) as u64;
            assert!((consumed_samples..next).contains(&at), "{at}: {consumed_samples}..{next}");
        }
        assert_eq!(first(total, 0).unwrap(), Progress { step: 0, consumed_samples: 0 });
        let more = first(total + 1, 0).unwrap_err();
        assert!(more.contains(&format!("--probe {total}")), "{more}");
        let beyond = first(1, 80).unwrap_err();
        let last = ramp.samples_after(total - 1);
        assert!(beyond.contains(&format!("--at-samples {last}")), "{beyond}");
        assert!(first(1, last).is_ok());
    }
}
