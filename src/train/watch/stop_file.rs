//! End of a run by a file in its folder: `touch RUN/stop` saves and ends it as SIGTERM does. It needs write
//! permission in the folder, and works on any machine that sees it. The file remains, and refuses the next
//! start.

use super::{Requests, RunView, Watcher};
use base::{Moment, Problems, shell_word};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the file in a run's folder.
const NAME: &str = "stop";

/// Shortest time between two looks at the folder, which may be on a busy file server.
const INTERVAL: Duration = Duration::from_secs(1);

/// The file of a run, which rank 0 looks for.
pub struct StopFile {
    path: PathBuf,
    looked: Moment,
}

impl StopFile {
    pub fn new(run: &Path) -> StopFile {
        StopFile { path: run.join(NAME), looked: Moment::now() }
    }

    /// Fails if the folder of a run that starts has the file.
    pub fn refuse(run: &Path) -> Result<(), Problems> {
        let path = run.join(NAME);
        if !path.exists() {
            return Ok(());
        }
        Err(Problems::one(
            path.display().to_string(),
            "is there: the run was stopped by it",
            format!("remove it to train on: rm {}", shell_word(&path.to_string_lossy())),
        ))
    }
}

/// None on ranks other than 0.
impl Watcher for Option<StopFile> {
    fn name(&self) -> &'static str {
        "stop file"
    }

    fn requests(&mut self, _: &RunView) -> anyhow::Result<Requests> {
        let Some(file) = self
            .as_mut()
            .filter(|file| file.looked.elapsed() >= INTERVAL)
        else {
            return Ok(Requests::NONE);
        };
        file.looked = Moment::now();
        let found = file.path.exists();
        if found {
            tracing::info!("{} is there: saving and leaving", file.path.display());
        }
        Ok(Requests::STOP.when(found))
    }
}
