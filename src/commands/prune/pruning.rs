//! Removes old checkpoints of a run, also of one that is training.

use anyhow::{Context, Result};
use base::{Bytes, Problems, input};
use checkpoint::disk::Disk;
use checkpoint::place::Place;
use checkpoint::{self, CheckpointFolder, Keep};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Checkpoint that can be removed.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outdated {
    pub step: u64,
    pub folder: PathBuf,
    pub bytes: u64,
}

/// Checkpoints of a run, divided by a rule.
pub struct Pruning {
    checkpoints: PathBuf,
    pub outdated: Vec<Outdated>,
    pub kept: usize,
    /// Kept because no copy of them or of later ones is complete in the run's other place
    /// (`checkpoint.also`).
    pub uncopied: Vec<u64>,
}

impl Pruning {
    /// Finds what need not be kept: neither the newest ones nor multiples of `keep.every`. Checkpoints that
    /// are being written are not among them, and those whose copy is not complete are kept.
    pub fn find(run: &Path, keep: Keep) -> Result<Pruning> {
        let checkpoints = run.join("checkpoints");
        let published = checkpoint::published(&checkpoints)?;
        if published.is_empty() {
            let place = run.display().to_string();
            return Err(Problems::one(
                place,
                "holds no checkpoint of a run",
                "give the folder of a run, as in runs/NAME",
            )
            .into());
        }
        let steps: Vec<u64> = published.iter().map(|found| found.step).collect();
        let old: BTreeSet<u64> = checkpoint::outdated(&steps, keep).into_iter().collect();
        let newest_copy = if old.is_empty() { None } else { newest_copy(run)? };
        let is_copied = |step: &u64| newest_copy.is_some_and(|newest| *step <= newest);
        let uncopied = old
            .iter()
            .copied()
            .filter(|step| !is_copied(step))
            .collect();
        let mut outdated = Vec::new();
        for CheckpointFolder { step, folder } in published {
            if old.contains(&step) && is_copied(&step) {
                let bytes = bytes(&folder)?;
                outdated.push(Outdated { step, folder, bytes });
            }
        }
        let kept = steps.len() - outdated.len();
        Ok(Pruning { checkpoints, outdated, kept, uncopied })
    }

    pub fn bytes(&self) -> Bytes {
        Bytes(self.outdated.iter().map(|one| one.bytes).sum())
    }

    /// Removes them, the oldest first.
    pub fn remove(&self) -> Result<()> {
        let disk = Disk::default();
        for one in &self.outdated {
            // The run's own keep_last may have removed it meanwhile.
            if one.folder.exists() {
                checkpoint::remove(&disk, &self.checkpoints, one.step)
                    .with_context(|| format!("cannot remove {}", one.folder.display()))?;
            }
        }
        Ok(())
    }
}

/// Step of the newest complete copy in the run's other place: later checkpoints may still be copied,
/// earlier ones are not. The largest step if the run has no such place, None if nothing is copied.
fn newest_copy(run: &Path) -> Result<Option<u64>> {
    let path = run.join(manifest::IN_FOLDER);
    if !path.exists() {
        return Ok(Some(u64::MAX));
    }
    let text = input::read(&path, input::SMALL)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.display().to_string();
    let text = String::from_utf8_lossy(&text).into_owned();
    let loaded = manifest::parse_saved(&text, &name, run, &[])?;
    let Some(url) = &loaded.manifest.checkpoint.also else { return Ok(Some(u64::MAX)) };
    let steps = Place::open(url).and_then(|place| place.steps());
    Ok(steps
        .with_context(|| {
            format!("{url} (checkpoint.also) cannot be listed, so nothing is removed")
        })?
        .last()
        .copied())
}

/// Bytes of a checkpoint's files.
fn bytes(folder: &Path) -> Result<u64> {
    let failed = || format!("cannot list {}", folder.display());
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(failed)? {
        bytes += entry
            .and_then(|entry| entry.metadata())
            .with_context(failed)?
            .len();
    }
    Ok(bytes)
}
