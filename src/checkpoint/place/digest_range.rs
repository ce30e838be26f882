//! Byte ranges of a shard with digests in the index: its header, then the chunks of its pieces.

use super::super::digest::{CHUNK, Digest};
use super::super::index::{Index, Shard, Tensor};
use super::super::read::ShardFile;
use anyhow::{Context, Result, ensure};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Byte range covered by one digest.
#[derive(Clone, Debug)]
pub struct DigestRange {
    pub bytes: Range<u64>,
    digest: Digest,
}

impl DigestRange {
    pub fn len(&self) -> usize {
        (self.bytes.end - self.bytes.start) as usize
    }

    /// Fails unless these are its bytes. `file` is the name for the message.
    pub fn compare(&self, file: &str, bytes: &[u8]) -> Result<()> {
        ensure!(
            Digest::from_bytes(bytes) == self.digest,
            "{file}: bytes {}..{} are damaged, their digest is not the one saved",
            self.bytes.start,
            self.bytes.end
        );
        Ok(())
    }
}

/// Ranges of every shard of a checkpoint, in byte order. They cover each shard completely.
pub fn list_ranges(index: &Index) -> Result<Vec<Vec<DigestRange>>> {
    list_part_ranges(&index.shards, index.tensors.iter())
}

/// Ranges of the shards that hold all pieces of these tensors, as `list_ranges`.
pub fn list_part_ranges<'t>(
    shards: &[Shard],
    tensors: impl Iterator<Item = &'t Tensor>,
) -> Result<Vec<Vec<DigestRange>>> {
    let mut ranges: Vec<Vec<DigestRange>> = shards
        .iter()
        .map(|shard| {
            vec![DigestRange { bytes: 0..shard.header_bytes, digest: shard.header_digest }]
        })
        .collect();
    for state in tensors.flat_map(|tensor| tensor.states.values()) {
        for piece in state.pieces.iter().flatten() {
            let end = piece.byte + (piece.slice.numel() * state.dtype.size()) as u64;
            let chunks = (piece.byte..end)
                .step_by(CHUNK)
                .map(|at| at..(at + CHUNK as u64).min(end))
                .zip(&piece.chunks)
                .map(|(bytes, digest)| DigestRange { bytes, digest: *digest });
            let of_shard = ranges.get_mut(piece.shard);
            of_shard.context("a piece is in no shard")?.extend(chunks);
        }
    }
    for (shard, ranges) in shards.iter().zip(&mut ranges) {
        ranges.sort_by_key(|range| range.bytes.start);
        let ends = [0]
            .into_iter()
            .chain(ranges.iter().map(|range| range.bytes.end));
        let starts = ranges
            .iter()
            .map(|range| range.bytes.start)
            .chain([shard.bytes]);
        if let Some((end, start)) = ends.zip(starts).find(|(end, start)| end != start) {
            anyhow::bail!("{}: bytes {end}..{start} have no digest", shard.file);
        }
    }
    Ok(ranges)
}

/// Local shard that is read from its start and verified.
pub struct VerifiedReader<'s> {
    path: PathBuf,
    file: ShardFile,
    rest: std::slice::Iter<'s, DigestRange>,
    read: Vec<u8>,
    /// Verified bytes that were not returned yet.
    ready: Vec<u8>,
}

impl<'s> VerifiedReader<'s> {
    pub fn open(path: &Path, bytes: u64, ranges: &'s [DigestRange]) -> Result<VerifiedReader<'s>> {
        let cannot = || format!("cannot read {}", path.display());
        let found = path.metadata().with_context(cannot)?.len();
        ensure!(found == bytes, "{} has {found} bytes, not {bytes}", path.display());
        let file = ShardFile::open(path, bytes).with_context(cannot)?;
        let read = Vec::new();
        let ready = Vec::new();
        Ok(VerifiedReader { path: path.to_path_buf(), file, rest: ranges.iter(), read, ready })
    }

    /// Next `bytes` bytes, fewer at the end.
    pub fn next(&mut self, bytes: usize) -> Result<Vec<u8>> {
        while self.ready.len() < bytes
            && let Some(range) = self.rest.next()
        {
            let place = || self.path.display().to_string();
            let read = self
                .file
                .read(range.bytes.start, range.len(), &mut self.read);
            let read = &self.read[read.with_context(|| format!("cannot read {}", place()))?];
            range.compare(&place(), read)?;
            self.ready.extend_from_slice(read);
        }
        let rest = self.ready.split_off(bytes.min(self.ready.len()));
        Ok(std::mem::replace(&mut self.ready, rest))
    }
}
