//! Starts that led nowhere: a run that its scheduler starts again and again must not burn the
//! machine for ever.

use crate::base::Problems;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Starts from one step before there must be a newer checkpoint.
const MOST: u32 = 8;

/// Kept in the run's folder; gone once the run has ended well.
#[derive(Serialize, Deserialize)]
struct Attempts {
    from_step: u64,
    starts: u32,
}

/// Counts this start, from the checkpoint of `step`. Refused where too many before it got no
/// further.
pub fn count(folder: &Path, step: u64) -> anyhow::Result<()> {
    let path = file(folder);
    // A file that cannot be read counts nothing.
    let known =
        fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Attempts>(&text).ok());
    let before = known.filter(|known| known.from_step == step).map_or(0, |known| known.starts);
    if before >= MOST {
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
    let now = Attempts { from_step: step, starts: before + 1 };
    let new = path.with_extension("json.new");
    fs::write(&new, serde_json::to_vec(&now)?)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The run has ended well.
pub fn forget(folder: &Path) {
    let _ = fs::remove_file(file(folder)); // or the next start from here counts as one more
}

fn file(folder: &Path) -> PathBuf {
    folder.join("starts.json")
}
