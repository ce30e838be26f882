//! Writes a checkpoint: every rank its shards, one rank the index; then the folder is renamed.

use super::digest::{CHUNK, Digest};
use super::disk::{BLOCK, DIRECT, Disk};
use super::folder;
use super::index::{self, Copied, Index, Piece, SHARD_END, Shard, State, Tensor, TensorState};
use super::safetensors;
use anyhow::Context;
use base::{Bytes, threads};
use engine::{Replica, StateSpec, TensorSlice};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Bytes per write.
const BUFFER: usize = 8 << 20;

/// Rectangle of a state that a rank writes.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    pub name: &'a str,
    /// Index of the parameter in the model, which orders the index file.
    pub number: usize,
    /// Shape of the whole parameter.
    pub shape: &'a [usize],
    pub decay: bool,
    pub state: StateSpec,
    pub slice: TensorSlice,
    /// Copy of the state. The first is written; only digests of the others are saved.
    pub replica: Replica,
    /// Values, row by row, in memory order.
    pub bytes: &'a [u8],
}

/// Result of one rank's write: plain data that any rank can publish.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WrittenPart {
    pub shards: Vec<Shard>,
    /// Tensors by their number in the model.
    pub tensors: BTreeMap<usize, Tensor>,
    /// Parts of copies of tensors that other ranks wrote, with their numbers.
    pub copies: Vec<(usize, Copied)>,
}

/// Writes `checkpoints/step-N` of a single-rank run: into a temporary folder, synced, then renamed.
/// A failure leaves every older checkpoint unchanged.
pub fn save(
    disk: &Disk,
    checkpoints: &Path,
    shares: &[Share],
    state: &State,
) -> anyhow::Result<PathBuf> {
    let saved = shares.iter().filter(|share| share.state.saved);
    let bytes = saved
        .map(|s| (s.slice.numel() * s.state.dtype.size()) as u64)
        .sum();
    fs::create_dir_all(checkpoints)
        .with_context(|| format!("cannot create {}", checkpoints.display()))?;
    let temporary = folder::temporary_folder(checkpoints, state.progress.step);
    begin(disk, &temporary, state.progress.step, bytes)?;
    let written = write_part(disk, &temporary, 0, shares, state);
    let published = written.and_then(|part| publish(disk, &temporary, vec![part], state));
    published.map_err(|error| abandon(disk, &temporary, state.progress.step, error))
}

/// Creates the `temporary` folder for all ranks' data of `step`, if the disk has space for `bytes`.
/// Called by one rank of the world. Does not create the run's folder, which may be unmounted.
pub fn begin(disk: &Disk, temporary: &Path, step: u64, bytes: u64) -> anyhow::Result<()> {
    let make = || {
        let checkpoints = temporary
            .parent()
            .context("a checkpoint has a parent folder")?;
        match fs::create_dir(checkpoints) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(error).with_context(|| format!("cannot create {}", checkpoints.display()))?
            }
            _ => space(checkpoints, bytes)?,
        }
        disk.make_folder(temporary)
    };
    make().map_err(|error| abandon(disk, temporary, step, error))
}

/// Removes the partial checkpoint after a rank failed, and adds context to the error. Called by the
/// rank that called `begin`, when no rank writes any more.
pub fn abandon(disk: &Disk, temporary: &Path, step: u64, error: anyhow::Error) -> anyhow::Error {
    discard(disk, temporary);
    not_saved(temporary, step, error)
}

/// Removes a partial checkpoint, and ignores errors.
pub fn discard(disk: &Disk, temporary: &Path) {
    if temporary.exists() {
        let _ = disk.remove_folder(temporary); // a partial checkpoint must not fill the disk
    }
}

/// Adds context to the error of a failed save.
pub fn not_saved(temporary: &Path, step: u64, error: anyhow::Error) -> anyhow::Error {
    let intact = temporary.parent().unwrap_or(temporary).display();
    error.context(format!(
        "the checkpoint of step {step} was not saved; those in {intact} are unchanged"
    ))
}

/// Fails early if an existing folder does not have enough space.
pub fn space(checkpoints: &Path, need: u64) -> anyhow::Result<()> {
    let free = free_space(checkpoints)?;
    if need < free.0 {
        return Ok(());
    }
    Err(io::Error::from(Errno::NOSPC)).with_context(|| {
        format!(
            "no space left in {}: a checkpoint needs {}, {} are free; \
             free some, or move log.folder, or lower checkpoint.keep_last",
            checkpoints.display(),
            Bytes(need),
            free
        )
    })
}

/// Space that the disk of a folder has left.
pub fn free_space(folder: &Path) -> anyhow::Result<Bytes> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(Bytes(stat.f_bavail * stat.f_frsize))
}

/// Whether the file system of a folder is in memory: tmpfs or ramfs.
pub fn is_in_memory(folder: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(folder).is_ok_and(|found| matches!(found.f_type, TMPFS | RAMFS))
}

/// Writes one rank's shards, one per state, concurrently. None if it has nothing to write.
pub fn write_part(
    disk: &Disk,
    temporary: &Path,
    rank: usize,
    shares: &[Share],
    state: &State,
) -> anyhow::Result<WrittenPart> {
    let mut part = WrittenPart::default();
    let (first, copies): (Vec<Share>, Vec<Share>) =
        shares.iter().partition(|share| share.replica.is_first());
    for share in &copies {
        let states = BTreeMap::from([(share.state.name.to_string(), digest(share))]);
        part.copies
            .push((share.number, Copied { replica: share.replica, states }));
    }
    let mut files: Vec<(&str, Vec<Share>)> = Vec::new();
    for share in first.iter().filter(|share| share.state.saved) {
        match files.iter_mut().find(|(name, _)| *name == share.state.name) {
            Some((_, shares)) => shares.push(*share),
            None => files.push((share.state.name, vec![*share])),
        }
    }
    let shards = std::thread::scope(|scope| {
        let write = |shares| move || write_shard(disk, temporary, rank, shares, state);
        let start = |shares| threads::spawn_scoped(scope, "shard", write(shares));
        let threads: Vec<_> = files
            .iter()
            .map(|(_, shares)| start(shares.as_slice()))
            .collect();
        let mut shards = Vec::new();
        for ((_, shares), thread) in files.iter().zip(threads) {
            shards.push(match thread {
                Ok(thread) => thread
                    .join()
                    .expect("the thread that writes a shard panicked"),
                Err(_) => write(shares.as_slice())(), // the system has no more threads
            });
        }
        shards
    });
    // If states share memory, the digest is known already.
    let mut known = BTreeMap::new();
    for ((_, shares), shard) in files.iter().zip(shards) {
        let (shard, written) = shard?;
        for (share, (digest, mut piece)) in shares.iter().zip(written) {
            piece.shard = part.shards.len();
            known.insert((share.bytes.as_ptr(), share.bytes.len()), digest);
            add(&mut part.tensors, share.number, entry(share, digest, Some(vec![piece])));
        }
        part.shards.push(shard);
    }
    for share in first.iter().filter(|share| !share.state.saved) {
        let known = known.get(&(share.bytes.as_ptr(), share.bytes.len()));
        let digest = known.copied().unwrap_or_else(|| digest(share));
        add(&mut part.tensors, share.number, entry(share, digest, None));
    }
    Ok(part)
}

/// Removes files that a rank may have written of its part, before it writes again.
pub fn remove_part(
    disk: &Disk,
    temporary: &Path,
    rank: usize,
    shares: &[Share],
) -> anyhow::Result<()> {
    let states: BTreeSet<&str> = shares.iter().map(|share| share.state.name).collect();
    let files = states
        .into_iter()
        .map(|state| temporary.join(shard_name(state, rank)));
    files
        .filter(|file| file.exists())
        .try_for_each(|file| disk.remove_file(&file))
}

fn shard_name(state: &str, rank: usize) -> String {
    format!("{state}-{rank:05}{SHARD_END}")
}

/// Digest of a share's values, by their indices in the whole state.
fn digest(share: &Share) -> Digest {
    let cols = share.shape[share.shape.len() - 1];
    let [_, cols] = share.state.extent.shape([1, cols]);
    Digest::from_slice(cols, &share.slice, share.state.dtype, share.bytes)
}

/// Entry of a share in the index.
fn entry(share: &Share, digest: Digest, pieces: Option<Vec<Piece>>) -> Tensor {
    let StateSpec { name, dtype, extent, .. } = share.state;
    let state = TensorState { dtype, extent, digest, pieces };
    Tensor {
        name: share.name.to_string(),
        shape: share.shape.to_vec(),
        decay: share.decay,
        states: BTreeMap::from([(name.to_string(), state)]),
        copies: Vec::new(),
    }
}

/// Writes shares of one state to a file. Returns the file, and the digest and location of each
/// share.
fn write_shard(
    disk: &Disk,
    temporary: &Path,
    rank: usize,
    shares: &[Share],
    state: &State,
) -> anyhow::Result<(Shard, Vec<(Digest, Piece)>)> {
    let kept = shares[0].state.name;
    let file = shard_name(kept, rank);
    let dtype = |share: &Share| safetensors::dtype_name(share.state.dtype);
    let wanted: Vec<_> = shares
        .iter()
        .map(|s| (piece_name(s), dtype(s), piece_shape(s)))
        .collect();
    let metadata = BTreeMap::from([
        ("format", "pt".to_string()), // other readers expect this
        ("run", state.run.clone()),
        ("step", state.progress.step.to_string()),
        ("kept", kept.to_string()),
    ]);
    let (header, data_bytes) = safetensors::header(&wanted, &metadata, BLOCK)?;
    let bytes = header.len() as u64 + data_bytes;
    let mut out = Stream::create(disk, temporary.join(&file), bytes)?;
    out.push(&header)?;
    let mut written = Vec::new();
    for share in shares {
        let len = share.slice.numel() * share.state.dtype.size();
        assert_eq!(share.bytes.len(), len, "{}", share.name);
        let byte = out.position();
        let mut chunks = Vec::new();
        for chunk in share.bytes.chunks(CHUNK) {
            chunks.push(Digest::from_bytes(chunk)); // of memory, before it is written
            out.push(chunk)?;
        }
        written.push((digest(share), Piece { shard: 0, byte, slice: share.slice, chunks }));
    }
    out.finish()?;
    let header_bytes = header.len() as u64;
    let header_digest = Digest::from_bytes(&header);
    Ok((Shard { file, bytes, header_bytes, header_digest }, written))
}

/// Name of the parameter, with the rectangle if it is not the whole state.
fn piece_name(share: &Share) -> String {
    let TensorSlice { at: [row, col], size: [rows, cols] } = share.slice;
    let whole_cols = share.shape[share.shape.len() - 1];
    let all = share.shape.iter().product::<usize>();
    let whole = share.state.extent.shape([all / whole_cols, whole_cols]);
    if [rows, cols] == whole {
        share.name.to_string()
    } else {
        format!("{}[{row}:{},{col}:{}]", share.name, row + rows, col + cols)
    }
}

fn piece_shape(share: &Share) -> Vec<usize> {
    let size = share.slice.size;
    if share.shape.len() == 1 { vec![size[1]] } else { size.to_vec() }
}

/// Writes the index of all ranks' data to `temporary`, and renames the folder.
pub fn publish(
    disk: &Disk,
    temporary: &Path,
    parts: Vec<WrittenPart>,
    state: &State,
) -> anyhow::Result<PathBuf> {
    publish_index(disk, temporary, &index_text(parts, state)?, state.progress.step, false)
}

/// Text of the index of all ranks' data.
pub fn index_text(parts: Vec<WrittenPart>, state: &State) -> anyhow::Result<String> {
    let WrittenPart { shards, tensors, .. } = join(parts);
    let index = Index::new(state.clone(), tensors.into_values().collect(), shards);
    index
        .check()
        .context("what the ranks wrote does not fit together")?;
    index.text()
}

/// Writes an index to `temporary`, and renames the folder. If any call failed, repeating it with
/// `again` completes it.
pub fn publish_index(
    disk: &Disk,
    temporary: &Path,
    index: &str,
    step: u64,
    again: bool,
) -> anyhow::Result<PathBuf> {
    let checkpoints = temporary
        .parent()
        .context("a checkpoint has a parent folder")?;
    let folder = checkpoints.join(folder::name(step));
    let holds = |folder: &Path| {
        fs::read(folder.join(index::NAME)).is_ok_and(|text| text == index.as_bytes())
    };
    if again && holds(&folder) {
        disk.sync_folder(checkpoints)?;
        discard(disk, temporary); // the folder that it replaced
        return Ok(folder);
    }
    let index_file = temporary.join(index::NAME);
    if again && index_file.exists() {
        disk.remove_file(&index_file)?;
    }
    disk.write_file(&index_file, index.as_bytes())?;
    disk.sync_folder(temporary)?;
    if folder.exists() {
        let aside = folder::replaced_folder(checkpoints, step);
        disk.exchange(temporary, &folder, &aside)?; // a run that resumed from an older step
        disk.sync_folder(checkpoints)?;
        disk.remove_folder(temporary)?;
    } else {
        disk.rename(temporary, &folder)?;
        disk.sync_folder(checkpoints)?;
    }
    Ok(folder)
}

/// Merges the parts of all ranks.
fn join(parts: Vec<WrittenPart>) -> WrittenPart {
    let mut whole = WrittenPart::default();
    for part in parts {
        let first = whole.shards.len();
        whole.shards.extend(part.shards);
        for (number, mut tensor) in part.tensors {
            let pieces = tensor
                .states
                .values_mut()
                .filter_map(|state| state.pieces.as_mut());
            pieces.flatten().for_each(|piece| piece.shard += first);
            add(&mut whole.tensors, number, tensor);
        }
        whole.copies.extend(part.copies);
    }
    for (number, part) in std::mem::take(&mut whole.copies) {
        if let Some(tensor) = whole.tensors.get_mut(&number) {
            match tensor
                .copies
                .iter_mut()
                .find(|copy| copy.replica == part.replica)
            {
                Some(copy) => copy.add(&part),
                None => tensor.copies.push(part),
            }
        }
    }
    whole
}

/// Merges further data of a tensor.
fn add(tensors: &mut BTreeMap<usize, Tensor>, number: usize, part: Tensor) {
    let Some(whole) = tensors.get_mut(&number) else {
        tensors.insert(number, part);
        return;
    };
    for (name, more) in part.states {
        let Some(state) = whole.states.get_mut(&name) else {
            whole.states.insert(name, more);
            continue;
        };
        state.digest = state.digest.and(more.digest);
        if let (Some(pieces), Some(more)) = (&mut state.pieces, more.pieces) {
            pieces.extend(more);
        }
    }
}

/// File being written sequentially, in large whole blocks that bypass the page cache. Saved data is
/// not read again and must not evict pages that training reads.
struct Stream<'d> {
    disk: &'d Disk,
    path: PathBuf,
    file: File,
    direct: Option<File>,
    buffer: Vec<u8>,
    /// First aligned byte of the buffer.
    start: usize,
    held: usize,
    written: u64,
}

impl<'d> Stream<'d> {
    fn create(disk: &'d Disk, path: PathBuf, len: u64) -> anyhow::Result<Stream<'d>> {
        let file = disk.create(&path)?;
        disk.allocate(&path, &file, len)?;
        let direct = if len < DIRECT { None } else { disk.direct(&path) };
        let size = BUFFER.min(len as usize).next_multiple_of(BLOCK);
        let buffer = vec![0; size + BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK);
        Ok(Stream { disk, path, file, direct, buffer, start, held: 0, written: 0 })
    }

    /// Bytes pushed so far.
    fn position(&self) -> u64 {
        self.written + self.held as u64
    }

    fn push(&mut self, mut bytes: &[u8]) -> anyhow::Result<()> {
        let size = self.buffer.len() - BLOCK;
        while !bytes.is_empty() {
            let n = bytes.len().min(size - self.held);
            let at = self.start + self.held;
            self.buffer[at..at + n].copy_from_slice(&bytes[..n]);
            self.held += n;
            bytes = &bytes[n..];
            if self.held == size {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes whole blocks directly, and the rest (at the end of the file) through the page cache.
    fn flush(&mut self) -> anyhow::Result<()> {
        let whole = self.held / BLOCK * BLOCK;
        let (blocks, rest) = self.buffer[self.start..self.start + self.held].split_at(whole);
        let file = self.direct.as_ref().unwrap_or(&self.file);
        if !blocks.is_empty() {
            self.disk.write_at(&self.path, file, blocks, self.written)?;
        }
        if !rest.is_empty() {
            self.disk
                .write_at(&self.path, &self.file, rest, self.written + whole as u64)?;
        }
        self.written += self.held as u64;
        self.held = 0;
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.flush()?;
        self.disk.sync(&self.path, &self.file)
    }
}
