//! Atomic creation of folders: a folder is written under a temporary name and renamed when all of
//! it is on disk. Readers see no folder or a complete one, and a full disk leaves nothing behind.

use super::disk::{Disk, nonce};
use anyhow::Context;
use base::output::Existing;
use base::{Problems, output};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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
    fn has(self, name: &str, is_folder: bool) -> bool {
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
            let remedy = "choose another folder";
            return Err(Problems::one(place.to_string(), "is a file", remedy).into());
        }
        listed => {
            listed.with_context(failed)?.collect::<Result<Vec<_>, _>>().with_context(failed)?
        }
    };
    let foreign = entries.iter().find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (!kind.has(&name, is_folder)).then_some(name)
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
    check_vacant(to, kind, existing)?;
    let to = std::path::absolute(to).with_context(|| format!("cannot find {}", to.display()))?;
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        let what = "is not a valid name for a new folder";
        return Err(Problems::one(to.display().to_string(), what, "choose another folder").into());
    };
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let disk = Disk::default();
    let temporary = parent.join(format!(".{}.tmp-{}", name.to_string_lossy(), nonce()));
    // Spare descriptor for removing the folder when descriptors have run out.
    let spare = File::open(parent).with_context(|| format!("cannot open {}", parent.display()))?;
    disk.make_folder(&temporary)?;
    let _unfinished = output::unfinished(&temporary);
    let place = || {
        let written = write(&temporary)?;
        sync(&disk, &temporary)?;
        let old = parent.join(format!(".{}.tmp-old-{}", name.to_string_lossy(), nonce()));
        let replaced = existing == Existing::Replaced && to.exists();
        if replaced {
            disk.rename(&to, &old)?;
        }
        disk.rename(&temporary, &to).inspect_err(|_| {
            if replaced {
                let _ = disk.rename(&old, &to);
            }
        })?;
        disk.sync_folder(parent)?;
        if replaced {
            disk.remove_folder(&old)?;
        }
        Ok(written)
    };
    place().inspect_err(|_| {
        drop(spare);
        let _ = disk.remove_folder(&temporary); // a partial folder must not fill the disk
    })
}

/// Syncs every file and folder in a folder, and the folder itself.
fn sync(disk: &Disk, folder: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let path: PathBuf = entry.with_context(failed)?.path();
        if path.is_dir() {
            sync(disk, &path)?;
        } else {
            let file = File::open(&path);
            let file = file.with_context(|| format!("cannot open {}", path.display()))?;
            disk.sync(&path, &file)?;
        }
    }
    disk.sync_folder(folder)
}
