//! Folder of a run: its lock (one process per folder), its removal if unused, and the folders of a
//! job in it.

use anyhow::Context;
use base::{Deadline, Problems};
use comm::Place;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time that a restarted run waits for its folder's lock; NFS servers drop a client after 90 s.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);

/// Variable with the name of the task, in the processes of a series.
pub const SERIES: &str = "GPTRAIN_SERIES";

/// Name of the lock file in a run's folder.
const LOCK: &str = "run.lock";

/// Folder of the supervisors' rendezvous in a run's folder.
pub const RESTARTS: &str = "restarts";

/// Exclusive lock of the run's folder, released on drop (or by the kernel when the process dies).
pub struct FolderLock {
    _file: File,
    folder: PathBuf,
    /// Outermost folder created for it.
    created: Option<PathBuf>,
}

impl FolderLock {
    /// Creates the folder if it is missing, and locks it. Waits for the lock if its holder may be about
    /// to end: in a restarted job rank 0's last process, whose node the file server has not noticed to be
    /// gone; in a restarted series the run of the killed one, which is saving.
    pub fn take(folder: &Path) -> anyhow::Result<FolderLock> {
        let end = Deadline::after(LOCK_TIMEOUT);
        loop {
            match FolderLock::try_take(folder) {
                Err(held)
                    if held.is::<Problems>() && holder_may_end_soon() && !end.has_passed() =>
                {
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
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32); // a link may lead to a valuable file
        let open = || options.open(&path);
        let created = outermost_missing(folder);
        let mut file = fs::create_dir_all(folder)
            .and_then(|()| open())
            .with_context(|| {
                format!("cannot write in the run's folder {}: set log.folder", folder.display())
            })?;
        if !lock_exclusively(&file) {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(Problems::one(
                folder.display().to_string(),
                format!("another run is writing here ({})", holder.trim()),
                "wait for it, stop it, or give this one its own folder: --set log.folder=DIR",
            )
            .into());
        }
        let holder = format!("process {} on {}\n", std::process::id(), base::hostname());
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(holder.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(FolderLock { _file: file, folder: folder.to_path_buf(), created })
    }

    /// Removes the folder if it was created for a run that left nothing in it.
    pub fn remove_unused(&self) {
        if let Some(created) = &self.created {
            remove_unused(&self.folder, created);
        }
    }
}

/// Whether the holder of a lock may be a process that is about to end.
fn holder_may_end_soon() -> bool {
    Place::is_given() || is_task_of_series()
}

/// Whether a series (`launch::series`) started this process.
pub fn is_task_of_series() -> bool {
    std::env::var_os(SERIES).is_some()
}

/// Locks a file unless another process holds it. `is_unlocked` may hold it for a moment.
fn lock_exclusively(file: &File) -> bool {
    (0..5).any(|tried| {
        std::thread::sleep(Duration::from_millis(5 * tried));
        flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}

/// Whether a folder has the lock file of a run, and no process holds it.
pub fn is_unlocked(folder: &Path) -> bool {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = options.open(folder.join(LOCK));
    file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
}

/// Whether supervisors of this run may still start ranks.
pub fn is_supervised(folder: &Path) -> bool {
    folder.join(RESTARTS).exists()
}

/// Outermost missing folder on the path.
pub fn outermost_missing(folder: &Path) -> Option<PathBuf> {
    folder
        .ancestors()
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        .last()
        .map(Path::to_path_buf)
}

/// Removes a run's folder, up to `outermost`, if it contains only its lock.
pub fn remove_unused(folder: &Path, outermost: &Path) {
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
    for folder in folder
        .ancestors()
        .take_while(|folder| folder.starts_with(outermost))
    {
        let _ = fs::remove_dir(folder);
    }
}

/// Folder of a job in the folder `name` of a run: "restarts/job-7", "failures/process-123".
pub fn job_folder(run: &Path, name: &str, job: &str) -> PathBuf {
    run.join(name).join(
        job.chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
            .collect::<String>(),
    )
}
