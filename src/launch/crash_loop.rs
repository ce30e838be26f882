//! Crash-loop guard: stops a run that a scheduler restarts repeatedly without a newer checkpoint,
//! so that it does not use the machine for ever.

use base::output::{self, Existing};
use base::{Problems, input};
use serde::{Deserialize, Serialize};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder.
pub const NAME: &str = "starts.json";

/// Starts permitted from one checkpoint before there must be a newer one.
const MAX_STARTS: u32 = 8;

/// Starts in a row of a chain of jobs that may end after at most one step.
const MAX_SHORT_STARTS: u32 = 3;

/// Contents of `starts.json` in the run's folder; removed when the run has ended without an error.
#[derive(Serialize, Deserialize)]
struct Starts {
    from_step: u64,
    starts: u32,
    /// Starts in a row that left for the end of their job after at most one step.
    #[serde(default, rename = "short")]
    short_starts: u32,
}

/// Counts this start from the checkpoint of `step`. Fails after `MAX_STARTS` starts from the same
/// step.
pub fn count_start(folder: &Path, step: u64) -> anyhow::Result<()> {
    let path = starts_file(folder);
    let recorded = read_starts(folder);
    let short_starts = recorded.as_ref().map_or(0, |starts| starts.short_starts);
    let before = match recorded {
        Some(Starts { from_step, starts, .. }) if from_step == step => starts,
        _ => 0,
    };
    if before >= MAX_STARTS {
        return Err(Problems::one(
            folder.display().to_string(),
            format!(
                "{before} starts from step {step} have ended without a newer checkpoint: the run \
                 makes no progress"
            ),
            format!(
                "find out why (failures/ beside it, the job's output), or lower checkpoint.interval; \
                 then remove {} to start again",
                path.display()
            ),
        )
        .into());
    }
    write(folder, &Starts { from_step: step, starts: before + 1, short_starts })
}

fn write(folder: &Path, starts: &Starts) -> anyhow::Result<()> {
    output::write(&starts_file(folder), Existing::Replaced, &serde_json::to_vec(starts)?)
}

/// Uncounts this start, which was refused before its first step.
pub fn uncount_start(folder: &Path) {
    let Some(mut recorded) = read_starts(folder) else { return };
    recorded.starts = recorded.starts.saturating_sub(1);
    if recorded.starts == 0 && recorded.short_starts == 0 {
        reset(folder);
    } else {
        // If this fails, the start counts.
        let _ = write(folder, &recorded);
    }
}

/// Counts a start that left for the end of its job after the steps `steps`.
pub fn count_leave(folder: &Path, steps: Range<u64>) {
    if steps.end > steps.start + 1 {
        return reset(folder);
    }
    let Some(mut recorded) = read_starts(folder) else { return reset(folder) };
    recorded.short_starts += 1;
    if !steps.is_empty() {
        recorded.starts = 0; // a step is saved: the next start counts from there
    }
    // If this fails, the start does not count.
    let _ = write(folder, &recorded);
}

/// Fails if the run may not start itself again, with the number of starts in a row that took at most
/// one step.
pub fn check_restart(folder: &Path) -> Result<(), u32> {
    let short = read_starts(folder).map_or(0, |starts| starts.short_starts);
    if short < MAX_SHORT_STARTS { Ok(()) } else { Err(short) }
}

/// Resets the counts, because the run has ended without an error.
pub fn reset(folder: &Path) {
    let _ = fs::remove_file(starts_file(folder)); // if this fails, the next start counts as one more
}

/// Recorded starts; None if the file does not exist or is unreadable.
fn read_starts(folder: &Path) -> Option<Starts> {
    let text = input::read(&starts_file(folder), input::SMALL).ok()?;
    serde_json::from_slice(&text).ok()
}

fn starts_file(folder: &Path) -> PathBuf {
    folder.join(NAME)
}
