//! Folder with a temporary name: the future output, or files for the time of one command.

use super::leftover::{is_locked_elsewhere, open_folder};
use super::{OPEN, is_at, locked_error};
use anyhow::{Context, Result};
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Folder being written under a temporary name. Locked, so that no other process takes it for a
/// leftover (`temporary_folders`). An interrupt removes it, until this is dropped.
pub struct TemporaryFolder {
    path: PathBuf,
    _lock: File,
}

impl TemporaryFolder {
    /// Creates a folder with these permissions, before the umask.
    pub fn create(path: &Path, mode: u32) -> Result<TemporaryFolder> {
        let failed = || format!("cannot create {}", path.display());
        let mut open = OPEN.lock();
        DirBuilder::new()
            .mode(mode)
            .create(path)
            .with_context(failed)?;
        let lock = open_folder(path).with_context(failed).inspect_err(|_| {
            let _ = std::fs::remove_dir(path); // descriptors may have run out: removing needs none
        })?;
        // Without locks for folders it remains if this process is killed.
        let held = is_locked_elsewhere(&lock).unwrap_or(false);
        if held || !is_at(&lock, path)? {
            return Err(locked_error(path).into());
        }
        open.push(path.into());
        Ok(TemporaryFolder { path: path.into(), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        OPEN.lock().retain(|other| *other != self.path);
    }
}
