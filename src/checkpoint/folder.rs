//! The folder of a run's checkpoints: which there are, which are kept.
//!
//! `step-00000040/` is a published checkpoint; `step-00000040.tmp-…/` one being written, or what a
//! kill left of one; `aside-…` is what a resume from an older step put away; `latest` is a hint for
//! people.

use super::disk::{Disk, nonce};
use anyhow::Context;
use base::Problems;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// In the name of what was a checkpoint and is being removed.
const REMOVED: &str = ".tmp-removed-";

/// The name of the file that names the newest checkpoint.
pub const LATEST: &str = "latest";

/// A checkpoint in a run's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub step: u64,
    pub folder: PathBuf,
}

/// The name of a step's checkpoint.
pub fn name(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a checkpoint's name.
pub fn step(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name == self::name(step)).then_some(step)
}

/// A name for a checkpoint that is none of the run's any more.
pub fn aside(step: u64) -> String {
    format!("aside-{}-{}", name(step), nonce())
}

/// The published checkpoints of a run, oldest first.
pub fn published(checkpoints: &Path) -> anyhow::Result<Vec<Found>> {
    let mut found: Vec<Found> = names(checkpoints)?
        .into_iter()
        .filter_map(|n| Some(Found { step: step(&n)?, folder: checkpoints.join(&n) }))
        .collect();
    found.sort_by_key(|f| f.step);
    Ok(found)
}

/// The newest checkpoint of a run.
pub fn latest(checkpoints: &Path) -> anyhow::Result<Option<Found>> {
    Ok(published(checkpoints)?.pop())
}

/// The folder itself if it is a checkpoint, or the newest checkpoint of a run.
pub fn find(path: &Path) -> anyhow::Result<PathBuf> {
    let mistake = |what: &str| {
        let remedy = "give a checkpoint, such as runs/NAME/checkpoints/step-00000040, or runs/NAME";
        Problems::one(path.display().to_string(), what, remedy)
    };
    if !path.is_dir() {
        return Err(mistake("there is no such folder").into());
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

/// What is wrong with the hint, if anything: nothing relies on it.
pub fn hint(checkpoints: &Path) -> anyhow::Result<Option<String>> {
    let newest = latest(checkpoints)?.map(|found| name(found.step));
    let path = checkpoints.join(LATEST);
    let says = match fs::read(&path) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned()),
        Err(_) => None,
    };
    let agree = says.as_deref().map(str::trim_end) == newest.as_deref();
    Ok((!agree && says.is_some()).then(|| {
        let says = says.unwrap_or_default();
        let there = newest.unwrap_or("none".into());
        format!("{} says {:?}, the newest there is: {there}", path.display(), says.trim_end())
    }))
}

/// Writes the hint.
pub fn write_hint(disk: &Disk, checkpoints: &Path, step: u64) -> anyhow::Result<()> {
    let path = checkpoints.join(LATEST);
    let fresh = checkpoints.join(format!("{LATEST}.tmp-{}", nonce()));
    let named = disk.write_file(&fresh, format!("{}\n", name(step)).as_bytes());
    named.and_then(|()| disk.rename(&fresh, &path)).inspect_err(|_| {
        let _ = disk.remove_file(&fresh);
    })?;
    disk.sync_folder(checkpoints)
}

/// Which checkpoints stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// This many of the newest; `None` is all.
    pub last: Option<usize>,
    /// And those whose step is a multiple of this.
    pub every: Option<u64>,
    /// And the one of this step, which somebody reads.
    pub read: Option<u64>,
}

/// Of steps in their order, those that need not be kept.
pub fn outdated(steps: &[u64], keep: Keep) -> Vec<u64> {
    let old = steps.len().saturating_sub(keep.last.unwrap_or(usize::MAX).max(1));
    let kept = |step: u64| {
        keep.read == Some(step) || keep.every.is_some_and(|every| step.is_multiple_of(every))
    };
    steps[..old].iter().copied().filter(|step| !kept(*step)).collect()
}

/// Removes the checkpoints that need not be kept. Each is renamed before it is emptied, so a
/// half-removed one is never taken for a checkpoint.
pub fn prune(disk: &Disk, checkpoints: &Path, keep: Keep) -> anyhow::Result<()> {
    for name in names(checkpoints)?.iter().filter(|name| name.contains(REMOVED)) {
        disk.remove_folder(&checkpoints.join(name))?; // which failed the last time
    }
    let steps: Vec<u64> = published(checkpoints)?.iter().map(|found| found.step).collect();
    for name in outdated(&steps, keep).into_iter().map(name) {
        let away = checkpoints.join(format!("{name}{REMOVED}{}", nonce()));
        disk.rename(&checkpoints.join(name), &away)?;
        disk.remove_folder(&away)?;
    }
    Ok(())
}

/// Removes what interrupted saves left behind. Only for the one process that holds the run's lock,
/// before it saves: a save under way looks the same.
pub fn clean(disk: &Disk, checkpoints: &Path) -> anyhow::Result<()> {
    for name in names(checkpoints)?.iter().filter(|name| name.contains(".tmp-")) {
        let path = checkpoints.join(name);
        if path.is_dir() {
            disk.remove_folder(&path)?;
        } else {
            disk.remove_file(&path)?;
        }
    }
    Ok(())
}

/// Puts checkpoints after `step` out of the way; returns their new names.
pub fn set_aside(checkpoints: &Path, step: u64) -> anyhow::Result<Vec<String>> {
    let disk = Disk::default();
    let later = published(checkpoints)?.into_iter().filter(|found| found.step > step);
    later
        .map(|found| {
            let aside = aside(found.step);
            disk.rename(&found.folder, &checkpoints.join(&aside))?;
            Ok(aside)
        })
        .collect()
}

/// A name that is not in use, for a checkpoint being written or removed.
pub fn fresh(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(format!("{}.tmp-{}", name(step), nonce()))
}

/// What is in the folder; nothing where nothing has its name. A link that leads nowhere (a disk that
/// is not mounted) is an error, as is all else that hides what is there.
fn names(checkpoints: &Path) -> anyhow::Result<Vec<String>> {
    let failed = || format!("cannot list {}", checkpoints.display());
    let entries = match fs::read_dir(checkpoints) {
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::read_link(checkpoints) {
            Ok(target) => {
                let (link, target) = (checkpoints.display(), target.display());
                let what = format!("is a link to {target}, which is not there");
                let remedy = "mount the disk or bring the folder back; remove the link if it is \
                              lost";
                return Err(Problems::one(link.to_string(), what, remedy).into());
            }
            Err(_) => return Ok(Vec::new()),
        },
        listed => listed.with_context(failed)?,
    };
    let names = entries.map(|entry| Ok(entry.with_context(failed)?.file_name()));
    let names: anyhow::Result<Vec<_>> = names.collect();
    Ok(names?.into_iter().filter_map(|name| name.into_string().ok()).collect())
}
