//! Output files of commands. A file is written as `PLACE.partial` until it is complete and on disk,
//! and only then renamed. A full disk, a kill or an interrupt therefore leaves the old file
//! unchanged. The next attempt reuses a leftover partial file. Several files that are one output
//! are a `FileSet`; an output that is a folder is a `TemporaryFolder` until it is complete.
//!
//! A partial file is locked, so two processes cannot write the same output. Symbolic links are
//! replaced, not followed. A device or a pipe (`/dev/stdout`) has nothing to lose and is written
//! directly.

mod file_set;
mod folder;
mod leftover;

pub use file_set::FileSet;
pub use folder::TemporaryFolder;
pub use leftover::{Leftover, bytes, name_removed, remove_leftover, temporary_folders};

use super::{Bytes, Problems};
use anyhow::{Context, Result};
use leftover::{is_locked_elsewhere, open_partial};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Treatment of an existing file with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is an error, reported before anything is written.
    Refused,
    /// It is replaced once the new file is complete.
    Replaced,
}

/// Size from which a reused leftover is named. Smaller ones are of a run's own small files.
const NAMED: u64 = 1 << 20;

/// Partial files and folders of this process, in the order of their creation.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// File being written. Removed if dropped before `finish`.
#[derive(Debug)]
pub struct Output {
    place: PathBuf,
    /// None if `place` is a device or a pipe.
    partial: Option<PathBuf>,
    /// Locked during writing.
    file: File,
    existing: Existing,
}

/// Writes a small file atomically.
pub fn write(place: &Path, existing: Existing, bytes: &[u8]) -> Result<()> {
    let mut output = Output::create(place, existing)?;
    output
        .write_all(bytes)
        .with_context(|| format!("cannot write {}", place.display()))?;
    output.finish()
}

/// Gives the file `new` the name `place` unless another process has taken it: the first of several
/// counts. Returns whether it was this one. `new` is removed.
pub fn claim(new: &Path, place: &Path) -> Result<bool> {
    let linked = fs::hard_link(new, place);
    fs::remove_file(new).with_context(|| format!("cannot remove {}", new.display()))?;
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        linked => linked
            .map(|()| true)
            .with_context(|| format!("cannot write {}", place.display())),
    }
}

/// Removes a file, if there is one.
pub fn remove(place: &Path) -> Result<()> {
    match fs::remove_file(place) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", place.display()))
        }
        _ => Ok(()),
    }
}

/// Fails for a path that names a folder: `runs/`.
pub fn check_is_file_path(place: &Path) -> Result<(), Problems> {
    let shown = place.display().to_string();
    if place.as_os_str().as_bytes().ends_with(b"/") || place.file_name().is_none() {
        let remedy = format!("name a file: {}/NAME", shown.trim_end_matches('/'));
        return Err(Problems::one(shown, "names a folder", remedy));
    }
    Ok(())
}

/// Fails if the path exists, even as a dangling link.
pub fn is_free(place: &Path) -> Result<()> {
    match fs::symlink_metadata(place) {
        Ok(_) => {
            let shown = place.display();
            Err(Problems::one(
                shown.to_string(),
                format!("{shown} exists"),
                "choose another output, or add --overwrite",
            )
            .into())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot stat {}", place.display())),
    }
}

impl Output {
    /// Starts writing the future file `place`. Fails if another process is writing it.
    pub fn create(place: &Path, existing: Existing) -> Result<Output> {
        check_is_file_path(place)?;
        if let Some(file) = stream(place)? {
            return Ok(Output { place: place.into(), partial: None, file, existing });
        }
        if fs::symlink_metadata(place).is_ok_and(|about| about.is_dir()) {
            let shown = place.display();
            return Err(Problems::one(shown.to_string(), "is a folder", "name a file").into());
        }
        if existing == Existing::Refused {
            is_free(place)?;
        }
        let partial = partial_path(place);
        let mut open = OPEN.lock();
        // It may be another process's: it is locked first, then emptied.
        let file = open_partial(&partial, true)
            .with_context(|| format!("cannot create {}", partial.display()))?;
        let held = is_locked_elsewhere(&file)
            .with_context(|| format!("cannot lock {}", partial.display()))?;
        // The previous holder of the lock may have finished meanwhile; this file is then the output
        // itself.
        if held || !is_at(&file, &partial)? {
            return Err(locked_error(place).into());
        }
        // Overwrites the leftover of a killed process.
        let left = file.metadata().map_or(0, |about| about.len());
        file.set_len(0)
            .inspect_err(|_| drop(fs::remove_file(&partial)))
            .with_context(|| format!("cannot empty {}", partial.display()))?;
        if left >= NAMED {
            name_removed(&[(partial.clone(), Bytes(left))]);
        }
        open.push(partial.clone());
        Ok(Output { place: place.into(), partial: Some(partial), file, existing })
    }

    /// Renames the file to its final name. An interrupt takes effect before or after.
    pub fn finish(self) -> Result<()> {
        self.sync()?;
        let mut open = OPEN.lock();
        self.rename()?;
        open.retain(|other| self.partial.as_ref() != Some(other));
        drop(open);
        self.sync_folder();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        match self.file.sync_all() {
            // A pipe has nothing to sync.
            Err(error) if self.partial.is_some() => {
                Err(error).with_context(|| format!("cannot write {}", self.place.display()))
            }
            _ => Ok(()),
        }
    }

    /// Replaces the old file by the new one atomically.
    fn rename(&self) -> Result<()> {
        let Some(partial) = &self.partial else { return Ok(()) };
        let rename = || match self.existing {
            Existing::Replaced => fs::rename(partial, &self.place),
            Existing::Refused => {
                match renameat_with(CWD, partial, CWD, &self.place, RenameFlags::NOREPLACE) {
                    // Some file systems have no RENAME_NOREPLACE.
                    Err(Errno::INVAL | Errno::NOSYS) => fs::rename(partial, &self.place),
                    done => Ok(done?),
                }
            }
        };
        rename()
            .with_context(|| format!("cannot rename the finished file to {}", self.place.display()))
    }

    /// Makes the names of its folder durable. If that fails, the files still exist.
    fn sync_folder(&self) {
        if self.partial.is_some() {
            File::open(folder(&self.place))
                .and_then(|folder| folder.sync_all())
                .ok();
        }
    }
}

/// Runs `work`, which replaces an output. An interrupt takes effect before or after.
pub fn run_uninterrupted<T>(work: impl FnOnce() -> T) -> T {
    let _open = OPEN.lock();
    work()
}

/// Removes the unfinished files and folders of this process, and returns their number. For a
/// process that exits now: nothing can be created or finished afterwards.
pub fn abandon() -> usize {
    let open = OPEN.lock();
    // In reverse: the first file of a set shows how far its renames were (`FileSet`).
    for path in open.iter().rev() {
        if fs::remove_file(path).is_err() {
            remove_folder(path).ok();
        }
    }
    MutexGuard::leak(open).len()
}

/// Removes a folder recursively with one file descriptor at a time. `fs::remove_dir_all` needs one
/// per level and fails when they have run out.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    for entry in entries {
        let path = entry.path();
        let is_folder = entry.file_type()?.is_dir();
        let removed = if is_folder { remove_folder(&path) } else { fs::remove_file(&path) };
        removed.or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(()), // another process was faster
            _ => Err(error),
        })?;
    }
    fs::remove_dir(folder)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let mut open = OPEN.lock();
        if let Some(partial) = &self.partial
            && let Some(at) = open.iter().position(|other| other == partial)
        {
            open.swap_remove(at);
            fs::remove_file(partial).ok();
        }
    }
}

/// Device or pipe at a path, or behind a link to an open file.
fn stream(place: &Path) -> Result<Option<File>> {
    let opened = fs::read_link(place).is_ok_and(|target| target.starts_with("/proc"));
    let special = fs::metadata(place).is_ok_and(|about| !about.is_file() && !about.is_dir());
    if !opened && !special {
        return Ok(None);
    }
    let file = OpenOptions::new().append(true).open(place);
    file.map(Some)
        .with_context(|| format!("cannot open {}", place.display()))
}

/// An error: another process has locked the output.
pub fn locked_error(place: &Path) -> Problems {
    Problems::one(
        place.display().to_string(),
        "another process is writing it right now",
        "wait for it, or choose another output",
    )
}

/// Whether there is a file, or a link, at a path.
fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Whether an open file is the one at a path now.
fn is_at(file: &File, path: &Path) -> Result<bool> {
    let open = file
        .metadata()
        .with_context(|| format!("cannot stat {}", path.display()))?;
    let now = fs::symlink_metadata(path).ok();
    Ok(now.is_some_and(|now| (now.dev(), now.ino()) == (open.dev(), open.ino())))
}

fn folder(place: &Path) -> &Path {
    place
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Path of a file until it is complete.
pub fn partial_path(place: &Path) -> PathBuf {
    let mut path = place.as_os_str().to_os_string();
    path.push(".partial");
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut all: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_no_other_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a");
        let mut output = Output::create(&place, Existing::Refused).unwrap();
        output.write_all(b"half").unwrap();
        assert_eq!(names(folder.path()), ["a.partial"]);
        let second = Output::create(&place, Existing::Refused)
            .unwrap_err()
            .to_string();
        assert!(second.contains("another process is writing it"), "{second}");
        // Another process takes the name without this module.
        fs::write(&place, "theirs").unwrap();
        assert!(
            output
                .finish()
                .unwrap_err()
                .to_string()
                .contains("cannot rename")
        );
        assert_eq!(
            (names(folder.path()), &*fs::read(&place).unwrap()),
            (vec!["a".into()], &b"theirs"[..])
        );

        let refused = write(&place, Existing::Refused, b"mine").unwrap_err();
        assert!(refused.is::<Problems>() && refused.to_string().contains("a exists"), "{refused}");
        drop(Output::create(&place, Existing::Replaced).unwrap());
        assert_eq!(fs::read(&place).unwrap(), b"theirs");
        write(&place, Existing::Replaced, b"mine").unwrap();
        assert_eq!(
            (names(folder.path()), &*fs::read(&place).unwrap()),
            (vec!["a".into()], &b"mine"[..])
        );
    }

    #[test]
    fn links_are_not_followed_and_folders_are_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a");
        let precious = folder.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &place).unwrap();
        assert!(write(&place, Existing::Refused, b"mine").is_err());
        write(&place, Existing::Replaced, b"mine").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        std::os::unix::fs::symlink(&precious, partial_path(&folder.path().join("b"))).unwrap();
        assert!(write(&folder.path().join("b"), Existing::Replaced, b"mine").is_err());
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        for place in [folder.path().join("c/"), folder.path().to_path_buf()] {
            let error = write(&place, Existing::Replaced, b"mine").unwrap_err();
            assert!(error.is::<Problems>(), "{error}");
        }
        write(Path::new("/dev/null"), Existing::Refused, b"gone").unwrap();
    }
}
