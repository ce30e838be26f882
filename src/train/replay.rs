//! Repeats steps from a checkpoint and compares their losses with the recorded ones.

use super::loader::{DataShard, Loader};
use super::report::metrics::Metrics;
use super::resume::{self, ResumeOptions};
use super::saving;
use super::spikes::Spikes;
use anyhow::{bail, ensure};
use base::Problems;
use checkpoint::{self, CheckpointFolder, DataId, PastStep, Progress};
use data::Source;
use device::Backend;
use engine::{Engine, lr};
use launch::rank::Rank;
use manifest::{Loaded, Manifest};
use plan::spikes::StepResult;
use std::sync::Arc;

/// Steps to repeat.
pub struct Replay<'a> {
    pub from: Progress,
    pub steps: u64,
    /// Steps after which the run saved, in addition to `checkpoint.interval`.
    pub saved: &'a [u64],
    pub spikes: Option<Spikes>,
    /// Called after each step.
    pub on_step: &'a dyn Fn(),
}

/// Computes steps from the engine's state. Reports and saves nothing.
pub fn replay(
    m: &Manifest,
    engine: &Engine,
    be: &dyn Backend,
    train: &Arc<Source>,
    shard: DataShard,
    steps: Replay,
) -> anyhow::Result<Vec<PastStep>> {
    let Replay { from, steps, saved, mut spikes, on_step } = steps;
    let all = m.step_samples();
    let mut consumed = from.consumed_samples;
    let mut loader = Loader::training(train, all.clone(), shard, consumed, m.train.samples)?;
    let mut past = Vec::new();
    for step in from.step + 1..=from.step + steps {
        let samples = all.after(consumed);
        let global = samples.end - samples.start;
        consumed = samples.end;
        ensure!(consumed <= m.train.samples, "the run ends before step {step}");
        let micro = all.micro(&samples);
        engine.set_micro(micro)?;
        let micros = shard.with_micro(micro.samples).rounds(global) as usize;
        let rate = lr::for_step(&m.lr, &samples);
        let load = &mut |inputs: &_| loader.load(be, inputs, global);
        engine.set_limits(
            spikes
                .as_ref()
                .and_then(|spikes| spikes.limits(step, &samples)),
        );
        let outcome = engine.step(load, micros, rate)?;
        if let Some(spikes) = &mut spikes {
            let loss = outcome.loss;
            let norm = outcome.grad_norm;
            spikes.observe(StepResult { step, loss, norm, skipped: outcome.skipped }, &samples);
        }
        if step.is_multiple_of(m.checkpoint.interval) || saved.contains(&step) {
            engine.average_errors(); // as the save did
        }
        past.push(PastStep { step, loss: outcome.loss, grad_norm: outcome.grad_norm });
        on_step();
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
        let recorded = recorded_steps(&Metrics::read(&m.log.folder)?);
        let has = |step: u64| recorded.iter().any(|past| past.step == step);
        let published = checkpoint::published(&saving::folder(m))?;
        let saved: Vec<u64> = published.iter().map(|found| found.step).collect();
        let found = published
            .into_iter()
            .rev()
            .filter(|found| (1..=steps).all(|k| has(found.step + k)))
            .find(|found| !found.has_weights_only())
            .ok_or_else(|| {
                Problems::one(
                    "--verify-resume",
                    format!("no checkpoint has {steps} recorded steps after it"),
                    "verify fewer steps, or keep more checkpoints: checkpoint.keep_last",
                )
            })?;
        let reset_optimizer = is_reset(&found, steps, m)?;
        Ok((found, reset_optimizer, recorded, saved))
    })?;
    let options = ResumeOptions { is_named: false, reset_optimizer };
    let state = resume::resume(rank, &found, options, loaded, data, engine, None)?;
    let spikes = Spikes::new(&m.divergence, state.spikes, &state.mixture);
    let replayed = Replay { from: state.progress, steps, saved: &saved, spikes, on_step: &|| () };
    for again in replay(m, engine, be, train, DataShard::for_rank(rank, m), replayed)? {
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
fn is_reset(found: &CheckpointFolder, steps: u64, m: &Manifest) -> anyhow::Result<bool> {
    let now = m.optimizer.name();
    let last = found.step + steps;
    let mut reset = None;
    for later in checkpoint::published(&saving::folder(m))? {
        if later.step <= found.step {
            continue;
        }
        let optimizer = checkpoint::Index::read(&later.folder)?.state.optimizer;
        let rule = &optimizer.rule;
        let began = optimizer.began;
        let other = match () {
            _ if later.step > last => None,
            _ if rule != now => Some((later.step, format!("step {} used {rule}", later.step))),
            _ if began > found.step => Some((began, format!("its states began at step {began}"))),
            _ => None,
        };
        if let Some((at, why)) = other {
            let first = found.step + 1;
            return Err(Problems::one(
                "--verify-resume",
                format!("steps {first} to {last} did not all use this optimizer, {now}: {why}"),
                format!("verify at most the {} steps after that", last - at),
            )
            .into());
        }
        reset.get_or_insert(found.step > 0 && began == found.step);
    }
    Ok(reset.unwrap_or(false))
}

/// Steps of a run's metrics.
pub fn recorded_steps(metrics: &Metrics) -> Vec<PastStep> {
    metrics
        .steps
        .iter()
        .map(|row| PastStep { step: row.step, loss: row.lm_loss, grad_norm: row.grad_norm })
        .collect()
}
