//! Saving and loading whole checkpoints.

use super::index::{Index, Progress};
use super::safetensors::{self, Reader};
use crate::base::Bytes;
use crate::engine::{Engine, Moment, Sampler};
use crate::model::Slot;
use anyhow::{Context, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const FILES: [(Moment, &str); 3] = [
    (Moment::Master, "weights.safetensors"),
    (Moment::First, "first_moment.safetensors"),
    (Moment::Second, "second_moment.safetensors"),
];

/// A checkpoint in a run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub step: u64,
    pub folder: PathBuf,
}

/// The published checkpoints of a run, oldest first.
fn published(checkpoints: &Path) -> anyhow::Result<Vec<Found>> {
    let mut found = Vec::new();
    if !checkpoints.exists() {
        return Ok(found);
    }
    let failed = || format!("cannot list {}", checkpoints.display());
    for entry in fs::read_dir(checkpoints).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|n| n.strip_prefix("step-")).and_then(|n| n.parse().ok());
        if let Some(step) = step {
            found.push(Found { step, folder: entry.path() });
        }
    }
    found.sort_by_key(|f| f.step);
    Ok(found)
}

/// The newest checkpoint of a run.
pub fn latest(checkpoints: &Path) -> anyhow::Result<Option<Found>> {
    Ok(published(checkpoints)?.pop())
}

/// Removes all but the newest `keep`, and what an interrupted save left behind.
pub fn prune(checkpoints: &Path, keep: Option<usize>) -> anyhow::Result<()> {
    let mut old = published(checkpoints)?;
    old.truncate(old.len().saturating_sub(keep.unwrap_or(usize::MAX)));
    let unfinished = fs::read_dir(checkpoints)?
        .flatten()
        .map(|e| e.path())
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("tmp-")));
    for folder in old.into_iter().map(|f| f.folder).chain(unfinished) {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Writes `checkpoints/step-N`: into a fresh folder, synced, then renamed. A failure leaves every
/// older checkpoint as it was.
pub fn save(
    checkpoints: &Path,
    engine: &Engine,
    progress: Progress,
    loss: f64,
    manifest: &str,
) -> anyhow::Result<PathBuf> {
    let folder = checkpoints.join(format!("step-{:08}", progress.step));
    let fresh = checkpoints.join(format!("tmp-{:08}-{}", progress.step, std::process::id()));
    fs::create_dir_all(&fresh).with_context(|| format!("cannot create {}", fresh.display()))?;
    let written = room(checkpoints, engine)
        .and_then(|()| fill(&fresh, engine, Index::new(progress, loss, manifest)))
        .and_then(|()| publish(&fresh, &folder));
    if let Err(error) = written {
        let _ = fs::remove_dir_all(&fresh); // what is left of it must not fill the disk
        return Err(error.context(format!(
            "checkpoint of step {} was not saved; older checkpoints in {} are intact",
            progress.step,
            checkpoints.display()
        )));
    }
    Ok(folder)
}

/// Says no before writing what cannot fit.
fn room(checkpoints: &Path, engine: &Engine) -> anyhow::Result<()> {
    let need = engine.slots().map(|slot| 12 * slot.numel() as u64).sum();
    let stat = rustix::fs::statvfs(checkpoints)?;
    let free = stat.f_bavail * stat.f_frsize;
    ensure!(
        need < free,
        "no space left in {}: a checkpoint needs {}, {} are free; \
         free some, or move log.folder, or lower checkpoint.keep_last",
        checkpoints.display(),
        Bytes(need),
        Bytes(free)
    );
    Ok(())
}

fn fill(folder: &Path, engine: &Engine, mut index: Index) -> anyhow::Result<()> {
    let slots: Vec<&Slot> = engine.slots().collect();
    let tensors: Vec<_> = slots.iter().map(|s| (s.name.clone(), shape(s))).collect();
    for (moment, name) in FILES {
        let mut fill = |i: usize, values: &mut [f32]| engine.read(moment, slots[i], values);
        let digests = safetensors::write(&folder.join(name), &tensors, &mut fill)?;
        index.digests.insert(name.to_string(), digests);
    }
    let path = folder.join("index.json");
    let failed = || format!("cannot write {}", path.display());
    let mut file = File::create(&path).with_context(failed)?;
    file.write_all(&serde_json::to_vec_pretty(&index)?).with_context(failed)?;
    file.sync_all().with_context(failed)
}

/// Norms and biases are vectors to the rest of the world.
fn shape(slot: &Slot) -> Vec<usize> {
    if slot.rows == 1 { vec![slot.cols] } else { vec![slot.rows, slot.cols] }
}

fn publish(fresh: &Path, folder: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot publish {}", folder.display());
    File::open(fresh).and_then(|f| f.sync_all()).with_context(failed)?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(failed)?; // a run resumed from an older step
    }
    fs::rename(fresh, folder).with_context(failed)?;
    let parent = folder.parent().context("a checkpoint has a parent folder")?;
    File::open(parent).and_then(|f| f.sync_all()).with_context(failed)
}

/// Reads everything back into the engine.
pub fn load(folder: &Path, engine: &Engine) -> anyhow::Result<Progress> {
    let index = Index::read(folder)?;
    for (moment, name) in FILES {
        read_all(folder, name, &index, engine.slots(), &mut |slot, values| {
            engine.write(moment, slot, values);
        })?;
    }
    engine.publish();
    Ok(index.progress)
}

/// Reads the weights alone.
pub fn load_weights(folder: &Path, sampler: &Sampler) -> anyhow::Result<Progress> {
    let index = Index::read(folder)?;
    let (_, name) = FILES[0];
    read_all(folder, name, &index, sampler.slots(), &mut |slot, values| {
        sampler.write(slot, values);
    })?;
    Ok(index.progress)
}

fn read_all<'a>(
    folder: &Path,
    name: &str,
    index: &Index,
    slots: impl Iterator<Item = &'a Slot>,
    put: &mut dyn FnMut(&Slot, &[f32]),
) -> anyhow::Result<()> {
    let path = folder.join(name);
    let reader = Reader::open(&path)?;
    for slot in slots {
        let values = reader.words::<f32>(&slot.name)?;
        let saved = &reader.entries[&slot.name].shape;
        ensure!(
            *saved == shape(slot),
            "{}: {} is {saved:?}, the manifest's model has {:?}",
            path.display(),
            slot.name,
            shape(slot)
        );
        let stated = index.digests.get(name).and_then(|d| d.get(&slot.name));
        ensure!(
            stated == Some(&safetensors::digest(bytemuck::cast_slice(&values))),
            "{}: {} is damaged (its digest is not the one in index.json); \
             remove {} to go on from an older checkpoint",
            path.display(),
            slot.name,
            folder.display()
        );
        put(slot, &values);
    }
    Ok(())
}
