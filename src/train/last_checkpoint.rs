//! `last-checkpoint` in the run's folder, outside of `checkpoints/`, names the newest checkpoint. A
//! run whose checkpoints are missing (moved, an unmounted disk) is therefore not mistaken for a new
//! one, which would start at step 0 and truncate the old record.

use base::output::{self, Existing};
use base::{Problems, input};
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder.
pub const NAME: &str = "last-checkpoint";

/// Records that the checkpoint of `step` is the newest.
pub fn note(folder: &Path, step: u64) -> anyhow::Result<()> {
    let text = format!("{}\n", checkpoint::name(step));
    output::write(&file(folder), Existing::Replaced, text.as_bytes())
}

/// Fails for an empty folder of checkpoints if the run has saved one.
pub fn check(folder: &Path) -> Result<(), Problems> {
    let path = file(folder);
    // Without a readable record there is nothing to check.
    let Ok(noted) = input::read(&path, input::SMALL) else { return Ok(()) };
    let noted = String::from_utf8_lossy(&noted);
    Err(Problems::one(
        folder.join("checkpoints").display().to_string(),
        format!("holds no checkpoint, and the run has saved {}", noted.trim_end()),
        format!(
            "bring the checkpoints back (moved? a disk that is not mounted?), or remove {} to begin \
             again at step 0",
            path.display()
        ),
    ))
}

fn file(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_checkpoints_are_gone_is_not_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        check(folder).unwrap();
        note(folder, 6).unwrap();
        let error = check(folder).unwrap_err().to_string();
        let says = ["holds no checkpoint", "has saved step-00000006", "last-checkpoint to begin"];
        assert!(says.iter().all(|part| error.contains(part)), "{error}");
    }
}
