//! Folder of a run's checkpoints: listing and pruning.
//!
//! `step-00000040/` is a published checkpoint. `step-00000040.tmp-…/` is being written, or was left
//! by a killed process. `aside-…` was moved away by a resume from an older step. `latest` is a hint
//! for users.

use super::disk::{Disk, nonce};
use super::index::Index;
use anyhow::Context;
use base::{Bytes, Problems, input, output};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Part of the name of a checkpoint that is being replaced.
const REPLACED: &str = ".tmp-old-";

/// Name of the file that names the newest checkpoint.
pub const LATEST: &str = "latest";

/// Checkpoint in a run's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointFolder {
    pub step: u64,
    pub folder: PathBuf,
}

impl CheckpointFolder {
    /// Whether the optimizer's states were removed (`checkpoint.keep_weights_every`).
    pub fn has_weights_only(&self) -> bool {
        Index::read(&self.folder).is_ok_and(|index| index.weights_only)
    }
}

/// Name of a step's checkpoint.
pub fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// Step of a checkpoint's name.
pub fn step(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name == self::name(step)).then_some(step)
}

/// New name for a checkpoint that no longer belongs to the run.
pub fn aside(step: u64) -> String {
    format!("aside-{}-{}", name(step), nonce())
}

/// Published checkpoints of a run, oldest first.
pub fn published(checkpoints: &Path) -> anyhow::Result<Vec<CheckpointFolder>> {
    let mut found: Vec<CheckpointFolder> = names(checkpoints)?
        .into_iter()
        .filter_map(|n| Some(CheckpointFolder { step: step(&n)?, folder: checkpoints.join(&n) }))
        .collect();
    found.sort_by_key(|f| f.step);
    Ok(found)
}

/// Newest checkpoint of a run.
pub fn latest(checkpoints: &Path) -> anyhow::Result<Option<CheckpointFolder>> {
    Ok(published(checkpoints)?.pop())
}

/// Newest whole checkpoint of a run that `is_wanted`: one with the optimizer's states, from which a run
/// continues.
pub fn find_whole(
    checkpoints: &Path,
    is_wanted: impl Fn(u64) -> bool,
) -> anyhow::Result<Option<CheckpointFolder>> {
    let mut newest_first = published(checkpoints)?.into_iter().rev();
    Ok(newest_first.find(|found| is_wanted(found.step) && !found.has_weights_only()))
}

/// Resolves a path: the folder itself if it is a checkpoint, otherwise the newest checkpoint of the
/// run.
pub fn find(path: &Path) -> anyhow::Result<PathBuf> {
    let mistake = |what: &str| {
        Problems::one(
            path.display().to_string(),
            what,
            "give a checkpoint, such as runs/NAME/checkpoints/step-00000040, or runs/NAME",
        )
    };
    if !path.is_dir() {
        return Err(mistake("the folder does not exist").into());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.join("index.json").exists() || name.starts_with("step-") {
        return Ok(path.to_path_buf());
    }
    let found = match latest(&path.join("checkpoints"))? {
        Some(found) => Some(found),
        None => latest(path)?,
    };
    Ok(found.ok_or_else(|| mistake("holds no checkpoint"))?.folder)
}

/// Describes a wrong hint; None if it is correct. Nothing relies on the hint.
pub fn hint(checkpoints: &Path) -> anyhow::Result<Option<String>> {
    let newest = latest(checkpoints)?.map(|found| name(found.step));
    let path = checkpoints.join(LATEST);
    let says = match input::read(&path, input::SMALL) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned()),
        Err(_) => None,
    };
    let agree = says.as_deref().map(str::trim_end) == newest.as_deref();
    Ok((!agree && says.is_some()).then(|| {
        let says = says.unwrap_or_default();
        let there = newest.unwrap_or("none".into());
        format!(
            "{} names {:?}, but the newest checkpoint is {there}",
            path.display(),
            says.trim_end()
        )
    }))
}

/// Writes the hint.
pub fn write_hint(disk: &Disk, checkpoints: &Path, step: u64) -> anyhow::Result<()> {
    let path = checkpoints.join(LATEST);
    let temporary = checkpoints.join(format!("{LATEST}.tmp-{}", nonce()));
    let named = disk.write_file(&temporary, format!("{}\n", name(step)).as_bytes());
    named
        .and_then(|()| disk.rename(&temporary, &path))
        .inspect_err(|_| {
            let _ = disk.remove_file(&temporary);
        })?;
    disk.sync_folder(checkpoints)
}

/// Retention of checkpoints.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// Number of newest checkpoints to keep; `None` keeps all.
    pub last: Option<usize>,
    /// Also keeps checkpoints whose step is a multiple of this.
    pub every: Option<u64>,
    /// Also keeps the weights of checkpoints whose step is a multiple of this.
    pub weights_every: Option<u64>,
    /// Also keeps the checkpoint of this step, which is being read.
    pub read: Option<u64>,
}

impl From<&manifest::Checkpoint> for Keep {
    fn from(settings: &manifest::Checkpoint) -> Keep {
        Keep {
            last: settings.keep_last,
            every: settings.keep_every,
            weights_every: settings.keep_weights_every,
            read: None,
        }
    }
}

/// Part of a checkpoint that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Whole,
    /// The weights, without the optimizer's states.
    Weights,
    Nothing,
}

impl Keep {
    /// Decides for each checkpoint of ascending `steps`.
    pub fn decide(self, steps: &[u64]) -> Vec<(u64, Kept)> {
        let newest = self.last.unwrap_or(usize::MAX).max(1);
        let old = steps.len().saturating_sub(newest);
        let is_multiple =
            |step: u64, every: Option<u64>| every.is_some_and(|every| step.is_multiple_of(every));
        let decide = |(at, step): (usize, &u64)| match *step {
            step if at >= old || self.read == Some(step) => (step, Kept::Whole),
            step if is_multiple(step, self.every) => (step, Kept::Whole),
            step if is_multiple(step, self.weights_every) => (step, Kept::Weights),
            step => (step, Kept::Nothing),
        };
        steps.iter().enumerate().map(decide).collect()
    }
}

/// Removes the leftovers of interrupted saves, and returns them with their sizes. Only the process
/// that holds the run's lock may call this, before it saves, because a running save looks the same.
pub fn clean(disk: &Disk, checkpoints: &Path) -> anyhow::Result<Vec<(PathBuf, Bytes)>> {
    put_back(disk, checkpoints)?;
    let mut removed = Vec::new();
    for name in names(checkpoints)?
        .iter()
        .filter(|name| name.contains(".tmp-"))
    {
        let path = checkpoints.join(name);
        let bytes = output::bytes(&path);
        if path.is_dir() {
            disk.remove_folder(&path)?;
        } else {
            disk.remove_file(&path)?;
        }
        removed.push((path, bytes));
    }
    Ok(removed)
}

/// New name for a checkpoint while another takes its place, on file systems that cannot exchange
/// two folders.
pub fn replaced_folder(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(format!("{}{REPLACED}{}", name(step), nonce()))
}

/// Gives checkpoints their names again that a killed process moved away and did not replace.
pub fn put_back(disk: &Disk, checkpoints: &Path) -> anyhow::Result<()> {
    for name in names(checkpoints)? {
        if let Some((own, _)) = name.split_once(REPLACED)
            && !checkpoints.join(own).exists()
        {
            disk.rename(&checkpoints.join(&name), &checkpoints.join(own))?;
        }
    }
    Ok(())
}

/// Renames checkpoints after `step` to `aside-…`. Returns their new names.
pub fn set_aside(checkpoints: &Path, step: u64) -> anyhow::Result<Vec<String>> {
    let disk = Disk::default();
    let later = published(checkpoints)?
        .into_iter()
        .filter(|found| found.step > step);
    later
        .map(|found| {
            let aside = aside(found.step);
            disk.rename(&found.folder, &checkpoints.join(&aside))?;
            Ok(aside)
        })
        .collect()
}

/// Unused temporary name for a checkpoint that is being written.
pub fn temporary_folder(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(format!("{}.tmp-{}", name(step), nonce()))
}

/// Names in the folder; empty if the folder does not exist. A dangling link (to an unmounted disk)
/// is an error, as is anything else that hides the contents.
fn names(checkpoints: &Path) -> anyhow::Result<Vec<String>> {
    let failed = || format!("cannot list {}", checkpoints.display());
    let entries = match fs::read_dir(checkpoints) {
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::read_link(checkpoints) {
            Ok(target) => {
                let link = checkpoints.display();
                let target = target.display();
                return Err(Problems::one(
                    link.to_string(),
                    format!("is a link to {target}, which does not exist"),
                    "mount the disk or bring the folder back; remove the link if it is \
                     lost",
                )
                .into());
            }
            Err(_) => return Ok(Vec::new()),
        },
        listed => listed.with_context(failed)?,
    };
    input::names(entries).with_context(failed)
}
