//! Settings of hang detection, and the forced exit of a process whose rank does not unwind.

use super::Failed;
use super::dump::{claim_diagnosis, write_rank};
use super::report::RankReport;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Time limits of hang detection, and the folder for dumps.
#[derive(Clone, Debug)]
pub struct Watchdog {
    /// Maximum time that a rank may be blocked in one operation.
    pub timeout: Duration,
    /// Folder for the dump of a failure; None disables dumps.
    pub dumps: Option<PathBuf>,
    /// Time from the failure until a process whose rank does not unwind (an endless computation)
    /// exits with `Failed::EXIT_CODE`.
    pub grace: Duration,
}

impl Watchdog {
    pub fn new(timeout: Duration) -> Watchdog {
        Watchdog { timeout, dumps: None, grace: Duration::from_secs(5) }
    }

    /// Interval between checks of the ranks.
    pub(super) fn period(&self) -> Duration {
        (self.timeout / 5).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    /// Writes these reports. A dump that cannot be written is logged and otherwise ignored.
    pub(super) fn dump(&self, reports: &[RankReport]) {
        let Some(folder) = &self.dumps else { return };
        if let Err(error) = reports
            .iter()
            .try_for_each(|report| write_rank(folder, report))
        {
            tracing::error!("no dump: {error:#}");
        }
    }

    /// Failure that several ranks may detect independently, as when rank 0 dies. The first rank
    /// that writes the line to the dump folder prints it. Every rank prints it if none can write.
    pub(super) fn claim(&self, line: String) -> Failed {
        let claimed = self
            .dumps
            .as_ref()
            .map_or(Ok(true), |folder| claim_diagnosis(folder, &line));
        Failed { print: claimed.unwrap_or(true), line }
    }
}

/// Exits the process of a rank that did not unwind. Skips the exit handlers of libraries, which
/// could wait for a GPU that waits for other ranks.
pub(super) fn end_process(failed: &Failed) -> ! {
    if failed.print {
        base::warn!("gptrain: {failed}");
    }
    let _ = std::io::stdout().flush();
    // SAFETY: takes a number and does not return; no destructor or exit handler runs.
    unsafe { libc::_exit(Failed::EXIT_CODE.into()) }
}
