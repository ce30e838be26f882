//! The three steps of a save, each repeated after temporary storage errors: rank 0 creates the
//! folder, every rank writes its part, rank 0 publishes. A repeated step starts from the beginning.

use super::super::last_checkpoint;
use anyhow::Result;
use checkpoint::disk::Disk;
use checkpoint::place::Place;
use checkpoint::{self, Keep, Share, State, WrittenPart};
use launch::storage::Storage;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Creates the folder, if there is space for `bytes`.
pub fn begin(disk: &Disk, storage: &Storage, staging: &Path, step: u64, bytes: u64) -> Result<()> {
    storage.retry(|| checkpoint::begin(disk, staging, step, bytes))
}

/// Writes a rank's part.
pub fn write_part(
    disk: &Disk,
    storage: &Storage,
    staging: &Path,
    rank: usize,
    shares: &[Share],
    state: &State,
) -> Result<WrittenPart> {
    let mut is_repeated = false;
    storage.retry(|| {
        if std::mem::replace(&mut is_repeated, true) {
            checkpoint::remove_part(disk, staging, rank, shares)?;
        }
        checkpoint::write_part(disk, staging, rank, shares, state)
    })
}

/// Writes the index, renames the folder, then removes what need not be kept of older checkpoints.
pub fn publish(
    disk: &Arc<Disk>,
    storage: &Storage,
    staging: &Path,
    parts: Vec<WrittenPart>,
    state: &State,
    keep: Keep,
) -> Result<PathBuf> {
    let step = state.progress.step;
    let index = checkpoint::index_text(parts, state)?;
    let mut tries = 0;
    let folder = storage
        .retry(|| {
            tries += 1;
            checkpoint::publish_index(disk, staging, &index, step, tries > 1)
        })
        .map_err(|error| checkpoint::abandon(disk, staging, step, error))?;
    let checkpoints = folder.parent().unwrap_or(Path::new("."));
    storage.retry(|| {
        checkpoint::write_hint(disk, checkpoints, step)?;
        checkpoints
            .parent()
            .map_or(Ok(()), |run| last_checkpoint::note(run, step))?;
        Place::on(disk.clone(), checkpoints).prune(keep)
    })?;
    Ok(folder)
}
