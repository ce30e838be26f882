//! Handling of storage that fails temporarily: a full disk, or a restarting file server. A run
//! warns once, waits for it, and continues. Threads other than the training thread do the writes.

use anyhow::{Error, Result};
use base::Seconds;
use manifest::Manifest;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Temporary errors, and when they are temporary. All other errors end the run.
const PASSING: &[(Errno, Passes)] = &[
    (Errno::NOSPC, Passes::Always),        // the disk is full
    (Errno::DQUOT, Passes::Always),        // the quota is used up
    (Errno::IO, Passes::Always),           // a file server gave no answer (NFS, soft; Lustre)
    (Errno::STALE, Passes::Always),        // it has restarted and lost the file handle
    (Errno::TIMEDOUT, Passes::Always),     // it cannot be reached
    (Errno::HOSTDOWN, Passes::Always),     // nor its machine
    (Errno::HOSTUNREACH, Passes::Always),  // nor its network
    (Errno::NOTCONN, Passes::Always),      // a FUSE file system whose server went away
    (Errno::SHUTDOWN, Passes::Always),     // Lustre and GPFS while they fail over
    (Errno::NOENT, Passes::WithoutFolder), // it is not mounted
];

/// Condition under which an error is temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passes {
    Always,
    /// While the run's folder is missing; and on the first error, because the folder may just be
    /// back.
    WithoutFolder,
}

/// Pauses between retries: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// Storage of a run.
pub struct Storage {
    folder: PathBuf,
    limit: Duration,
    outage: Mutex<Outage>,
    /// Notified when waits are cancelled.
    leaving: Condvar,
}

#[derive(Default)]
struct Outage {
    /// Start of the current outage; None if no write waits.
    since: Option<Instant>,
    waiting: usize,
    leaving: bool,
}

impl Storage {
    /// Storage in a run's folder, with a time limit for the wait of each write.
    pub fn new(folder: &Path, limit: Duration) -> Arc<Storage> {
        let (folder, outage) = (folder.to_path_buf(), Mutex::default());
        Arc::new(Storage { folder, limit, outage, leaving: Condvar::new() })
    }

    pub fn of(m: &Manifest) -> Arc<Storage> {
        let limit = Duration::from_secs_f64(m.checkpoint.wait_for_storage_s);
        Storage::new(&m.log.folder, limit)
    }

    /// Runs `work`, and repeats it until `limit` if it fails with a temporary error. `work` must be
    /// repeatable after any failure.
    pub fn patiently<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut error = match work() {
            Err(error) if self.passes(&error, true) && !self.limit.is_zero() => error,
            done => return done,
        };
        let begun = Instant::now();
        self.wait_begins(&error);
        let [mut pause, longest] = PAUSES;
        let ended = loop {
            let left = self.limit.saturating_sub(begun.elapsed());
            if left.is_zero() || self.leave_after(pause.min(left)) {
                let waited = Seconds(begun.elapsed().as_secs_f64());
                break Err(error.context(format!("waited {waited} for {}", self.folder.display())));
            }
            pause = (2 * pause).min(longest);
            error = match work() {
                Err(error) if self.passes(&error, false) => error,
                done => break done,
            };
        };
        self.wait_ends(ended.is_ok());
        ended
    }

    /// Cancels all waits, current and future: failed writes are given up.
    pub fn leave(&self) {
        self.outage.lock().leaving = true;
        self.leaving.notify_all();
    }

    /// Whether a write is waiting.
    pub fn is_away(&self) -> bool {
        self.outage.lock().since.is_some()
    }

    fn passes(&self, error: &Error, first: bool) -> bool {
        let Some(errno) = errno(error) else { return false };
        match PASSING.iter().find(|(passing, _)| *passing == errno) {
            Some((_, Passes::Always)) => true,
            Some((_, Passes::WithoutFolder)) => first || !self.folder.exists(),
            None => false,
        }
    }

    /// Sleeps. Returns true once waits are cancelled.
    fn leave_after(&self, pause: Duration) -> bool {
        let end = Instant::now() + pause;
        let mut outage = self.outage.lock();
        while !outage.leaving && !self.leaving.wait_until(&mut outage, end).timed_out() {}
        outage.leaving
    }

    /// Counts a waiting write, and warns if it is the first.
    fn wait_begins(&self, error: &Error) {
        let mut outage = self.outage.lock();
        outage.waiting += 1;
        if outage.since.is_none() {
            outage.since = Some(Instant::now());
            let (folder, limit) = (self.folder.display(), Seconds(self.limit.as_secs_f64()));
            let causes: Vec<String> = error.chain().map(|cause| cause.to_string()).collect();
            let why = causes[causes.len().saturating_sub(2)..].join(": ");
            tracing::warn!("{folder} takes nothing ({why}): waiting up to {limit} for it");
        }
    }

    fn wait_ends(&self, well: bool) {
        let mut outage = self.outage.lock();
        outage.waiting -= 1;
        if outage.waiting == 0
            && let Some(since) = outage.since.take()
            && well
        {
            let away = Seconds(since.elapsed().as_secs_f64());
            tracing::warn!("{} takes files again, after {away}", self.folder.display());
        }
    }
}

/// System error at the root of an error chain.
fn errno(error: &Error) -> Option<Errno> {
    error.chain().find_map(|cause| {
        let of_system = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        let raw = of_system.map(Errno::from_raw_os_error);
        raw.or_else(|| cause.downcast_ref::<Errno>().copied())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    const LONG: Duration = Duration::from_secs(3600);

    fn fails(errno: Errno) -> Result<()> {
        Err(io::Error::from(errno)).context("cannot write a").context("not saved")
    }

    /// Number of tries for an error that occurs `times` times, and the final result.
    fn tries(storage: &Storage, errno: Errno, times: usize) -> (usize, Result<()>) {
        let mut tried = 0;
        let ended = storage.patiently(|| {
            tried += 1;
            if tried > times { Ok(()) } else { fails(errno) }
        });
        (tried, ended)
    }

    #[test]
    fn errors_of_the_table_are_waited_for_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::new(folder.path(), LONG);
        for (errno, passes) in PASSING {
            let times = if *passes == Passes::Always { 3 } else { 1 };
            let (tried, ended) = tries(&storage, *errno, times);
            assert_eq!((tried, ended.is_ok()), (times + 1, true), "{errno}");
        }
        for errno in [Errno::ACCESS, Errno::ROFS, Errno::FBIG, Errno::NOTDIR, Errno::MFILE] {
            assert_eq!(tries(&storage, errno, 9).0, 1, "{errno}");
        }
        // The folder exists but a file in it does not: this is not temporary.
        assert_eq!(tries(&storage, Errno::NOENT, 9).0, 2);
        let gone = Storage::new(&folder.path().join("gone"), LONG);
        assert_eq!(tries(&gone, Errno::NOENT, 3).0, 4);
        assert!(!storage.is_away() && !gone.is_away());
    }

    #[test]
    fn a_wait_ends_at_its_limit_or_when_the_run_does() {
        let (folder, passing) = (Path::new("/"), Errno::NOSPC);
        let (tried, ended) = tries(&Storage::new(folder, Duration::ZERO), passing, 9);
        assert_eq!((tried, ended.unwrap_err().to_string().as_str()), (1, "not saved"));
        let (_, ended) =
            tries(&Storage::new(folder, Duration::from_millis(60)), passing, usize::MAX);
        let told = format!("{:#}", ended.unwrap_err());
        assert!(told.starts_with("waited ") && told.contains("cannot write a"), "{told}");
        let storage = Storage::new(folder, LONG);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| tries(&storage, passing, usize::MAX).1);
            base::testing::until("it waits", || storage.is_away());
            storage.leave();
            waits.join().unwrap().unwrap_err();
        });
        assert!(!storage.is_away());
    }
}
