//! Repeats the steps after a checkpoint on this machine and compares their losses with the recorded
//! ones.

use crate::local_checkpoint::stored_manifest;
use anyhow::bail;
use base::Problems;
use base::progress::{self, Unit};
use checkpoint::{self, Checkpoint, CheckpointFolder, PastStep};
use data::Datasets;
use engine::{Engine, Groups};
use launch::{Device, LocalRank};
use std::fmt;
use std::path::Path;
use train::loader::DataShard;
use train::replay::{Replay, recorded_steps, replay};
use train::report::metrics::Metrics;
use train::spikes::Spikes;

/// Step after a checkpoint: repeated, and as recorded.
#[derive(Clone, Copy, Debug)]
struct Replayed {
    now: PastStep,
    /// From a later checkpoint, or from the run's metrics.jsonl.
    before: Option<PastStep>,
}

/// Fails unless the run has this many steps after a checkpoint.
pub fn is_possible(folder: &Path, steps: u64) -> anyhow::Result<()> {
    let index = checkpoint::Index::read(folder)?;
    let m = stored_manifest(&index.manifest, &[])?.manifest;
    let from = index.progress;
    let ramp = m.batch.ramp();
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

/// Repeats the steps after a checkpoint on this machine, and prints each. Fails if one differs from
/// its record.
pub fn report(folder: &Path, steps: u64) -> anyhow::Result<()> {
    let replayed = replay_checkpoint(folder, steps)?;
    for step in &replayed {
        base::warn!("{step}");
    }
    if let Some(other) = replayed.iter().find(|step| !step.equal()) {
        bail!("{}: step {} does not repeat", folder.display(), other.now.step);
    }
    Ok(())
}

fn replay_checkpoint(folder: &Path, steps: u64) -> anyhow::Result<Vec<Replayed>> {
    let checkpoint = Checkpoint::open(folder)?;
    let mut loaded = stored_manifest(&checkpoint.index.manifest, &[])?;
    loaded.manifest.topology = loaded.manifest.topology.single_rank();
    let m = &loaded.manifest;
    m.runnable()?;
    let device = Device::open(m, LocalRank::ONLY, m.train.threads)?;
    let be = device.backend();
    let seq_len = m.model.seq_len;
    let vocab = m.model.vocab;
    let mixture = checkpoint.index.mixture.clone();
    let data = Datasets::open(&m.data, mixture, seq_len, vocab, m.batch.micro as u64)?;
    let engine = Engine::new(be, Groups::solo(), m, m.data.causal())?;
    let from = checkpoint::load(&checkpoint, &engine)?;
    let spikes = checkpoint.index.spikes.clone();
    let mixture = &checkpoint.index.mixture;
    let spikes = Spikes::new(&m.divergence, spikes, mixture);
    let recorded = records(folder);
    let bar = progress::Progress::new("replaying", steps, Unit::Items("steps"));
    let on_step = &|| bar.add(1);
    let replayed = Replay { from, steps, saved: &recorded.saved, spikes, on_step };
    let steps = replay(m, &engine, be, &data.train, DataShard::whole(m), replayed)?;
    let before = |now: &PastStep| {
        recorded
            .past
            .iter()
            .find(|past| past.step == now.step)
            .copied()
    };
    Ok(steps
        .into_iter()
        .map(|now| Replayed { before: before(&now), now })
        .collect())
}

impl Replayed {
    /// Whether the result equals the record to 1e-4; another CPU may sum in another order.
    fn equal(&self) -> bool {
        let close = |before: PastStep| (before.loss - self.now.loss).abs() <= 1e-4 * before.loss;
        self.before
            .is_none_or(|before| before == self.now || close(before))
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PastStep { step, loss, grad_norm } = self.now;
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
    past: Vec<PastStep>,
    /// Steps of its checkpoints.
    saved: Vec<u64>,
}

/// Records of the run of a checkpoint: from its checkpoints, then from its metrics.
fn records(folder: &Path) -> Recorded {
    let Ok(whole) = folder.canonicalize() else { return Recorded::default() };
    let Some(checkpoints) = whole.parent() else { return Recorded::default() };
    let found = checkpoint::published(checkpoints).unwrap_or_default();
    let saved = found.iter().map(|found| found.step).collect();
    let history = |found: CheckpointFolder| checkpoint::Index::read(&found.folder).ok();
    let mut past: Vec<PastStep> = found
        .into_iter()
        .filter_map(history)
        .flat_map(|index| index.history.clone())
        .collect();
    let metrics = checkpoints.parent().and_then(|run| Metrics::read(run).ok());
    past.extend(metrics.iter().flat_map(recorded_steps));
    Recorded { past, saved }
}
