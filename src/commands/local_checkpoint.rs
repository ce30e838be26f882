//! Checkpoint that is read on this machine: a local one, or one in a temporary folder: fetched from a
//! mirror, or converted.

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
    /// Origin for messages, and temporary folder; None for a local one.
    fetched: Option<(String, ModelFolder)>,
}

impl LocalCheckpoint {
    /// Checkpoint at a path, or the newest one of a mirror, which is fetched.
    pub fn find(path: &Path) -> anyhow::Result<LocalCheckpoint> {
        let Some(url) = Place::is_url(path) else {
            return Ok(LocalCheckpoint { folder: checkpoint::find(path)?, fetched: None });
        };
        let place = Place::open(url)?;
        let temporary = temporary_folder()?;
        // As in a run, whose tokenizer is searched two folders above a checkpoint.
        let folder = place.fetch(&temporary.path().join("checkpoints"))?.folder;
        let step = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(LocalCheckpoint::fetched(folder, format!("{}/{step}", place.url()), temporary))
    }

    /// Checkpoint in a temporary folder, made from `name`.
    pub fn fetched(folder: PathBuf, name: String, temporary: ModelFolder) -> LocalCheckpoint {
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

/// New private folder below the system's temporary one.
pub fn temporary_folder() -> anyhow::Result<ModelFolder> {
    remove_leftovers(&std::env::temp_dir())?;
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!("{NAME}{}-{}-{number}", std::process::id(), checkpoint::nonce());
    let to = std::env::temp_dir().join(name);
    let made = TemporaryFolder::create(&to, 0o700); // the folder above is shared
    let made = made.with_context(|| format!("cannot make {}: set TMPDIR", to.display()))?;
    Ok(ModelFolder(made))
}

/// Removes the temporary folders of this user's killed processes. Those of living ones are locked.
fn remove_leftovers(parent: &Path) -> anyhow::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let abandoned = output::temporary_folders(parent, |name: &str| {
        let about = || fs::symlink_metadata(parent.join(name));
        name.starts_with(NAME) && about().is_ok_and(|about| about.uid() == user)
    })
    .abandoned;
    abandoned.into_iter().try_for_each(Leftover::remove)
}

/// Private folder below the system's temporary one, removed on drop.
pub struct ModelFolder(TemporaryFolder);

impl ModelFolder {
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for ModelFolder {
    fn drop(&mut self) {
        // An error is ignored: the system clears temporary files.
        let _ = fs::remove_dir_all(self.0.path());
    }
}

/// Manifest that a checkpoint stores.
pub fn stored_manifest(text: &str, sets: &[String]) -> Result<Loaded, Problems> {
    manifest::parse_saved(text, "the checkpoint's manifest", Path::new("."), sets)
}
