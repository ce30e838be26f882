//! Leftovers of killed processes: found by the next process that writes the same output. A lock
//! shows whether their process lives.

use super::{exists, remove_folder};
use crate::Bytes;
use anyhow::{Context, Result};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Folder that a killed process left. Locked, so that one process removes it.
pub struct Leftover {
    pub path: PathBuf,
    _lock: File,
}

impl Leftover {
    /// Removes the folder, and says so.
    pub fn remove(self) -> Result<()> {
        remove_leftover(&self.path)
    }
}

/// Removes a folder that a killed process left, if there is one, and says so. The caller holds a lock
/// that the other process would hold if it lived.
pub fn remove_leftover(path: &Path) -> Result<()> {
    if !exists(path) {
        return Ok(());
    }
    let bytes = bytes(path);
    remove_folder(path).with_context(|| format!("cannot remove {}", path.display()))?;
    name_removed(&[(path.to_path_buf(), bytes)]);
    Ok(())
}

/// Temporary folders, by the locks of the processes that write them.
#[derive(Default)]
pub struct TemporaryFolders {
    pub abandoned: Vec<Leftover>,
    /// Whether a living process is writing one.
    pub is_one_written: bool,
}

/// Finds the temporary folders in `parent`: those with a name for which `is_temporary` holds. None are
/// found in a folder that cannot be listed. A file system without locks cannot tell which are
/// abandoned: they are named and kept.
pub fn temporary_folders(parent: &Path, is_temporary: impl Fn(&str) -> bool) -> TemporaryFolders {
    let mut found = TemporaryFolders::default();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_folder || !entry.file_name().to_str().is_some_and(&is_temporary) {
            continue;
        }
        let path = entry.path();
        // Removed by its process, or another user's.
        let Ok(lock) = open_folder(&path) else { continue };
        match lock.try_lock() {
            Ok(()) => found.abandoned.push(Leftover { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => found.is_one_written = true,
            Err(TryLockError::Error(_)) => crate::warn!(
                "gptrain: {} ({}) is written by another process, or left by a killed one; \
                 this file system has no locks: remove it if no process writes it",
                path.display(),
                bytes(&path)
            ),
        }
    }
    found
}

/// Says in one line what was removed.
pub fn name_removed(removed: &[(PathBuf, Bytes)]) {
    if removed.is_empty() {
        return;
    }
    let named = removed
        .iter()
        .map(|(path, bytes)| format!("{} ({bytes})", path.display()))
        .collect::<Vec<_>>()
        .join(", ");
    crate::warn!("gptrain: removed {named}, left by a killed command");
}

/// Opens a file that is being written, or was. Does not follow a link, which may lead to a valuable
/// file.
pub fn open_partial(path: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(create).truncate(false);
    options
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

/// Locks an open file. Returns whether another process has locked it.
pub fn is_locked_elsewhere(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        // Some file systems have no locks.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Opens a folder, to lock it. Does not follow a link.
pub fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path)
}

/// Size of the files at a path and below it.
pub fn bytes(path: &Path) -> Bytes {
    fn count_bytes_below(path: &Path) -> u64 {
        let Ok(about) = fs::symlink_metadata(path) else { return 0 };
        if !about.is_dir() {
            return about.len();
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| count_bytes_below(&entry.path())).sum()
    }
    Bytes(count_bytes_below(path))
}
