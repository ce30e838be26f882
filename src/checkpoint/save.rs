//! Writing a checkpoint: every rank its shards, one rank the index; then the folder gets its name.

use super::digest::{CHUNK, Digest, Values};
use super::disk::{BLOCK, DIRECT, Disk};
use super::folder;
use super::index::{
    self, Copied, Index, Kept, Live, Piece, SHARD_END, Shard, State, Tensor, moment_name,
};
use super::safetensors;
use crate::base::Bytes;
use crate::engine::{Moment, Replica};
use crate::manifest::Model;
use crate::model::parameters;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Bytes in one write.
const BUFFER: usize = 8 << 20;

/// A rectangle of a weight that a rank writes, with what is kept of it.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    pub name: &'a str,
    /// Of the weight in the model: the index is in this order.
    pub number: usize,
    /// Of the whole weight.
    pub shape: &'a [usize],
    pub decay: bool,
    /// First row and column, rows and columns; a vector is one row.
    pub at: [usize; 2],
    pub size: [usize; 2],
    /// The first copy of a weight is written; digests are kept of the others.
    pub replica: Replica,
    /// Master, first and second moment, row by row.
    pub kept: [&'a [f32]; 3],
    pub live: Values<'a>,
}

/// What one rank wrote: plain data, which any rank can publish.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub shards: Vec<Shard>,
    /// By their number in the model.
    pub tensors: BTreeMap<usize, Tensor>,
    /// Parts of copies of the tensors that other ranks wrote, with their numbers.
    pub copies: Vec<(usize, Copied)>,
}

/// Writes `checkpoints/step-N` of a run of one rank: into a fresh folder, synced, then renamed. A
/// failure leaves every older checkpoint as it was.
pub fn save(
    disk: &Disk,
    checkpoints: &Path,
    shares: &[Share],
    state: &State,
) -> anyhow::Result<PathBuf> {
    let bytes = shares.iter().map(|s| 12 * (s.size[0] * s.size[1]) as u64).sum();
    let fresh = begin(disk, checkpoints, state.progress.step, bytes)?;
    let written = write_part(disk, &fresh, 0, shares, state);
    let published = written.and_then(|part| publish(disk, &fresh, vec![part], state));
    published.map_err(|error| abandon(disk, &fresh, state.progress.step, error))
}

/// Bytes of a model's tensors in a checkpoint, over all ranks.
pub fn saved_bytes(model: &Model) -> u64 {
    12 * parameters(&Model { vocab_padded: model.vocab, ..model.clone() })
}

/// Makes the fresh folder that all ranks write `step` into, if there is room for all their bytes.
/// For one rank of the world; the others are told its name.
pub fn begin(disk: &Disk, checkpoints: &Path, step: u64, bytes: u64) -> anyhow::Result<PathBuf> {
    let fresh = folder::fresh(checkpoints, step);
    let make = || {
        fs::create_dir_all(checkpoints)
            .with_context(|| format!("cannot create {}", checkpoints.display()))?;
        space(checkpoints, bytes)?;
        disk.make_folder(&fresh)
    };
    make().map_err(|error| abandon(disk, &fresh, step, error))?;
    Ok(fresh)
}

/// Removes what ranks have written of a checkpoint when one of them failed, and says so. For the
/// rank that began it, when no other writes any more.
pub fn abandon(disk: &Disk, fresh: &Path, step: u64, error: anyhow::Error) -> anyhow::Error {
    if fresh.exists() {
        let _ = disk.remove_folder(fresh); // what is left of it must not fill the disk
    }
    let intact = fresh.parent().unwrap_or(fresh).display();
    error.context(format!(
        "checkpoint of step {step} was not saved; those in {intact} are as they were"
    ))
}

/// Says no before writing what cannot fit.
fn space(checkpoints: &Path, need: u64) -> anyhow::Result<()> {
    let stat = rustix::fs::statvfs(checkpoints)?;
    let free = stat.f_bavail * stat.f_frsize;
    ensure!(
        need < free,
        "no space left in {}: a checkpoint needs {}, {} are free; \
         free some, or move log.folder, or lower checkpoint.keep_last",
        checkpoints.display(),
        Bytes(need),
        Bytes(free)
    );
    Ok(())
}

/// Writes one rank's shards, one for each thing kept, side by side; none if it has nothing to write.
pub fn write_part(
    disk: &Disk,
    fresh: &Path,
    rank: usize,
    shares: &[Share],
    state: &State,
) -> anyhow::Result<Part> {
    let (shares, copies): (Vec<Share>, Vec<Share>) =
        shares.iter().partition(|share| share.replica.is_first());
    let shares = &shares[..];
    let mut part =
        Part { copies: copies.iter().map(|c| (c.number, copied(c))).collect(), ..Part::default() };
    if shares.is_empty() {
        return Ok(part);
    }
    let shards = std::thread::scope(|scope| {
        let write = |moment| move || write_shard(disk, fresh, rank, moment, shares, state);
        let threads = Moment::ALL.map(|moment| scope.spawn(write(moment)));
        threads.map(|thread| thread.join().expect("the thread that writes a shard panicked"))
    });
    let mut tensors: Vec<Tensor> = shares.iter().map(blank).collect();
    for (moment, shard) in Moment::ALL.into_iter().zip(shards) {
        let (shard, kept) = shard?;
        for (tensor, mut kept) in tensors.iter_mut().zip(kept) {
            kept.pieces[0].shard = part.shards.len();
            *tensor.kept_mut(moment) = kept;
        }
        part.shards.push(shard);
    }
    for (mut tensor, share) in tensors.into_iter().zip(shares) {
        tensor.live.digest = match share.live {
            Values::F32(_) => tensor.master.digest,
            live => digest(share, live),
        };
        add(&mut part.tensors, share.number, tensor);
    }
    Ok(part)
}

/// Of values of a share, by their places in the whole weight.
fn digest(share: &Share, values: Values) -> Digest {
    let cols = share.shape[share.shape.len() - 1];
    Digest::of_rectangle(cols, share.at, share.size[1], values)
}

fn copied(share: &Share) -> Copied {
    let [master, first_moment, second_moment] =
        share.kept.map(|values| digest(share, Values::F32(values)));
    let live = match share.live {
        Values::F32(_) => master,
        live => digest(share, live),
    };
    Copied { replica: share.replica, live, master, first_moment, second_moment }
}

/// A share's row in the index, its digests still missing.
fn blank(share: &Share) -> Tensor {
    Tensor {
        name: share.name.to_string(),
        shape: share.shape.to_vec(),
        decay: share.decay,
        live: Live { dtype: share.live.dtype().to_string(), digest: Digest::default() },
        master: Kept::default(),
        first_moment: Kept::default(),
        second_moment: Kept::default(),
        copies: Vec::new(),
    }
}

fn write_shard(
    disk: &Disk,
    fresh: &Path,
    rank: usize,
    moment: Moment,
    shares: &[Share],
    state: &State,
) -> anyhow::Result<(Shard, Vec<Kept>)> {
    let file = format!("{}-{rank:05}{SHARD_END}", moment_name(moment));
    let wanted: Vec<_> = shares.iter().map(|s| (piece_name(s), "F32", piece_shape(s))).collect();
    let metadata = BTreeMap::from([
        ("format", "pt".to_string()), // what the world's readers expect to see
        ("run", state.run.clone()),
        ("step", state.progress.step.to_string()),
        ("kept", moment_name(moment).to_string()),
    ]);
    let (header, data_bytes) = safetensors::header(&wanted, &metadata, BLOCK)?;
    let bytes = header.len() as u64 + data_bytes;
    let mut out = Stream::create(disk, fresh.join(&file), bytes)?;
    out.push(&header)?;
    let mut kept = Vec::new();
    for share in shares {
        let values = share.kept[moment as usize];
        assert_eq!(values.len(), share.size[0] * share.size[1], "{}", share.name);
        let byte = out.position();
        let mut chunks = Vec::new();
        for chunk in bytemuck::cast_slice::<f32, u8>(values).chunks(CHUNK) {
            chunks.push(Digest::of(chunk)); // of memory, before it is written
            out.push(chunk)?;
        }
        let digest = digest(share, Values::F32(values));
        let piece = Piece { shard: 0, byte, at: share.at, size: share.size, chunks };
        kept.push(Kept { digest, pieces: vec![piece] });
    }
    out.finish()?;
    let (header_bytes, header_digest) = (header.len() as u64, Digest::of(&header));
    Ok((Shard { file, bytes, header_bytes, header_digest }, kept))
}

/// The weight's name, and which part of it where it is not the whole.
fn piece_name(share: &Share) -> String {
    let ([row, col], [rows, cols]) = (share.at, share.size);
    match rows * cols == share.shape.iter().product::<usize>() {
        true => share.name.to_string(),
        false => format!("{}[{row}:{},{col}:{}]", share.name, row + rows, col + cols),
    }
}

fn piece_shape(share: &Share) -> Vec<usize> {
    if share.shape.len() == 1 { vec![share.size[1]] } else { share.size.to_vec() }
}

/// Writes the index of what all ranks wrote into `fresh`, and gives the folder its name.
pub fn publish(
    disk: &Disk,
    fresh: &Path,
    parts: Vec<Part>,
    state: &State,
) -> anyhow::Result<PathBuf> {
    let Part { shards, tensors, .. } = join(parts);
    let index = Index::new(state.clone(), tensors.into_values().collect(), shards);
    index.check().context("what the ranks wrote does not fit together")?;
    disk.write_file(&fresh.join(index::NAME), index.text()?.as_bytes())?;
    disk.sync_folder(fresh)?;
    let checkpoints = fresh.parent().context("a checkpoint has a parent folder")?;
    let folder = checkpoints.join(folder::name(state.progress.step));
    if folder.exists() {
        disk.exchange(fresh, &folder)?; // a run resumed from an older step
        disk.sync_folder(checkpoints)?;
        disk.remove_folder(fresh)?;
    } else {
        disk.rename(fresh, &folder)?;
        disk.sync_folder(checkpoints)?;
    }
    Ok(folder)
}

/// The parts of all ranks as one.
fn join(parts: Vec<Part>) -> Part {
    let mut whole = Part::default();
    for part in parts {
        let first = whole.shards.len();
        whole.shards.extend(part.shards);
        for (number, mut tensor) in part.tensors {
            for moment in Moment::ALL {
                tensor.kept_mut(moment).pieces.iter_mut().for_each(|piece| piece.shard += first);
            }
            add(&mut whole.tensors, number, tensor);
        }
        whole.copies.extend(part.copies);
    }
    for (number, part) in std::mem::take(&mut whole.copies) {
        if let Some(tensor) = whole.tensors.get_mut(&number) {
            match tensor.copies.iter_mut().find(|copy| copy.replica == part.replica) {
                Some(copy) => *copy = copy.and(part),
                None => tensor.copies.push(part),
            }
        }
    }
    whole
}

/// Adds what more is known of a tensor.
fn add(tensors: &mut BTreeMap<usize, Tensor>, number: usize, part: Tensor) {
    let Some(whole) = tensors.get_mut(&number) else {
        tensors.insert(number, part);
        return;
    };
    whole.live.digest = whole.live.digest.and(part.live.digest);
    for moment in Moment::ALL {
        let (kept, more) = (whole.kept_mut(moment), part.kept(moment));
        kept.digest = kept.digest.and(more.digest);
        kept.pieces.extend(more.pieces.iter().cloned());
    }
}

/// A file being written from its start, in large whole blocks around the page cache: what a save
/// writes is not read again, and must not push out what training reads.
struct Stream<'d> {
    disk: &'d Disk,
    path: PathBuf,
    file: File,
    direct: Option<File>,
    buffer: Vec<u8>,
    /// The buffer's first aligned byte.
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

    /// Whole blocks directly, the rest (at the file's end) by way of the page cache.
    fn flush(&mut self) -> anyhow::Result<()> {
        let whole = self.held / BLOCK * BLOCK;
        let (blocks, rest) = self.buffer[self.start..self.start + self.held].split_at(whole);
        let file = self.direct.as_ref().unwrap_or(&self.file);
        if !blocks.is_empty() {
            self.disk.write_at(&self.path, file, blocks, self.written)?;
        }
        if !rest.is_empty() {
            self.disk.write_at(&self.path, &self.file, rest, self.written + whole as u64)?;
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
