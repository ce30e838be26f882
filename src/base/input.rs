//! Bounded reads of files that a user names, and of a run's own files.

use super::Problems;
use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{File, OpenOptions, ReadDir};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Size limit of small files: a run's status, its starts, its names.
pub const SMALL: u64 = 16 << 20;

/// Size limit of a user's file that is read whole into memory.
pub const LARGE: u64 = 4 << 30;

/// Fails if the path does not exist. Other errors are left to the later read.
pub fn is_there(path: &Path) -> Result<(), Problems> {
    match std::fs::symlink_metadata(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(Problems::one(path.display().to_string(), "does not exist", "check the path"))
        }
        _ => Ok(()),
    }
}

/// Names in a listed folder; one that is not UTF-8 is left out.
pub fn names(entries: ReadDir) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

/// Opens a regular file. Fails for a pipe or a device, because reading it might not end.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    let file = options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    is_regular(&file).map(|()| file)
}

/// Fails unless an open file is a regular one.
pub fn is_regular(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    let is = match () {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ => "a device",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {is}, not a regular file")))
}

/// Reads a regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_bounded(open(path)?, most)
}

/// Reads a user's file of at most `most` bytes. It may be a pipe, as in `<(zcat FILE)`, but not a
/// device.
pub fn read_named(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let is_pipe = path
        .metadata()
        .is_ok_and(|about| about.file_type().is_fifo());
    read_bounded(if is_pipe { File::open(path)? } else { open(path)? }, most)
}

fn read_bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it is larger than {}", super::Bytes(most)),
        ));
    }
    Ok(bytes)
}

/// Raises the limit of open files to its maximum; the default is often 1,024. Rank 0 needs a file
/// descriptor per rank, every rank some per rank of its groups, and an import one per file of a
/// tensor rank.
pub fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the call that runs out of descriptors reports it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};

    #[test]
    fn what_may_not_end_is_refused_and_what_is_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let text = folder.path().join("text");
        mkfifoat(CWD, &pipe, Mode::RUSR).unwrap();
        std::fs::write(&text, "1234").unwrap();
        let why = |path: &Path, most| read(path, most).unwrap_err().to_string();
        assert_eq!(why(&pipe, 9), "it is a pipe, not a regular file");
        assert_eq!(why(Path::new("/dev/zero"), 9), "it is a device, not a regular file");
        assert_eq!(why(folder.path(), 9), "it is a folder, not a regular file");
        assert_eq!(why(&text, 3), "it is larger than 3 B");
        assert_eq!(read(&text, 4).unwrap(), b"1234");
        assert_eq!(read_named(&text, 4).unwrap(), b"1234");
        assert!(read_named(Path::new("/dev/zero"), 9).is_err());
        assert_eq!(read(&folder.path().join("none"), 9).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_limit_of_open_files_is_raised_to_its_maximum() {
        let limit = getrlimit(Resource::Nofile);
        let low = Rlimit { current: Some(64), ..limit };
        setrlimit(Resource::Nofile, low).unwrap();
        allow_many_files();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }
}
