//! How a world is watched, and what ends it.

use super::Failed;
use super::dump::{claim_verdict, write_rank};
use super::report::RankReport;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// How long a rank may wait for others, and where dumps go.
#[derive(Clone, Debug)]
pub struct Watch {
    /// A rank that waits longer in one operation is held up: somebody is at fault.
    pub timeout: Duration,
    /// Folder for the dump of a failure; none is written without.
    pub dumps: Option<PathBuf>,
    /// From the verdict to the end of a rank that does not end by itself, as one that computes for
    /// ever; it then leaves the process with `Failed::EXIT_CODE`.
    pub grace: Duration,
}

impl Watch {
    pub fn new(timeout: Duration) -> Watch {
        Watch { timeout, dumps: None, grace: Duration::from_secs(5) }
    }

    /// How often ranks are looked at.
    pub(super) fn period(&self) -> Duration {
        (self.timeout / 5).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    /// Writes what is known of these ranks; a dump that fails is reported and changes nothing.
    pub(super) fn dump(&self, reports: &[RankReport]) {
        let Some(folder) = &self.dumps else { return };
        if let Err(error) = reports.iter().try_for_each(|report| write_rank(folder, report)) {
            eprintln!("gptrain: no dump: {error:#}");
        }
    }

    /// A failure with a line that several ranks may come to on their own, as when rank 0 dies. The
    /// first to write it down speaks; each does, where none can be written.
    pub(super) fn claim(&self, line: String) -> Failed {
        let claimed = self.dumps.as_ref().map_or(Ok(true), |folder| claim_verdict(folder, &line));
        Failed { speak: claimed.unwrap_or(true), line }
    }
}

/// Ends the process of a rank that did not unwind by itself. At once: what libraries do at an exit
/// could wait for a GPU that waits for others.
pub(super) fn end_process(failed: &Failed) -> ! {
    if failed.speak {
        eprintln!("gptrain: {failed}");
    }
    let _ = std::io::stdout().flush();
    // SAFETY: does not return.
    unsafe { libc::_exit(Failed::EXIT_CODE.into()) }
}
