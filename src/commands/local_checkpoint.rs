//! Checkpoint that is read on this machine: a local one, or a copy fetched from a mirror.

use anyhow::Context;
use base::Problems;
use base::output::{self, Leftover, TemporaryFolder};
use checkpoint::place::Place;
use manifest::Loaded;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Start of the names of temporary folders.
const NAME: &str = "gptrain-inspect-";

/// Checkpoint on this machine.
pub struct LocalCheckpoint {
    pub folder: PathBuf,
    /// Temporary folder of a fetched checkpoint; None for a local one. Removed on drop.
    fetched_to: Option<TemporaryFolder>,
}

impl LocalCheckpoint {
    /// Checkpoint at a path, or the newest one of a mirror, which is fetched.
    pub fn find(path: &Path) -> anyhow::Result<LocalCheckpoint> {
        let Some(url) = Place::is_url(path) else {
            return Ok(LocalCheckpoint { folder: checkpoint::find(path)?, fetched_to: None });
        };
        let place = Place::open(url)?;
        remove_leftovers(&std::env::temp_dir())?;
        static FETCHED: AtomicUsize = AtomicUsize::new(0);
        let number = FETCHED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAME}{}-{}-{number}", std::process::id(), checkpoint::nonce());
        let to = std::env::temp_dir().join(name);
        let made = TemporaryFolder::create(&to, 0o700); // the folder above is shared
        let made = made.with_context(|| format!("cannot make {}: set TMPDIR", to.display()))?;
        let mut local = LocalCheckpoint { folder: PathBuf::new(), fetched_to: Some(made) };
        local.folder = place.fetch(&to)?.folder;
        Ok(local)
    }
}

/// Removes the temporary folders of this user's killed processes. Those of living ones are locked.
fn remove_leftovers(parent: &Path) -> anyhow::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let is_own = |name: &str| {
        let about = || fs::symlink_metadata(parent.join(name));
        name.starts_with(NAME) && about().is_ok_and(|about| about.uid() == user)
    };
    let abandoned = output::temporary_folders(parent, is_own).abandoned;
    abandoned.into_iter().try_for_each(Leftover::remove)
}

impl Drop for LocalCheckpoint {
    fn drop(&mut self) {
        // An error is ignored: the system clears temporary files.
        if let Some(folder) = &self.fetched_to {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

/// Manifest that a checkpoint stores.
pub fn stored_manifest(text: &str, sets: &[String]) -> Result<Loaded, Problems> {
    manifest::parse_saved(text, "the checkpoint's manifest", Path::new("."), sets)
}
