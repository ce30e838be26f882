//! Reads a checkpoint. Every value is compared with its digest before it is returned.

use super::digest::{CHUNK, Digest};
use super::disk::{BLOCK, DIRECT};
use super::folder;
use super::index::{Index, Piece, SHARD_END, Shard, Tensor, TensorState};
use anyhow::{Context, bail};
use base::{DType, WrongInput, ensure_input};
use manifest::Manifest;
use rustix::fs::OFlags;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Moments of AdamW.
const ADAMW: [&str; 2] = ["first_moment", "second_moment"];

/// Maximum bytes read at a time, except for a longer row.
const READ: usize = 64 << 20;

/// Published checkpoint with verified index and file headers.
pub struct Checkpoint {
    pub folder: PathBuf,
    pub index: Index,
    /// First `KEPT_OPEN` shards, by number. The others are opened on each read: a rank of 10,000 needs
    /// 30,000 files, and a process may often open only 1,024.
    files: BTreeMap<usize, ShardFile>,
    remote: Option<Arc<dyn RemoteShards>>,
}

/// Shards of a checkpoint that are not in its folder. What they return is verified like a file's bytes.
pub trait RemoteShards: Send + Sync {
    /// Whether the shard with this file name is read from here instead of the folder.
    fn has(&self, file: &str) -> bool;

    /// Reads bytes of a shard, from `at` on.
    fn read(&self, file: &str, at: u64, to: &mut [u8]) -> io::Result<()>;
}

/// Shards that remain open.
const KEPT_OPEN: usize = 100;

/// Shard, opened twice, because data that is read once must not evict other pages from the page
/// cache.
pub struct ShardFile {
    file: File,
    /// Bypasses the page cache, if the file system supports it.
    direct: Option<File>,
}

/// Reusable memory for reads.
#[derive(Default)]
pub struct Buffer {
    read: Vec<u8>,
    assembled: Vec<u8>,
    /// Range of the last result in `read`, if it did not have to be assembled.
    run: Option<Range<usize>>,
}

impl Buffer {
    /// Bytes of the last read, in memory order at the time of the save.
    pub fn bytes(&self) -> &[u8] {
        match &self.run {
            Some(run) => &self.read[run.clone()],
            None => &self.assembled,
        }
    }

    /// Replaces the bytes.
    pub fn set(&mut self, bytes: Vec<u8>) {
        (self.assembled, self.run) = (bytes, None);
    }

    /// Bytes of the last read as numbers.
    pub fn values(&self, dtype: DType) -> Vec<f32> {
        dtype.widen(self.bytes())
    }
}

impl Checkpoint {
    /// Opens every shard. Fails on a damaged index, and on a shard that is missing, cut short, from
    /// another checkpoint, or not in the index.
    pub fn open(folder: &Path) -> anyhow::Result<Checkpoint> {
        Checkpoint::open_with(folder, None)
    }

    /// Opens a checkpoint of which some shards are elsewhere.
    pub fn open_with(
        folder: &Path,
        remote: Option<Arc<dyn RemoteShards>>,
    ) -> anyhow::Result<Checkpoint> {
        let index = Index::read(folder)?;
        let step = index.progress.step;
        if let Some(name) = folder.file_name().and_then(|name| name.to_str())
            && name.starts_with("step-")
            && name != folder::name(step)
        {
            bail!("{}: its index is that of step {step}", folder.display());
        }
        let mut files = BTreeMap::new();
        let is_local = |shard: &Shard| {
            remote
                .as_ref()
                .is_none_or(|remote| !remote.has(&shard.file))
        };
        for (number, shard) in index.shards.iter().enumerate() {
            if !is_local(shard) {
                continue;
            }
            let file = open_shard(folder, &index, shard)?;
            if files.len() < KEPT_OPEN {
                files.insert(number, file);
            }
        }
        let checkpoint = Checkpoint { folder: folder.to_path_buf(), files, remote, index };
        // A process that was killed while it kept the weights alone may have left the states' files.
        if !checkpoint.index.weights_only
            && let Some(stray) = checkpoint
                .strays()?
                .iter()
                .find(|name| name.ends_with(SHARD_END))
        {
            bail!("{}: contains {stray}, which is not in its index", folder.display());
        }
        Ok(checkpoint)
    }

    /// Manifest of the run that wrote it.
    pub fn manifest(&self) -> anyhow::Result<Manifest> {
        let text = &self.index.manifest;
        Ok(manifest::parse_saved(text, "the checkpoint's manifest", Path::new("."), &[])?.manifest)
    }

    /// Whether it has the states of AdamW.
    pub fn has_adamw(&self) -> bool {
        self.index.optimizer.rule == "adamw"
            && self
                .index
                .tensors
                .iter()
                .all(|tensor| ADAMW.iter().all(|name| tensor.states.contains_key(*name)))
    }

    /// Files that do not belong to the checkpoint.
    pub fn strays(&self) -> anyhow::Result<Vec<String>> {
        let failed = || format!("cannot list {}", self.folder.display());
        let shards: HashSet<&str> = self.index.shards.iter().map(|s| s.file.as_str()).collect();
        let mut strays = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(failed)? {
            let name = entry
                .with_context(failed)?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if name != super::index::NAME && !shards.contains(name.as_str()) {
                strays.push(name);
            }
        }
        strays.sort();
        Ok(strays)
    }

    /// Reads rows and columns of a state, in row-major order, from the pieces that hold them.
    /// Contiguous data of one piece is not copied.
    pub fn read(
        &self,
        buffer: &mut Buffer,
        tensor: &Tensor,
        state: &str,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> anyhow::Result<()> {
        let Buffer { read, assembled, run } = buffer;
        let reader =
            StateReader { checkpoint: self, tensor, name: state, state: tensor.state(state)? };
        let pieces = reader.pieces()?;
        if let Some(piece) = pieces.iter().find(|piece| {
            let [all_rows, all_cols] = piece.slice.overlap(&rows, &cols);
            let whole_rows = cols.len() == piece.slice.size[1] || rows.len() == 1;
            all_rows == rows && all_cols == cols && whole_rows
        }) {
            let first = piece.slice.element(rows.start, cols.start);
            *run = Some(reader.run(piece, first..first + rows.len() * cols.len(), read)?);
            return Ok(());
        }
        *run = None;
        assembled.resize(rows.len() * cols.len() * reader.state.dtype.size(), 0);
        for piece in pieces {
            reader.copy(piece, &rows, &cols, assembled, read)?;
        }
        Ok(())
    }

    /// Reads bytes `at .. at + len` of a shard. Returns their range in the buffer.
    fn read_shard(
        &self,
        number: usize,
        at: u64,
        len: usize,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Range<usize>> {
        if let Some(file) = self.files.get(&number) {
            return file.read(at, len, buffer);
        }
        let shard = &self.index.shards[number];
        if let Some(remote) = self
            .remote
            .as_ref()
            .filter(|remote| remote.has(&shard.file))
        {
            buffer.resize(buffer.len().max(len), 0);
            return remote
                .read(&shard.file, at, &mut buffer[..len])
                .map(|()| 0..len);
        }
        let file = ShardFile::open(&self.folder.join(&shard.file), shard.bytes)?;
        file.read(at, len, buffer)
    }

    /// Reads all numbers of a state.
    pub fn whole(&self, tensor: &Tensor, state: &str) -> anyhow::Result<Vec<f32>> {
        let [rows, cols] = tensor.shape_of(tensor.state(state)?)?;
        let mut values = Vec::with_capacity(rows * cols);
        self.blocks(tensor, state, &mut |_, bytes| {
            values.extend(tensor.state(state)?.dtype.widen(bytes));
            Ok(())
        })?;
        Ok(values)
    }

    /// Calls `each` with runs of whole rows of a state, in order: the index of the first value, and
    /// the bytes of the values. Holds a few MiB at a time.
    pub fn blocks(
        &self,
        tensor: &Tensor,
        state: &str,
        each: &mut dyn FnMut(usize, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let [rows, cols] = tensor.shape_of(tensor.state(state)?)?;
        let mut buffer = Buffer::default();
        for rows in row_blocks(tensor, state, 0..rows)? {
            let first = rows.start * cols;
            self.read(&mut buffer, tensor, state, rows, 0..cols)?;
            each(first, buffer.bytes())?;
        }
        Ok(())
    }
}

/// State being read, and its names for messages.
struct StateReader<'c> {
    checkpoint: &'c Checkpoint,
    tensor: &'c Tensor,
    name: &'c str,
    state: &'c TensorState,
}

impl<'c> StateReader<'c> {
    fn pieces(&self) -> anyhow::Result<&'c [Piece]> {
        let pieces = self.state.pieces.as_deref();
        pieces.with_context(|| format!("the {} of {} is not saved", self.name, self.tensor.name))
    }

    /// Copies the intersection of a piece and a rectangle to its place in the rectangle, one chunk
    /// at a time.
    fn copy(
        &self,
        piece: &Piece,
        rows: &Range<usize>,
        cols: &Range<usize>,
        out: &mut [u8],
        buffer: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let slice = &piece.slice;
        let [rows_here, cols_here] = slice.overlap(rows, cols);
        if rows_here.is_empty() || cols_here.is_empty() {
            return Ok(());
        }
        let size = self.state.dtype.size();
        let values = CHUNK / size;
        let first = slice.element(rows_here.start, cols_here.start);
        let last = slice.element(rows_here.end - 1, cols_here.end - 1);
        for chunk in first / values..=last / values {
            let holds = chunk * values..((chunk + 1) * values).min(slice.numel());
            let run = self.run(piece, holds.clone(), buffer)?;
            let bytes = &buffer[run];
            for row in rows_here.clone() {
                let start = slice.element(row, cols_here.start).max(holds.start);
                let end = (slice.element(row, cols_here.end - 1) + 1).min(holds.end);
                if start < end {
                    let col = slice.at[1] + start % slice.size[1];
                    let to = size * ((row - rows.start) * cols.len() + col - cols.start);
                    let from = &bytes[size * (start - holds.start)..size * (end - holds.start)];
                    out[to..to + from.len()].copy_from_slice(from);
                }
            }
        }
        Ok(())
    }

    /// Reads consecutive values of a piece, verified with the rest of their chunks. Returns their
    /// range in the buffer.
    fn run(
        &self,
        piece: &Piece,
        values: Range<usize>,
        buffer: &mut Vec<u8>,
    ) -> anyhow::Result<Range<usize>> {
        let size = self.state.dtype.size();
        let in_chunk = CHUNK / size;
        let chunks = values.start / in_chunk..values.end.div_ceil(in_chunk);
        let first = chunks.start * in_chunk;
        let len = size * ((chunks.end * in_chunk).min(piece.slice.numel()) - first);
        let at = piece.byte + (size * first) as u64;
        let place = |at: u64, len: usize| {
            let folder = &self.checkpoint.folder;
            let path = folder.join(&self.checkpoint.index.shards[piece.shard].file);
            let (name, kept) = (&self.tensor.name, self.name);
            format!("{}: bytes {at}..{} ({kept} of {name})", path.display(), at + len as u64)
        };
        let read = self.checkpoint.read_shard(piece.shard, at, len, buffer);
        let read = read.with_context(|| format!("{}: cannot be read", place(at, len)))?;
        for (i, (bytes, digest)) in buffer[read.clone()]
            .chunks(CHUNK)
            .zip(&piece.chunks[chunks])
            .enumerate()
        {
            ensure_input!(
                Digest::from_bytes(bytes) == *digest,
                "{}: damaged, their digest is not the one saved",
                place(at + (i * CHUNK) as u64, bytes.len())
            );
        }
        Ok(read.start + size * (values.start - first)..read.start + size * (values.end - first))
    }
}

/// Blocks of rows of a state, of some MiB each. They end at chunk boundaries of the first piece
/// that holds one of the rows.
pub fn row_blocks(
    tensor: &Tensor,
    state: &str,
    rows: Range<usize>,
) -> anyhow::Result<impl Iterator<Item = Range<usize>> + use<>> {
    let state = tensor.state(state)?;
    let [_, cols] = tensor.shape_of(state)?;
    let size = state.dtype.size();
    let pieces = state.pieces.as_deref().unwrap_or_default();
    let base = pieces
        .iter()
        .find(|piece| piece.slice.rows().contains(&rows.start))
        .map_or(0, |piece| piece.slice.at[0]);
    let step = pieces
        .iter()
        .map(|piece| rows_at_once(size * piece.slice.size[1]))
        .max()
        .unwrap_or(1)
        .clamp(1, (READ / (size * cols)).max(1));
    let blocks = (base + (rows.start - base) / step * step..rows.end).step_by(step);
    Ok(blocks.map(move |first| first.max(rows.start)..(first + step).min(rows.end)))
}

/// Number of rows of `row` bytes that end at a chunk boundary, if possible, so that no chunk is
/// read twice. (12 MiB for the usual widths, 3 · 2ⁿ.)
fn rows_at_once(row: usize) -> usize {
    let shared = 1 << row.trailing_zeros().min(CHUNK.trailing_zeros());
    let aligned = CHUNK / shared;
    if aligned * row <= READ { aligned } else { (READ / row).max(1) }
}

impl ShardFile {
    pub fn open(path: &Path, bytes: u64) -> io::Result<ShardFile> {
        Ok(ShardFile::with(File::open(path)?, path, bytes))
    }

    /// Wraps an open file of `bytes` bytes.
    fn with(file: File, path: &Path, bytes: u64) -> ShardFile {
        let flags = OFlags::DIRECT.bits() as i32;
        let open = || {
            OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(path)
                .ok()
        };
        ShardFile { file, direct: if bytes < DIRECT { None } else { open() } }
    }

    /// Reads bytes `at .. at + len`. Returns their range in the buffer.
    pub fn read(&self, at: u64, len: usize, buffer: &mut Vec<u8>) -> io::Result<Range<usize>> {
        let size = len + 3 * BLOCK;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        let aligned = buffer.as_ptr().align_offset(BLOCK);
        let bytes = &mut buffer[aligned..];
        if let Some(direct) = &self.direct {
            let skip = at as usize % BLOCK;
            let whole = (skip + len).next_multiple_of(BLOCK);
            let mut got = 0;
            // A short read occurs only at the end of the file.
            while got < skip + len && got % BLOCK == 0 {
                match direct.read_at(&mut bytes[got..whole], at - skip as u64 + got as u64) {
                    Ok(0) => break,
                    Ok(n) => got += n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if got >= skip + len {
                return Ok(aligned + skip..aligned + skip + len);
            }
        }
        self.file.read_exact_at(&mut bytes[..len], at)?;
        Ok(aligned..aligned + len)
    }
}

fn open_shard(folder: &Path, index: &Index, shard: &Shard) -> anyhow::Result<ShardFile> {
    let path = folder.join(&shard.file);
    let file = File::open(&path)
        .map_err(|error| WrongInput::reading(error, format!("cannot open {}", path.display())))?;
    let len = file
        .metadata()
        .with_context(|| path.display().to_string())?
        .len();
    ensure_input!(
        len >= shard.bytes,
        "{} is cut short: bytes {len}..{} are missing",
        path.display(),
        shard.bytes
    );
    ensure_input!(
        len == shard.bytes,
        "{} has {} bytes after its end at {}",
        path.display(),
        len - shard.bytes,
        shard.bytes
    );
    let mut header = vec![0; shard.header_bytes as usize];
    file.read_exact_at(&mut header, 0)
        .with_context(|| format!("reading {}", path.display()))?;
    if Digest::from_bytes(&header) != shard.header_digest {
        let says = super::safetensors::Reader::open(&path).ok().map(|reader| {
            let says = |key: &str| reader.metadata.get(key).cloned().unwrap_or_default();
            format!(
                ": it belongs to {} of step {} of run {}",
                says("kept"),
                says("step"),
                says("run")
            )
        });
        bail!(
            "{}: bytes 0..{} (the header) are not those saved at step {} of run {}{}",
            path.display(),
            shard.header_bytes,
            index.progress.step,
            index.run,
            says.unwrap_or_default()
        );
    }
    Ok(ShardFile::with(file, &path, shard.bytes))
}
