//! `last-checkpoint` in the run's folder names the newest checkpoint, outside of `checkpoints/`: a run
//! whose checkpoints cannot be found (moved away, a disk that is not mounted) is not taken for a new
//! one, which would begin at step 0 and cut the record of the old.

use base::Problems;
use base::output::{self, Existing};
use std::fs;
use std::path::{Path, PathBuf};

/// Notes in a run's folder that the checkpoint of `step` is its newest.
pub fn note(folder: &Path, step: u64) -> anyhow::Result<()> {
    let text = format!("{}\n", checkpoint::name(step));
    output::write(&file(folder), Existing::Replaced, text.as_bytes())
}

/// An error for a folder of checkpoints that holds none, of a run that has saved one.
pub fn check(folder: &Path) -> Result<(), Problems> {
    let path = file(folder);
    // Without the note, or with one that nobody can read, nothing is known.
    let Ok(noted) = fs::read_to_string(&path) else { return Ok(()) };
    let what = format!("holds no checkpoint, and the run has saved {}", noted.trim_end());
    let remedy = format!(
        "bring the checkpoints back (moved? a disk that is not mounted?), or remove {} to begin \
         again at step 0",
        path.display()
    );
    Err(Problems::one(folder.join("checkpoints").display().to_string(), what, remedy))
}

fn file(folder: &Path) -> PathBuf {
    folder.join("last-checkpoint")
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
