//! Handling of storage that fails temporarily: a full disk, or a restarting file server. A run
//! warns once, waits for it, and continues. Threads other than the training thread do the writes.

use anyhow::{Error, Result};
use base::{Deadline, Moment, Seconds};
use manifest::Manifest;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Temporary errors; `NOENT` is one too while the folder is missing. All other errors end the run.
const TEMPORARY: [Errno; 9] = [
    Errno::NOSPC,       // the disk is full
    Errno::DQUOT,       // the quota is used up
    Errno::IO,          // a file server gave no answer (NFS, soft; Lustre)
    Errno::STALE,       // it has restarted and lost the file handle
    Errno::TIMEDOUT,    // it cannot be reached
    Errno::HOSTDOWN,    // nor its machine
    Errno::HOSTUNREACH, // nor its network
    Errno::NOTCONN,     // a FUSE file system whose server went away
    Errno::SHUTDOWN,    // Lustre and GPFS while they fail over
];

/// Pauses between retries: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// Storage of a run.
pub struct Storage {
    folder: PathBuf,
    limit: Duration,
    outage: Mutex<Outage>,
    /// Notified when waits are cancelled.
    cancelled: Condvar,
}

#[derive(Default)]
struct Outage {
    /// Start of the current outage; None if no write waits.
    since: Option<Moment>,
    /// Number of waiting writes.
    waiting: usize,
    /// Whether waits are cancelled.
    cancelled: bool,
}

impl Storage {
    /// Storage in a run's folder, with a time limit for the wait of each write.
    pub fn new(folder: &Path, limit: Duration) -> Arc<Storage> {
        let folder = folder.to_path_buf();
        let outage = Mutex::default();
        Arc::new(Storage { folder, limit, outage, cancelled: Condvar::new() })
    }

    pub fn for_run(m: &Manifest) -> Arc<Storage> {
        let limit = Duration::from_secs_f64(m.checkpoint.wait_for_storage_s);
        Storage::new(&m.log.folder, limit)
    }

    /// Runs `work`, and repeats it until `limit` if it fails with a temporary error. `work` must be
    /// repeatable after any failure.
    pub fn retry<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut error = match work() {
            Err(error) if self.is_temporary(&error, true) && !self.limit.is_zero() => error,
            done => return done,
        };
        let begun = Moment::now();
        let end = Deadline::after(self.limit);
        self.begin_wait(&error);
        let [mut pause, longest] = PAUSES;
        let ended = loop {
            let left = end.left();
            if left.is_zero() || self.sleep_until_cancelled(pause.min(left)) {
                let waited = Seconds(begun.elapsed().as_secs_f64());
                break Err(error.context(format!("waited {waited} for {}", self.folder.display())));
            }
            pause = (2 * pause).min(longest);
            error = match work() {
                Err(error) if self.is_temporary(&error, false) => error,
                done => break done,
            };
        };
        self.end_wait(ended.is_ok());
        ended
    }

    /// Cancels all waits, current and future: failed writes are given up.
    pub fn cancel_waits(&self) {
        self.outage.lock().cancelled = true;
        self.cancelled.notify_all();
    }

    /// Whether a write is waiting.
    pub fn is_waiting(&self) -> bool {
        self.outage.lock().since.is_some()
    }

    /// Whether an error is temporary. A missing file is one while the run's folder is missing (it is
    /// not mounted); and on the first error, because the folder may just be back.
    fn is_temporary(&self, error: &Error, first: bool) -> bool {
        match errno(error) {
            Some(Errno::NOENT) => first || !self.folder.exists(),
            Some(errno) => TEMPORARY.contains(&errno),
            None => false,
        }
    }

    /// Sleeps for `pause`, or until waits are cancelled. Returns whether they are.
    fn sleep_until_cancelled(&self, pause: Duration) -> bool {
        let begun = Moment::now();
        let mut outage = self.outage.lock();
        while !outage.cancelled && begun.elapsed() < pause {
            self.cancelled
                .wait_for(&mut outage, pause.saturating_sub(begun.elapsed()));
        }
        outage.cancelled
    }

    /// Counts a waiting write, and warns if it is the first.
    fn begin_wait(&self, error: &Error) {
        let mut outage = self.outage.lock();
        outage.waiting += 1;
        if outage.since.is_none() {
            outage.since = Some(Moment::now());
            let folder = self.folder.display();
            let limit = Seconds(self.limit.as_secs_f64());
            let causes: Vec<String> = error.chain().map(|cause| cause.to_string()).collect();
            let why = causes[causes.len().saturating_sub(2)..].join(": ");
            tracing::warn!("{folder} cannot be written ({why}): waiting up to {limit} for it");
        }
    }

    fn end_wait(&self, success: bool) {
        let mut outage = self.outage.lock();
        outage.waiting -= 1;
        if outage.waiting == 0
            && let Some(since) = outage.since.take()
            && success
        {
            let away = Seconds(since.elapsed().as_secs_f64());
            tracing::warn!("{} can be written again, after {away}", self.folder.display());
        }
    }
}

/// System error at the root of an error chain.
fn errno(error: &Error) -> Option<Errno> {
    error.chain().find_map(|cause| {
        let code = cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        let errno = code.map(Errno::from_raw_os_error);
        errno.or_else(|| cause.downcast_ref::<Errno>().copied())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    const LONG: Duration = Duration::from_secs(3600);

    fn failing_write(errno: Errno) -> Result<()> {
        Err(io::Error::from(errno))
            .context("cannot write a")
            .context("not saved")
    }

    /// Number of tries for an error that occurs `times` times, and the final result.
    fn tries(storage: &Storage, errno: Errno, times: usize) -> (usize, Result<()>) {
        let mut tried = 0;
        let ended = storage.retry(|| {
            tried += 1;
            if tried > times { Ok(()) } else { failing_write(errno) }
        });
        (tried, ended)
    }

    #[test]
    fn only_temporary_errors_are_retried() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Storage::new(folder.path(), LONG);
        for (errno, times) in TEMPORARY
            .map(|errno| (errno, 3))
            .into_iter()
            .chain([(Errno::NOENT, 1)])
        {
            let (tried, ended) = tries(&storage, errno, times);
            assert_eq!((tried, ended.is_ok()), (times + 1, true), "{errno}");
        }
        for errno in [Errno::ACCESS, Errno::ROFS, Errno::FBIG, Errno::NOTDIR, Errno::MFILE] {
            assert_eq!(tries(&storage, errno, 9).0, 1, "{errno}");
        }
        // The folder exists but a file in it does not: this is not temporary.
        assert_eq!(tries(&storage, Errno::NOENT, 9).0, 2);
        let gone = Storage::new(&folder.path().join("gone"), LONG);
        assert_eq!(tries(&gone, Errno::NOENT, 3).0, 4);
        assert!(!storage.is_waiting() && !gone.is_waiting());
    }

    #[test]
    fn a_wait_ends_at_its_limit_or_when_the_run_does() {
        let folder = Path::new("/");
        let passing = Errno::NOSPC;
        let (tried, ended) = tries(&Storage::new(folder, Duration::ZERO), passing, 9);
        assert_eq!((tried, ended.unwrap_err().to_string().as_str()), (1, "not saved"));
        let (_, ended) =
            tries(&Storage::new(folder, Duration::from_millis(60)), passing, usize::MAX);
        let told = format!("{:#}", ended.unwrap_err());
        assert!(told.starts_with("waited ") && told.contains("cannot write a"), "{told}");
        let storage = Storage::new(folder, LONG);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| tries(&storage, passing, usize::MAX).1);
            base::testing::until("it waits", || storage.is_waiting());
            storage.cancel_waits();
            waits.join().unwrap().unwrap_err();
        });
        assert!(!storage.is_waiting());
    }
}
