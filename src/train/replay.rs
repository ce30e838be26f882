//! Repeats steps from a checkpoint and compares their losses with the recorded ones.

use super::launch::{Device, LocalRank};
use super::loader::DataShard;
use super::loader::Loader;
use super::rank::Rank;
use super::report::metrics::Metrics;
use super::resume::{self, Asked};
use super::saving;
use super::spikes::Spikes;
use anyhow::{bail, ensure};
use base::Problems;
use base::progress::{self, Unit};
use checkpoint::{self, Checkpoint, DataId, Found, Past, Progress};
use data::{Datasets, Source};
use device::Backend;
use engine::{Engine, Groups, lr};
use manifest::{self, Loaded, Manifest};
use plan::spikes::Taken;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Steps to repeat.
struct Again<'a> {
    from: Progress,
    steps: u64,
    /// Steps after which the run saved, besides those of `checkpoint.interval`.
    saved: &'a [u64],
    spikes: Option<Spikes>,
    /// Called after each step.
    done: &'a dyn Fn(),
}

/// Computes steps from the engine's state. Reports and saves nothing.
fn replay(
    m: &Manifest,
    engine: &Engine,
    be: &dyn Backend,
    train: &Arc<Source>,
    shard: DataShard,
    again: Again,
) -> anyhow::Result<Vec<Past>> {
    let Again { from, steps, saved, mut spikes, done } = again;
    let ramp = m.batch.ramp();
    let mut consumed = from.consumed_samples;
    let mut loader = Loader::training(train, ramp, shard, consumed, m.train.samples)?;
    let mut past = Vec::new();
    for step in from.step + 1..=from.step + steps {
        let global = ramp.batch_at(consumed) as u64;
        let samples = consumed..consumed + global;
        consumed = samples.end;
        ensure!(consumed <= m.train.samples, "the run ends before step {step}");
        let micros = shard.rounds(global) as usize;
        let rate = lr::of_step(&m.lr, &samples);
        let load = &mut |inputs: &_| loader.load(be, inputs, global);
        engine.set_limits(spikes.as_ref().and_then(|of| of.limits(step, &samples)));
        let outcome = engine.step(load, micros, rate)?;
        if let Some(spikes) = &mut spikes {
            let (loss, norm) = (outcome.loss, outcome.grad_norm);
            spikes.see(Taken { step, loss, norm, skipped: outcome.skipped }, &samples);
        }
        if step.is_multiple_of(m.checkpoint.interval) || saved.contains(&step) {
            engine.average_errors(); // as the save did
        }
        past.push(Past { step, loss: outcome.loss, grad_norm: outcome.grad_norm });
        done();
    }
    Ok(past)
}

/// `--verify-resume`: repeats `steps` recorded steps from the newest checkpoint with as many later
/// steps in metrics.jsonl. Losses and gradient norms must be bit-identical. A collective. Returns
/// the message for the user.
pub fn verify(
    steps: u64,
    rank: &Rank,
    loaded: &Loaded,
    data: &[DataId],
    engine: &Engine,
    be: &dyn Backend,
    train: &Arc<Source>,
) -> anyhow::Result<String> {
    let m = &loaded.manifest;
    let (found, reset_optimizer, recorded, saved) = rank.on_first(|| {
        let recorded = recorded(&Metrics::read(&m.log.folder)?);
        let has = |step: u64| recorded.iter().any(|past| past.step == step);
        let published = checkpoint::published(&saving::folder(m))?;
        let saved: Vec<u64> = published.iter().map(|found| found.step).collect();
        let found =
            published.into_iter().rev().find(|found| (1..=steps).all(|k| has(found.step + k)));
        let found = found.ok_or_else(|| {
            let what = format!("no checkpoint has {steps} recorded steps after it");
            let remedy = "verify fewer steps, or keep more checkpoints: checkpoint.keep_last";
            Problems::one("--verify-resume", what, remedy)
        })?;
        let reset_optimizer = is_reset(&found, steps, m)?;
        Ok((found, reset_optimizer, recorded, saved))
    })?;
    let asked = Asked { checkpoint: false, reset_optimizer };
    let state = resume::resume(rank, &found, asked, loaded, data, engine)?;
    let spikes = Spikes::new(&m.divergence, state.spikes, &state.mixture);
    let again = Again { from: state.progress, steps, saved: &saved, spikes, done: &|| () };
    for again in replay(m, engine, be, train, DataShard::of(rank, m), again)? {
        let before = recorded.iter().find(|past| past.step == again.step);
        if let Some(before) = before.filter(|before| **before != again) {
            bail!(
                "resuming from {} does not repeat the run: step {} gave loss {} and gradient norm \
                 {}, now {} and {}",
                found.folder.display(),
                again.step,
                before.loss,
                before.grad_norm,
                again.loss,
                again.grad_norm
            );
        }
    }
    let first = found.step + 1;
    Ok(format!("verified: steps {first} to {} again, equal to the last bit", found.step + steps))
}

/// Whether the run continued from a checkpoint with new optimizer states, according to later
/// checkpoints. Fails if not all of the next `steps` steps used the manifest's optimizer.
fn is_reset(found: &Found, steps: u64, m: &Manifest) -> anyhow::Result<bool> {
    let (now, last) = (m.optimizer.name(), found.step + steps);
    let mut reset = None;
    for later in checkpoint::published(&saving::folder(m))? {
        if later.step <= found.step {
            continue;
        }
        let optimizer = checkpoint::Index::read(&later.folder)?.state.optimizer;
        let (rule, began) = (&optimizer.rule, optimizer.began);
        let other = match () {
            _ if later.step > last => None,
            _ if rule != now => Some((later.step, format!("step {} was by {rule}", later.step))),
            _ if began > found.step => Some((began, format!("its states began at step {began}"))),
            _ => None,
        };
        if let Some((at, why)) = other {
            let first = found.step + 1;
            let what =
                format!("steps {first} to {last} are not all of one optimizer, {now}: {why}");
            let remedy = format!("verify at most the {} steps after that", last - at);
            return Err(Problems::one("--verify-resume", what, remedy).into());
        }
        reset.get_or_insert(found.step > 0 && began == found.step);
    }
    Ok(reset.unwrap_or(false))
}

/// Step after a checkpoint: repeated, and as recorded.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    pub now: Past,
    /// From a later checkpoint, or from the run's metrics.jsonl.
    pub before: Option<Past>,
}

/// Fails unless the run has this many steps after a checkpoint.
pub fn is_possible(folder: &Path, steps: u64) -> anyhow::Result<()> {
    let index = checkpoint::Index::read(folder)?;
    let m = of_checkpoint(&index.manifest)?.manifest;
    let (from, ramp) = (index.progress, m.batch.ramp());
    let all = ramp.steps(m.train.samples);
    let left = all.saturating_sub(from.step);
    if steps <= left {
        return Ok(());
    }
    let what =
        format!("its run ends at step {all}, {left} steps after {}", checkpoint::name(from.step));
    let remedy = match left {
        0 => "replay an earlier checkpoint".to_string(),
        left => format!("--replay {left}, or an earlier checkpoint"),
    };
    Err(Problems::one(format!("--replay {steps}"), what, remedy).into())
}

fn of_checkpoint(manifest: &str) -> Result<Loaded, Problems> {
    manifest::parse_saved(manifest, "the checkpoint's manifest", Path::new("."), &[])
}

/// `inspect-ckpt --replay STEPS`: repeats the steps after a checkpoint on this machine.
pub fn checkpoint(folder: &Path, steps: u64) -> anyhow::Result<Vec<Replayed>> {
    let checkpoint = Checkpoint::open(folder)?;
    let mut loaded = of_checkpoint(&checkpoint.index.manifest)?;
    loaded.manifest.topology = loaded.manifest.topology.single_rank();
    let m = &loaded.manifest;
    m.runnable()?;
    let device = Device::open(m, LocalRank::ONLY, m.train.threads)?;
    let be = device.backend();
    let (seq_len, vocab) = (m.model.seq_len, m.model.vocab);
    let mixture = checkpoint.index.mixture.clone();
    let data = Datasets::resume(&m.data, mixture, seq_len, vocab, m.batch.micro as u64)?;
    let engine = Engine::new(be, Groups::solo(), m, m.data.causal())?;
    let from = checkpoint::load(&checkpoint, &engine)?;
    let (spikes, mixture) = (checkpoint.index.spikes.clone(), &checkpoint.index.mixture);
    let spikes = Spikes::new(&m.divergence, spikes, mixture);
    let recorded = recorded_after(folder);
    let bar = progress::Progress::new("replaying", steps, Unit::Of("steps"));
    let done = &|| bar.add(1);
    let again = Again { from, steps, saved: &recorded.saved, spikes, done };
    let steps = replay(m, &engine, be, &data.train, DataShard::whole(m), again)?;
    let before = |now: &Past| recorded.past.iter().find(|past| past.step == now.step).copied();
    Ok(steps.into_iter().map(|now| Replayed { before: before(&now), now }).collect())
}

impl Replayed {
    /// Whether the result equals the record to 1e-4; another CPU may sum in another order.
    pub fn equal(&self) -> bool {
        let close = |before: Past| (before.loss - self.now.loss).abs() <= 1e-4 * before.loss;
        self.before.is_none_or(|before| before == self.now || close(before))
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Past { step, loss, grad_norm } = self.now;
        write!(f, "step {step} again: loss {loss}, gradient norm {grad_norm}; ")?;
        match self.before {
            None => write!(f, "the run has recorded no step {step} to compare with"),
            Some(past) if past == self.now => write!(f, "as recorded, to the last bit"),
            Some(past) => write!(f, "recorded: {} and {}", past.loss, past.grad_norm),
        }
    }
}

/// Records of steps in a run's folder.
#[derive(Default)]
struct Recorded {
    past: Vec<Past>,
    /// Steps of its checkpoints.
    saved: Vec<u64>,
}

/// Records of the run of a checkpoint: from its checkpoints, then from its metrics.
fn recorded_after(folder: &Path) -> Recorded {
    let Ok(whole) = folder.canonicalize() else { return Recorded::default() };
    let Some(checkpoints) = whole.parent() else { return Recorded::default() };
    let found = checkpoint::published(checkpoints).unwrap_or_default();
    let saved = found.iter().map(|found| found.step).collect();
    let history = |found: Found| checkpoint::Index::read(&found.folder).ok();
    let mut past: Vec<Past> =
        found.into_iter().filter_map(history).flat_map(|index| index.history.clone()).collect();
    let metrics = checkpoints.parent().and_then(|run| Metrics::read(run).ok());
    past.extend(metrics.iter().flat_map(recorded));
    Recorded { past, saved }
}

fn recorded(metrics: &Metrics) -> Vec<Past> {
    let past = |row: &super::report::numbers::StepRow| Past {
        step: row.step,
        loss: row.lm_loss,
        grad_norm: row.grad_norm,
    };
    metrics.steps.iter().map(past).collect()
}
