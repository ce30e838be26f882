//! Digests of a dataset's files: of all bytes, or of pieces of a file that may have terabytes.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use base::rng;

/// Bytes per piece, and number of pieces: 16 MiB of a larger file are read, in about 0.1 s.
const PIECE: u64 = 64 << 10;
const PIECES: u64 = 256;

/// Length of a file and the digest of its bytes. `progress` receives the bytes of each read.
pub fn whole_digest(path: &Path, mut progress: impl FnMut(u64)) -> std::io::Result<(u64, u64)> {
    let mut file = File::open(path)?;
    let mut hash = Xxh3::new();
    let mut bytes = 0;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((bytes, hash.digest()));
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
        progress(read as u64);
    }
}

/// Length of a file and the digest of pieces selected by `seed`: its first and last piece and, of a
/// large file, others in between. Detects replaced content, but perhaps not a local change in a
/// large file (`whole_digest` does).
pub fn sampled_digest(path: &Path, seed: u64) -> std::io::Result<(u64, u64)> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    if bytes <= PIECE * PIECES {
        return whole_digest(path, |_| {});
    }
    let key = rng::key(seed, "dataset digest");
    let starts = (2..PIECES).map(|piece| rng::below(key, piece, bytes - PIECE));
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; PIECE as usize];
    for start in [0, bytes - PIECE].into_iter().chain(starts) {
        file.read_exact_at(&mut buffer, start)?;
        hash.update(&buffer);
    }
    Ok((bytes, hash.digest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_selects_the_pieces_of_a_large_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.bin");
        let bytes: Vec<u8> = (0..20u32 << 20)
            .map(|i| (i.wrapping_mul(0x9E37_79B1) >> 24) as u8)
            .collect();
        std::fs::write(&path, &bytes).unwrap();
        let digest = |seed| sampled_digest(&path, seed).unwrap();
        let before = digest(7);
        assert_eq!((before, before.0), (digest(7), 20 << 20));
        assert_ne!(before, digest(8));
        // Reversed, it has the same length; with a zeroed middle half, most pieces differ.
        let reversed: Vec<u8> = bytes.iter().rev().copied().collect();
        let mut zeroed = bytes.clone();
        zeroed[5 << 20..15 << 20].fill(0);
        for other in [reversed, zeroed] {
            std::fs::write(&path, other).unwrap();
            assert_ne!(before, digest(7));
        }
        // A small file is read whole, so a change of one byte is detected.
        std::fs::write(&path, &bytes[..1000]).unwrap();
        let small = digest(7);
        assert_eq!(small, whole_digest(&path, |_| {}).unwrap());
        std::fs::write(&path, [&bytes[..500], &[!bytes[500]], &bytes[501..1000]].concat()).unwrap();
        assert_ne!(small, digest(7));
    }
}
