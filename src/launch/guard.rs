//! Guards of a run: one process per run folder, and signals.

use super::console::Console;
use anyhow::Context;
use base::Problems;
use comm::Place;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags, flock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator;
use signal_hook::low_level::emulate_default_handler;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time that a restarted run waits for its folder's lock; NFS servers drop a client after 90 s.
const PATIENCE: Duration = Duration::from_secs(120);

/// Name of the lock file in a run's folder.
const LOCK: &str = "run.lock";

/// Exclusive lock of the run's folder, released on drop (or by the kernel when the process dies).
pub struct FolderLock {
    _file: File,
    folder: PathBuf,
    /// Outermost folder created for it.
    made: Option<PathBuf>,
}

impl FolderLock {
    /// Creates the folder if it is missing, and locks it. In a restarted job rank 0's last process
    /// may still hold the lock, because the file server has not noticed that its node is gone.
    pub fn take(folder: &Path) -> anyhow::Result<FolderLock> {
        let end = Instant::now() + PATIENCE;
        loop {
            match FolderLock::try_take(folder) {
                Err(held) if held.is::<Problems>() && Place::is_given() && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(500));
                }
                taken => return taken,
            }
        }
    }

    fn try_take(folder: &Path) -> anyhow::Result<FolderLock> {
        let path = folder.join(LOCK);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32); // it may lead to a file of worth
        let open = || options.open(&path);
        let made = outermost_missing(folder);
        let mut file = fs::create_dir_all(folder).and_then(|()| open()).with_context(|| {
            format!("cannot write in the run's folder {}: set log.folder", folder.display())
        })?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(Problems::one(
                folder.display().to_string(),
                format!("another run is writing here ({})", holder.trim()),
                "wait for it, stop it, or give this one its own folder: --set log.folder=DIR",
            )
            .into());
        }
        let holder = format!("process {} on {}\n", std::process::id(), hostname());
        let written = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(FolderLock { _file: file, folder: folder.to_path_buf(), made })
    }

    /// Removes the folder if it was created for a run that left nothing in it.
    pub fn remove_unused(&self) {
        self.made.iter().for_each(|made| remove_unused(&self.folder, made));
    }
}

/// Outermost missing folder on the path.
pub fn outermost_missing(folder: &Path) -> Option<PathBuf> {
    let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    folder.ancestors().take_while(missing).last().map(Path::to_path_buf)
}

/// Removes a run's folder, up to `made`, if it contains only its lock.
pub fn remove_unused(folder: &Path, made: &Path) {
    let lock = folder.join(LOCK);
    // Left by a failed fetch; removed only if empty.
    let _ = fs::remove_dir(folder.join("checkpoints"));
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // starts.json means that the start counts: a job must not be requeued for ever.
    if !entries.all(|entry| entry.path() == lock) {
        return;
    }
    // Folders that cannot be removed remain; nothing is lost.
    let _ = fs::remove_file(lock);
    for folder in folder.ancestors().take_while(|folder| folder.starts_with(made)) {
        let _ = fs::remove_dir(folder);
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Requests by signal. Any rank's process may receive one; all ranks act on it between two steps.
pub struct Signals {
    stop: Arc<AtomicBool>,
    save: Arc<AtomicBool>,
    word: Arc<StopWord>,
}

/// Message printed once when a stop is requested, because the step may take minutes.
struct StopWord {
    /// None if another process prints it.
    console: Mutex<Option<Console>>,
    /// Current step; 0 before the first.
    step: AtomicU64,
    /// Whether the signal was Ctrl-C.
    interrupted: Arc<AtomicBool>,
}

impl StopWord {
    fn say(&self) {
        let mut console = self.console.lock();
        let Some(console) = console.take() else { return };
        let finishing = match self.step.load(Ordering::Relaxed) {
            0 => "stopping before the first step".to_string(),
            step => format!("finishing step {step}, then saving"),
        };
        let again = self.interrupted.load(Ordering::Relaxed);
        let again = if again { "; Ctrl-C again: leave now" } else { "" };
        console.print(&format!("{finishing}{again}"));
    }
}

/// Signals that request a stop: Ctrl-C, a scheduler's, or the close of the terminal. The last is
/// excluded if the process was started with it ignored (nohup).
pub fn stop_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let ignored = |signal: &i32| *signal == SIGHUP && mask >> (signal - 1) & 1 == 1;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !ignored(signal)).collect()
}

/// Makes writes beyond the user's file size limit return an error; by default SIGXFSZ ends the
/// process.
pub fn heed_size_limits() -> anyhow::Result<()> {
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

/// While ranks wait for each other, until `Signals::listen`: a stop signal ends the process at
/// once.
pub struct Waiting(iterator::Handle);

impl Waiting {
    /// Starts listening. Calls `clean` before a signal ends the process.
    pub fn begin(clean: impl FnOnce() + Send + 'static) -> anyhow::Result<Waiting> {
        let mut arriving = iterator::Signals::new(stop_signals())?;
        let waiting = Waiting(arriving.handle());
        let end = move || {
            if let Some(signal) = arriving.forever().next() {
                clean();
                emulate_default_handler(signal).ok();
            }
        };
        base::threads::spawn("signals", end)?;
        Ok(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Signals {
    /// Makes `stop_signals` request a stop (finish the step, save, exit), which is printed on
    /// `console`, and SIGUSR1 a save. A second SIGINT exits at once. A second SIGTERM does not,
    /// because Slurm sends one to the step and one to the job at a time limit. A terminal's SIGINT
    /// also reaches the supervisor of a rank, which handles it.
    pub fn listen(console: Option<Console>) -> anyhow::Result<Signals> {
        let interrupted = Arc::<AtomicBool>::default();
        let word = StopWord {
            console: Mutex::new(console),
            step: AtomicU64::new(0),
            interrupted: interrupted.clone(),
        };
        let word = Arc::new(word);
        let signals = Signals { stop: Arc::default(), save: Arc::default(), word };
        let mut heeded = stop_signals();
        if Place::is_given() {
            heeded.retain(|signal| *signal != SIGINT);
        } else {
            flag::register_conditional_shutdown(SIGINT, 128 + SIGINT, interrupted.clone())?;
        }
        flag::register(SIGINT, interrupted)?;
        for signal in &heeded {
            flag::register(*signal, signals.stop.clone())?;
        }
        let mut arriving = iterator::Signals::new(heeded)?;
        let word = signals.word.clone();
        let say = move || arriving.forever().take(1).for_each(|_| word.say());
        base::threads::spawn("signals", say)?;
        flag::register(SIGUSR1, signals.save.clone())?;
        heed_size_limits()?;
        Ok(signals)
    }

    /// Whether a stop was requested. If so, prints the message once.
    pub fn stop(&self) -> bool {
        let stop = self.stop.load(Ordering::Relaxed);
        if stop {
            self.word.say();
        }
        stop
    }

    /// Suppresses the message, because the run is over.
    pub fn over(&self) {
        self.word.console.lock().take();
    }

    /// Sets the current step.
    pub fn computing(&self, step: u64) {
        self.word.step.store(step, Ordering::Relaxed);
    }

    /// Whether a save was requested since the last call of `saved`.
    pub fn save(&self) -> bool {
        self.save.load(Ordering::Relaxed)
    }

    pub fn saved(&self) {
        self.save.store(false, Ordering::Relaxed);
    }
}
