//! Crash-loop guard: a run that a scheduler restarts again and again, and that never writes a newer
//! checkpoint, must not use the machine for ever.

use base::Problems;
use base::output::{self, Existing};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Starts allowed from one checkpoint before there must be a newer one.
const MAX_STARTS: u32 = 8;

/// `starts.json` in the run's folder; removed when the run has ended without an error.
#[derive(Serialize, Deserialize)]
struct Starts {
    from_step: u64,
    starts: u32,
}

/// Counts this start from the checkpoint of `step`. An error after `MAX_STARTS` starts from the
/// same step.
pub fn count_start(folder: &Path, step: u64) -> anyhow::Result<()> {
    let path = file(folder);
    // An unreadable file counts as no starts.
    let recorded =
        fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Starts>(&text).ok());
    let before = recorded
        .filter(|recorded| recorded.from_step == step)
        .map_or(0, |recorded| recorded.starts);
    if before >= MAX_STARTS {
        let what = format!(
            "{before} starts from step {step} have ended without a newer checkpoint: the run does \
             not get on"
        );
        let remedy = format!(
            "find out why (failures/ beside it, the job's output), or lower checkpoint.interval; \
             then remove {} to start again",
            path.display()
        );
        return Err(Problems::one(folder.display().to_string(), what, remedy).into());
    }
    let now = Starts { from_step: step, starts: before + 1 };
    output::write(&path, Existing::Replaced, &serde_json::to_vec(&now)?)
}

/// Resets the count: the run has ended without an error.
pub fn reset(folder: &Path) {
    let _ = fs::remove_file(file(folder)); // if this fails, the next start counts as one more
}

fn file(folder: &Path) -> PathBuf {
    folder.join("starts.json")
}
