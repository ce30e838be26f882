//! Rollback to a checkpoint, if skipping the updates of loss spikes does not help.

use super::resume::{self, ResumeOptions};
use super::saving;
use super::watch::RunView;
use anyhow::anyhow;
use checkpoint::{CheckpointFolder, Progress, State};
use plan::spikes::{RollBack, Rule, SpikeDetector};

/// Step after which a run must roll back.
pub struct Diverged {
    pub at: Progress,
    pub why: String,
}

/// Loads the newest checkpoint that is old enough. Returns the state from which the run continues
/// with later samples, and the message for the user. The samples from the checkpoint to the spike,
/// and `divergence.roll_back` steps of samples after it, are left out. They count as consumed, also
/// for the learning rate and the end of the run. A collective. Fails after too many rollbacks.
pub fn load(
    run: &RunView,
    rule: &Rule,
    spikes: &SpikeDetector,
    diverged: &Diverged,
) -> anyhow::Result<Option<(State, String)>> {
    let m = run.manifest;
    let rank = run.rank;
    let Diverged { at: Progress { step: at, consumed_samples }, ref why } = *diverged;
    rank.set_phase("going back to a checkpoint");
    let found = rank.on_first(|| {
        checkpoint::find_whole(&saving::folder(m), |step| step + rule.roll_back <= at)
    })?;
    let global = run.batch_after(consumed_samples);
    let from = consumed_samples + rule.roll_back * global;
    let found: CheckpointFolder = match (spikes.may_roll_back(rule, at), found) {
        (Err(refusal), _) => return give_up(run, diverged, &refusal),
        (_, None) => {
            let none = format!("there is no checkpoint {} steps before", rule.roll_back);
            return give_up(run, diverged, &none);
        }
        _ if from + global > m.train.samples => {
            return give_up(run, diverged, "the run has no samples left to continue with");
        }
        (_, Some(found)) => found,
    };
    let options = ResumeOptions { is_named: true, reset_optimizer: false };
    let mut state =
        resume::resume(rank, &found, options, run.loaded, &run.data_ids, run.engine, None)?;
    let samples = [state.progress.consumed_samples, from];
    let mut watch = state.spikes.take().unwrap_or_default();
    watch.roll_backs = spikes.roll_backs.clone();
    watch
        .roll_backs
        .push(RollBack { at, to: found.step, samples });
    state.spikes = Some(watch);
    state.progress.consumed_samples = from;
    state.mixture = run.data.plan.clone();
    let message = format!(
        "step {at}: {why}. Went back to step {}; samples {}..{} are left out",
        found.step, samples[0], samples[1]
    );
    Ok(Some((state, message)))
}

fn give_up<T>(run: &RunView, diverged: &Diverged, tried: &str) -> anyhow::Result<Option<T>> {
    let error = || {
        let Diverged { at, why } = diverged;
        anyhow!(
            "step {}: the run has diverged: {why}; {tried}. Look at the samples with `gptrain data \
             samples`, lower lr.peak, or continue unchanged with --set divergence=warn",
            at.step
        )
    };
    run.rank
        .agree(if run.rank.is_first() { Err(error()) } else { Ok(None) })
}
