//! Atomic creation of folders: a folder is written under a temporary name and renamed when all of
//! it is on disk, or exchanged with the folder that it replaces. Readers see the old folder or the
//! new one, and a full disk leaves nothing behind. What a killed process leaves is removed by the
//! next one that writes the same folder.
//!
//! ```text
//! .NAME.tmp-NONCE      being written, or the replaced folder, being removed
//! .NAME.tmp-old-NONCE  the replaced folder, where the file system cannot exchange two
//! ```

use super::disk::{Disk, nonce};
use anyhow::Context;
use base::output::{Existing, TemporaryFolder};
use base::{Problems, output};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Part of the name of a folder that was moved away.
const OLD: &str = "old-";

/// The kind of a folder that is written, which decides what `--overwrite` may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderKind {
    /// A Hugging Face folder.
    Model,
    /// A run that has not trained yet.
    Run,
}

impl FolderKind {
    /// Whether such a folder has an entry of this name. A file of another name is the user's.
    fn has_entry(self, name: &str, is_folder: bool) -> bool {
        let folders: &[&str] = match self {
            FolderKind::Model => &[],
            FolderKind::Run => &["checkpoints", "hf", "tokenizer"],
        };
        match (self, is_folder) {
            (_, true) => folders.contains(&name),
            (FolderKind::Model, _) => {
                let endings = [".json", ".safetensors", ".jinja", ".model"];
                name == "merges.txt" || endings.iter().any(|ending| name.ends_with(ending))
            }
            (FolderKind::Run, _) => {
                matches!(name, "manifest.yaml" | "last-checkpoint" | "run.lock")
            }
        }
    }
}

/// An error unless a new folder can have this place: nothing is there, or an empty folder, or with
/// `Replaced` a folder that holds only what `kind` has.
pub fn check_vacant(to: &Path, kind: FolderKind, existing: Existing) -> anyhow::Result<()> {
    let place = to.display();
    let failed = || format!("cannot list {place}");
    let entries = match fs::read_dir(to) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(
                Problems::one(place.to_string(), "is a file", "choose another folder").into()
            );
        }
        listed => listed
            .with_context(failed)?
            .collect::<Result<Vec<_>, _>>()
            .with_context(failed)?,
    };
    let foreign = entries.iter().find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (!kind.has_entry(&name, is_folder)).then_some(name)
    });
    let (what, remedy) = match (entries.is_empty(), foreign, existing) {
        (true, ..) | (_, None, Existing::Replaced) => return Ok(()),
        (_, Some(name), Existing::Replaced) => {
            let what = format!("the folder holds {name}, which --overwrite does not replace");
            (what, "choose another folder, or remove it first")
        }
        (_, foreign, Existing::Refused) => {
            let model = to.join("config.json").exists();
            let what =
                if model { "already contains a model" } else { "is a folder that is not empty" };
            let remedy = match foreign {
                None => "choose another folder, or add --overwrite",
                Some(_) => "choose another folder, or remove it first",
            };
            (what.to_string(), remedy)
        }
    };
    Err(Problems::one(place.to_string(), what, remedy).into())
}

/// Creates the folder `to` by `write`, which receives the path of a temporary folder to write into.
/// If `write` fails, that folder is removed, and a folder that was to be replaced is unchanged.
pub fn write<T>(
    to: &Path,
    kind: FolderKind,
    existing: Existing,
    write: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let to = std::path::absolute(to).with_context(|| format!("cannot find {}", to.display()))?;
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        return Err(Problems::one(
            to.display().to_string(),
            "is not a valid name for a new folder",
            "choose another folder",
        )
        .into());
    };
    let name = name.to_string_lossy();
    repair(&to, parent, &name)?;
    check_vacant(&to, kind, existing)?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let disk = Disk::default();
    // Spare descriptor for removing the folder when descriptors have run out.
    let spare = File::open(parent).with_context(|| format!("cannot open {}", parent.display()))?;
    let nonce = nonce();
    let temporary = parent.join(format!(".{name}.tmp-{nonce}"));
    let folder = TemporaryFolder::create(&temporary, 0o777)?;
    let place = || -> anyhow::Result<_> {
        let written = write(folder.path())?;
        sync(&disk, folder.path())?;
        let replaced = existing == Existing::Replaced && to.exists();
        output::run_uninterrupted(|| {
            if replaced {
                let aside = parent.join(format!(".{name}.tmp-{OLD}{nonce}"));
                disk.exchange(&temporary, &to, &aside)
            } else {
                disk.rename(&temporary, &to)
            }
        })?;
        Ok((written, replaced))
    };
    let (written, replaced) = place().inspect_err(|_| {
        drop(spare);
        let _ = disk.remove_folder(&temporary); // a partial folder must not fill the disk
    })?;
    // The folder is complete: an error from here on does not undo it.
    if let Err(error) = disk.sync_folder(parent) {
        base::warn!("gptrain: {error:#}: after a power failure {} may be missing", to.display());
    }
    if replaced && let Err(error) = disk.remove_folder(&temporary) {
        base::warn!("gptrain: the folder that was replaced remains: {error:#}");
    }
    Ok(written)
}

/// Removes what killed processes left of earlier writes of the folder `to`, and says so. Puts a folder
/// back that was moved away and not replaced. Fails if another process is writing the folder.
fn repair(to: &Path, parent: &Path, name: &str) -> anyhow::Result<()> {
    let prefix = format!(".{name}.tmp-");
    let found = output::temporary_folders(parent, |name: &str| {
        let rest = name
            .strip_prefix(&prefix)
            .map(|rest| rest.strip_prefix(OLD).unwrap_or(rest));
        rest.is_some_and(|text| text.len() == 12 && text.bytes().all(|b| b.is_ascii_hexdigit()))
    });
    if found.is_one_written {
        return Err(output::locked_error(to).into());
    }
    for left in found.abandoned {
        let was_moved = left
            .path
            .to_string_lossy()
            .contains(&format!("{prefix}{OLD}"));
        if was_moved && !to.exists() {
            Disk::default().rename(&left.path, to)?;
            base::warn!("gptrain: put back {}, which a killed command was replacing", to.display());
        } else {
            left.remove()?;
        }
    }
    Ok(())
}

/// Syncs every file and folder in a folder, and the folder itself.
fn sync(disk: &Disk, folder: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let path: PathBuf = entry.with_context(failed)?.path();
        if path.is_dir() {
            sync(disk, &path)?;
        } else {
            let file =
                File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            disk.sync(&path, &file)?;
        }
    }
    disk.sync_folder(folder)
}
