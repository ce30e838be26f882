//! Writes and reads a file per rank in the run's folder, all ranks at once. Bypasses the page
//! cache, as checkpoints do.

use anyhow::Context;
use checkpoint::disk::{BLOCK, Disk};
use checkpoint::nonce;
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Rates in GB/s.
#[derive(Debug)]
pub struct FileSpeed {
    pub write: f64,
    pub read: f64,
    /// Method of bypassing the page cache.
    pub access: &'static str,
}

/// Bytes per write and read.
const PIECE: usize = 4 << 20;

/// Maximum number of pieces: 1 GiB.
const PIECES: u64 = 256;

pub fn measure(folder: &Path, quick: bool) -> anyhow::Result<FileSpeed> {
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let temporary = Temporary(folder.join(format!(".bench-{}", nonce())));
    let seconds = if quick { 0.3 } else { 2.0 };
    let path = &temporary.0;
    let mut buffer = vec![0x5a; PIECE + BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK);
    let piece = &mut buffer[start..start + PIECE];
    let (pieces, write, direct) = write(path, piece, seconds)?;
    let (read, direct_read) = read(path, piece, pieces, seconds)?;
    let access = if direct && direct_read {
        "O_DIRECT, synced"
    } else {
        "synced, then dropped from the page cache"
    };
    Ok(FileSpeed { write, read, access })
}

/// Writes pieces for about `seconds`. Returns their number, GB/s including the sync, and whether
/// the page cache was bypassed.
fn write(path: &Path, piece: &[u8], seconds: f64) -> anyhow::Result<(u64, f64, bool)> {
    let disk = Disk::default();
    let file = disk.create(path)?;
    // Some file systems open a file for direct writes but refuse the writes.
    let direct = disk
        .direct(path)
        .filter(|file| file.write_at(&piece[..BLOCK], 0).is_ok());
    let to = direct.as_ref().unwrap_or(&file);
    let start = Instant::now();
    let mut pieces = 0;
    while pieces == 0 || pieces < PIECES && start.elapsed().as_secs_f64() < seconds {
        disk.write_at(path, to, piece, pieces * PIECE as u64)?;
        pieces += 1;
    }
    disk.sync(path, &file)?;
    Ok((pieces, gb_s(pieces, start), direct.is_some()))
}

/// Reads the first of `pieces` for `seconds`. Returns GB/s, and whether the page cache was
/// bypassed.
fn read(path: &Path, piece: &mut [u8], pieces: u64, seconds: f64) -> anyhow::Result<(f64, bool)> {
    let flags = OFlags::DIRECT.bits() as i32;
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()
        .filter(|file| file.read_at(&mut piece[..BLOCK], 0).is_ok());
    let is_direct = direct.is_some();
    let reading = || format!("cannot read {}", path.display());
    let file = direct
        .map_or_else(|| File::open(path), Ok)
        .with_context(reading)?;
    if !is_direct {
        let _ = fadvise(&file, 0, None, Advice::DontNeed); // a request
    }
    let start = Instant::now();
    let mut done = 0;
    while done < pieces && (done == 0 || start.elapsed().as_secs_f64() < seconds) {
        file.read_exact_at(piece, done * PIECE as u64)
            .with_context(reading)?;
        done += 1;
    }
    Ok((gb_s(done, start), is_direct))
}

fn gb_s(pieces: u64, start: Instant) -> f64 {
    (pieces * PIECE as u64) as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// File that is removed when the measurement ends, successfully or not.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0); // it may not exist
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_measured_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("runs/a");
        let speed = measure(&run, true).unwrap();
        assert!(speed.write > 0.0 && speed.read > 0.0, "{speed:?}");
        assert_eq!(std::fs::read_dir(&run).unwrap().count(), 0);
        std::fs::write(folder.path().join("file"), "").unwrap();
        let error = measure(&folder.path().join("file"), true).unwrap_err();
        assert!(format!("{error:#}").contains("file"), "{error:#}");
    }
}
