//! A folder that is written aside and takes its name when all of it is on the disk: whoever looks
//! sees no folder or a whole one, and a disk that fills up leaves nothing behind.

use super::disk::{Disk, nonce};
use anyhow::Context;
use base::{Problems, output};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where a new folder is to stand: nothing is there, or an empty folder.
pub fn vacant(to: &Path) -> anyhow::Result<()> {
    let place = to.display();
    let what = match fs::read_dir(to) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => "this is a file".to_string(),
        Err(error) => return Err(error).with_context(|| format!("cannot list {place}")),
        Ok(mut entries) => match entries.next() {
            None => return Ok(()),
            Some(_) if to.join("config.json").exists() => "there is a model already".to_string(),
            Some(_) => "the folder is not empty".to_string(),
        },
    };
    Err(Problems::one(place.to_string(), what, "choose another folder, or remove it first").into())
}

/// Makes the folder `to` by `write`, which gets the path of a fresh folder beside it to write into.
/// If it fails, that folder is removed.
pub fn write_folder<T>(
    to: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    vacant(to)?;
    let to = std::path::absolute(to).with_context(|| format!("cannot find {}", to.display()))?;
    let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
        let what = "this is no name for a new folder";
        return Err(Problems::one(to.display().to_string(), what, "choose another folder").into());
    };
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let disk = Disk::default();
    let fresh = parent.join(format!(".{}.tmp-{}", name.to_string_lossy(), nonce()));
    // A descriptor to remove the folder with, when they have run out.
    let spare = File::open(parent).with_context(|| format!("cannot open {}", parent.display()))?;
    disk.make_folder(&fresh)?;
    let _unfinished = output::unfinished(&fresh);
    let place = || {
        let written = write(&fresh)?;
        sync(&disk, &fresh)?;
        disk.rename(&fresh, &to)?;
        disk.sync_folder(parent)?;
        Ok(written)
    };
    place().inspect_err(|_| {
        drop(spare);
        let _ = disk.remove_folder(&fresh); // a part must not fill the disk
    })
}

/// Of every file and folder in a folder, and itself.
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
