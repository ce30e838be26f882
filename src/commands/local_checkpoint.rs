//! Checkpoint that is read on this machine: a local one, or a copy fetched from a mirror.

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
    /// Temporary folder of a fetched checkpoint; None for a local one. Removed on drop.
    fetched_to: Option<PathBuf>,
}

impl LocalCheckpoint {
    /// Checkpoint at a path, or the newest one of a mirror, which is fetched.
    pub fn find(path: &Path) -> anyhow::Result<LocalCheckpoint> {
        let Some(url) = Place::is_url(path) else {
            return Ok(LocalCheckpoint { folder: checkpoint::find(path)?, fetched_to: None });
        };
        let place = Place::open(url)?;
        static FETCHED: AtomicUsize = AtomicUsize::new(0);
        let number = FETCHED.fetch_add(1, Ordering::Relaxed);
        let name = format!("gptrain-inspect-{}-{number}", std::process::id());
        let to = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&to); // the folder above is shared
        made.with_context(|| format!("cannot make {}: set TMPDIR", to.display()))?;
        let mut local = LocalCheckpoint { folder: PathBuf::new(), fetched_to: Some(to.clone()) };
        local.folder = place.fetch(&to)?.folder;
        Ok(local)
    }
}

impl Drop for LocalCheckpoint {
    fn drop(&mut self) {
        // An error is ignored: the system clears temporary files.
        if let Some(folder) = &self.fetched_to {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Manifest that a checkpoint stores.
pub fn stored_manifest(text: &str, sets: &[String]) -> Result<Loaded, Problems> {
    manifest::parse_saved(text, "the checkpoint's manifest", Path::new("."), sets)
}
