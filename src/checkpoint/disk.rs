//! System calls for saving a checkpoint. Errors name the path, writes bypass the page cache, and
//! tests can make any call fail.

use anyhow::Context;
use base::output;
use libc::{EINVAL, ENOSYS};
use parking_lot::Mutex;
use rustix::fs::{CWD, FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Alignment of offsets, lengths and addresses of direct writes.
pub const BLOCK: usize = 4096;

/// Size below which files are written through the page cache.
pub const DIRECT: u64 = 1 << 20;

/// Recorded call, for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    MakeFolder(PathBuf),
    Create(PathBuf),
    Write(PathBuf),
    /// Sync of a file or a folder.
    Sync(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

/// Fault that tests inject.
#[derive(Clone, Copy, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// Call number `at`, from 0, fails with this error.
    Error { at: usize, errno: i32 },
    /// Call number `at` and all later ones do nothing and fail, as if the machine had crashed.
    Crash { at: usize },
    /// Every write accepts about half of its bytes.
    Short,
    /// Call number `at`, a write, stores a wrong byte and reports success.
    Wrong { at: usize },
}

/// Disk, with optional fault injection.
#[derive(Debug, Default)]
pub struct Disk {
    fault: Fault,
    calls: Mutex<Vec<Call>>,
    recording: bool,
}

impl Disk {
    /// Disk that fails as specified and records every call.
    pub fn failing(fault: Fault) -> Disk {
        Disk { fault, recording: true, ..Disk::default() }
    }

    /// Calls so far, including failed ones. An ordinary disk records none.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    pub fn make_folder(&self, path: &Path) -> anyhow::Result<()> {
        self.call(Call::MakeFolder(path.to_path_buf()), || fs::create_dir(path))
            .with_context(|| format!("cannot create {}", path.display()))
    }

    /// Creates a file that must not exist yet.
    pub fn create(&self, path: &Path) -> anyhow::Result<File> {
        self.call(Call::Create(path.to_path_buf()), || {
            OpenOptions::new().write(true).create_new(true).open(path)
        })
        .with_context(|| format!("cannot create {}", path.display()))
    }

    /// Reserves the length of a new file if the file system can, so that a lack of space shows
    /// early.
    pub fn allocate(&self, path: &Path, file: &File, len: u64) -> anyhow::Result<()> {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            done => {
                done.with_context(|| format!("cannot reserve {len} bytes of {}", path.display()))
            }
        }
    }

    /// Opens the same file for writes that bypass the page cache, if the file system supports it.
    pub fn direct(&self, path: &Path) -> Option<File> {
        let flags = OFlags::DIRECT.bits() as i32;
        OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)
            .ok()
    }

    pub fn write_at(&self, path: &Path, file: &File, bytes: &[u8], at: u64) -> anyhow::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let here = at + done as u64;
            let wrote = self
                .call(Call::Write(path.to_path_buf()), || {
                    match self.put(file, &rest[..self.accepted_bytes(rest.len())], here) {
                        Ok(0) => Err(ErrorKind::WriteZero.into()),
                        written => written,
                    }
                })
                .with_context(|| {
                    let end = at + bytes.len() as u64;
                    format!("cannot write bytes {here}..{end} of {}", path.display())
                })?;
            done += wrote;
        }
        Ok(())
    }

    fn put(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
        match self.fault {
            // The call has been counted already.
            Fault::Wrong { at: wrong } if self.calls.lock().len() == wrong + 1 => {
                let mut other = bytes.to_vec();
                other[0] ^= 1;
                file.write_at(&other, at)
            }
            _ => file.write_at(bytes, at),
        }
    }

    /// Number of bytes, out of `len`, that one write accepts.
    fn accepted_bytes(&self, len: usize) -> usize {
        match self.fault {
            Fault::Short if len > BLOCK => len.div_ceil(2).next_multiple_of(BLOCK).min(len),
            _ => len,
        }
    }

    pub fn sync(&self, path: &Path, file: &File) -> anyhow::Result<()> {
        self.call(Call::Sync(path.to_path_buf()), || file.sync_all())
            .with_context(|| format!("cannot sync {}", path.display()))
    }

    pub fn sync_folder(&self, path: &Path) -> anyhow::Result<()> {
        let folder = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        self.sync(path, &folder)
    }

    /// Writes and syncs a small file.
    pub fn write_file(&self, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        let file = self.create(path)?;
        self.write_at(path, &file, bytes, 0)?;
        self.sync(path, &file)
    }

    pub fn rename(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        self.call(Call::Rename(from.to_path_buf(), to.to_path_buf()), || fs::rename(from, to))
            .with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))
    }

    /// Exchanges two folders atomically; by renames if the file system cannot, one of them to
    /// `aside`.
    pub fn exchange(&self, temporary: &Path, old: &Path, aside: &Path) -> anyhow::Result<()> {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        match self.call(Call::Rename(temporary.to_path_buf(), old.to_path_buf()), || {
            Ok(rustix::fs::renameat_with(CWD, temporary, CWD, old, flags)?)
        }) {
            Err(error) if matches!(error.raw_os_error(), Some(EINVAL | ENOSYS)) => {
                self.rename(old, aside)?;
                self.rename(temporary, old)
                    .inspect_err(|_| drop(self.rename(aside, old)))?;
                self.rename(aside, temporary)
            }
            done => done.with_context(|| format!("cannot replace {}", old.display())),
        }
    }

    pub fn remove_folder(&self, path: &Path) -> anyhow::Result<()> {
        self.call(Call::Remove(path.to_path_buf()), || output::remove_folder(path))
            .with_context(|| format!("cannot remove {}", path.display()))
    }

    pub fn remove_file(&self, path: &Path) -> anyhow::Result<()> {
        self.call(Call::Remove(path.to_path_buf()), || fs::remove_file(path))
            .with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Makes a call, and repeats it if a signal interrupted it.
    fn call<T>(&self, call: Call, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
        loop {
            match self.fault(&call).and_then(|()| make()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn fault(&self, call: &Call) -> io::Result<()> {
        if !self.recording {
            return Ok(());
        }
        let mut calls = self.calls.lock();
        let number = calls.len();
        calls.push(call.clone());
        match self.fault {
            Fault::Error { at, errno } if number == at => Err(io::Error::from_raw_os_error(errno)),
            Fault::Crash { at } if number >= at => Err(io::Error::other("crashed")),
            _ => Ok(()),
        }
    }
}

/// Unique string per call, from process, time and a counter.
pub fn nonce() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let nanos = base::unix_time().as_nanos() as u64;
    let seed = (nanos, std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed));
    format!("{:012x}", xxhash_rust::xxh3::xxh3_64(format!("{seed:?}").as_bytes()) >> 16)
}
