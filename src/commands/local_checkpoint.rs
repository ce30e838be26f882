//! Checkpoint that is read on this machine: a local one, or one in a temporary folder: fetched from a
//! mirror, or converted.

use anyhow::Context;
use base::Problems;
use checkpoint::place::Place;
use manifest::Loaded;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Checkpoint on this machine.
pub struct LocalCheckpoint {
    pub folder: PathBuf,
    /// Origin for messages, and temporary folder; None for a local one.
    fetched: Option<(String, TemporaryFolder)>,
}

impl LocalCheckpoint {
    /// Checkpoint at a path, or the newest one of a mirror, which is fetched.
    pub fn find(path: &Path) -> anyhow::Result<LocalCheckpoint> {
        let Some(url) = Place::is_url(path) else {
            return Ok(LocalCheckpoint { folder: checkpoint::find(path)?, fetched: None });
        };
        let place = Place::open(url)?;
        let temporary = TemporaryFolder::new()?;
        // As in a run, whose tokenizer is searched two folders above a checkpoint.
        let folder = place.fetch(&temporary.path().join("checkpoints"))?.folder;
        let step = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(LocalCheckpoint::fetched(folder, format!("{}/{step}", place.url()), temporary))
    }

    /// Checkpoint in a temporary folder, made from `name`.
    pub fn fetched(folder: PathBuf, name: String, temporary: TemporaryFolder) -> LocalCheckpoint {
        LocalCheckpoint { folder, fetched: Some((name, temporary)) }
    }

    /// Name for the user: its folder, or what it was fetched from.
    pub fn name(&self) -> String {
        match &self.fetched {
            Some((name, _)) => name.clone(),
            None => self.folder.display().to_string(),
        }
    }
}

/// Private folder below the system's temporary one, removed on drop.
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    pub fn new() -> anyhow::Result<TemporaryFolder> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("gptrain-model-{}-{number}", std::process::id());
        let to = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&to); // the folder above is shared
        made.with_context(|| format!("cannot make {}: set TMPDIR", to.display()))?;
        Ok(TemporaryFolder(to))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // An error is ignored: the system clears temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Manifest that a checkpoint stores.
pub fn stored_manifest(text: &str, sets: &[String]) -> Result<Loaded, Problems> {
    manifest::parse_saved(text, "the checkpoint's manifest", Path::new("."), sets)
}
