//! Copies in a folder: `file:///FOLDER`. A copy is written under another name and renamed when it
//! is complete, so the folder can be read like a run's.

use super::super::disk::{Disk, nonce};
use super::super::folder;
use super::{Next, Store};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Part of the name of a checkpoint that is being removed.
const REMOVED: &str = ".tmp-removed-";

/// Bytes per write.
const BUFFER: usize = 4 << 20;

pub struct FolderStore {
    root: PathBuf,
    disk: Arc<Disk>,
}

impl FolderStore {
    pub fn new(root: &Path, disk: Arc<Disk>) -> FolderStore {
        FolderStore { root: root.to_path_buf(), disk }
    }

    /// Creates a folder and its parents, and syncs them.
    fn make(&self, path: &Path) -> Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        let parent = path.parent().context("a place has a parent folder")?;
        self.make(parent)?;
        self.disk.make_folder(path)?;
        self.disk.sync_folder(parent)
    }
}

impl Store for FolderStore {
    fn folders(&self) -> Result<Vec<String>> {
        let failed = || format!("cannot list {}", self.root.display());
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.with_context(failed)?,
        };
        entries
            .map(|entry| -> Result<_> {
                Ok(entry
                    .with_context(failed)?
                    .file_name()
                    .to_string_lossy()
                    .into_owned())
            })
            .collect()
    }

    fn files(&self, folder: &str) -> Result<BTreeMap<String, u64>> {
        let path = self.root.join(folder);
        let failed = || format!("cannot list {}", path.display());
        fs::read_dir(&path)
            .with_context(failed)?
            .map(|entry| -> Result<_> {
                let entry = entry.with_context(failed)?;
                let bytes = entry.metadata().with_context(failed)?.len();
                Ok((entry.file_name().to_string_lossy().into_owned(), bytes))
            })
            .collect()
    }

    fn bytes(&self, file: &str) -> Result<Option<u64>> {
        let path = self.root.join(file);
        match path.metadata() {
            Ok(found) => Ok(found.is_file().then_some(found.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn read(&self, file: &str, range: Range<u64>) -> Result<Vec<u8>> {
        let path = self.root.join(file);
        let failed = || format!("cannot read {}", path.display());
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let file = File::open(&path).with_context(failed)?;
        file.read_exact_at(&mut bytes, range.start)
            .with_context(failed)?;
        Ok(bytes)
    }

    /// Always returns false: the contents of a folder are read back.
    fn write(&self, file: &str, bytes: u64, next: Next) -> Result<bool> {
        let path = self.root.join(file);
        let folder = path.parent().context("a file of a place is in a folder")?;
        self.make(folder)?;
        let temporary = self.root.join(format!("{file}.tmp"));
        if temporary.exists() {
            self.disk.remove_file(&temporary)?; // left by a killed process
        }
        let file = self.disk.create(&temporary)?;
        let mut at = 0;
        while at < bytes {
            let part = next(BUFFER)?;
            self.disk.write_at(&temporary, &file, &part, at)?;
            at += part.len() as u64;
        }
        self.disk.sync(&temporary, &file)?;
        self.disk.rename(&temporary, &path)?;
        self.disk.sync_folder(folder)?;
        Ok(false)
    }

    /// Renames it before it is deleted, so that a partly deleted one is not mistaken for a checkpoint.
    fn remove(&self, folder: &str) -> Result<()> {
        let away = self.root.join(format!("{folder}{REMOVED}{}", nonce()));
        self.disk.rename(&self.root.join(folder), &away)?;
        self.disk.remove_folder(&away)
    }

    fn remove_leftovers(&self) -> Result<()> {
        let names = self.folders()?;
        let mut removed = names.iter().filter(|name| name.contains(REMOVED));
        removed.try_for_each(|name| self.disk.remove_folder(&self.root.join(name)))
    }

    fn remove_file(&self, file: &str) -> Result<()> {
        self.disk.remove_file(&self.root.join(file))
    }

    fn set_aside(&self, step: u64) -> Result<()> {
        let aside = self.root.join(folder::aside(step));
        self.disk
            .rename(&self.root.join(folder::name(step)), &aside)
    }

    fn upload_folder(&self, step: u64) -> String {
        format!("{}.tmp-copy", folder::name(step))
    }

    /// Also removes the leftovers of abandoned copies of other steps.
    fn begin(&self, step: u64) -> Result<()> {
        let temporary = self.upload_folder(step);
        folder::put_back(&self.disk, &self.root)?;
        for name in self.folders()?.iter().filter(|name| name.contains(".tmp-")) {
            if *name != temporary {
                self.disk.remove_folder(&self.root.join(name))?;
            }
        }
        self.make(&self.root.join(temporary))
    }

    fn publish(&self, step: u64) -> Result<()> {
        let temporary = self.root.join(self.upload_folder(step));
        let folder = self.root.join(folder::name(step));
        self.disk.sync_folder(&temporary)?;
        if folder.exists() {
            let aside = folder::replaced_folder(&self.root, step);
            self.disk.exchange(&temporary, &folder, &aside)?;
            self.disk.sync_folder(&self.root)?;
            return self.disk.remove_folder(&temporary);
        }
        self.disk.rename(&temporary, &folder)?;
        self.disk.sync_folder(&self.root)
    }
}
