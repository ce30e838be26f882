//! Crash-loop guard: a run that a scheduler restarts again and again, and that never writes a newer
//! checkpoint, must not use the machine for ever.

use base::Problems;
use base::output::{self, Existing};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Starts allowed from one checkpoint before there must be a newer one.
const MAX_STARTS: u32 = 8;

/// Starts of a chain of jobs in which a run may make no step.
const MAX_STARTS_OF_CHAIN: u32 = 3;

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
    let before = recorded(folder)
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

/// Whether the run may start itself again; else how many starts in a row have led to no step.
pub fn may_chain(folder: &Path) -> Result<(), u32> {
    let starts = recorded(folder).map_or(0, |recorded| recorded.starts);
    if starts < MAX_STARTS_OF_CHAIN { Ok(()) } else { Err(starts) }
}

/// Resets the count: the run has ended without an error.
pub fn reset(folder: &Path) {
    let _ = fs::remove_file(file(folder)); // if this fails, the next start counts as one more
}

/// None where there is no such file: an unreadable one counts as no starts.
fn recorded(folder: &Path) -> Option<Starts> {
    fs::read(file(folder)).ok().and_then(|text| serde_json::from_slice(&text).ok())
}

fn file(folder: &Path) -> PathBuf {
    folder.join("starts.json")
}
