//! Reading a checkpoint: no value leaves this file before its digest was compared.

use super::digest::{CHUNK, Digest};
use super::disk::{BLOCK, DIRECT};
use super::folder;
use super::index::{Index, Piece, SHARD_END, Shard, Tensor, moment_name};
use crate::engine::Moment;
use anyhow::{Context, bail, ensure};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that are read at a time, at most, but for a row that is longer.
const READ: usize = 64 << 20;
/// Values in a chunk.
const VALUES: usize = CHUNK / 4;

/// A published checkpoint, its index and its files' headers checked.
pub struct Checkpoint {
    pub folder: PathBuf,
    pub index: Index,
    files: Vec<ShardFile>,
}

/// A shard, opened twice: what is read once must not push other things out of the page cache.
struct ShardFile {
    file: File,
    /// Around the page cache, where the file system can.
    direct: Option<File>,
}

/// Memory for what is read, to be used again.
#[derive(Default)]
pub struct Buffer {
    read: Vec<u8>,
    assembled: Vec<f32>,
    /// Where what was asked for last lies in `read`, if it did not have to be assembled.
    run: Option<Range<usize>>,
}

impl Buffer {
    /// What was read last.
    pub fn values(&self) -> &[f32] {
        match &self.run {
            Some(run) => bytemuck::cast_slice(&self.read[run.clone()]),
            None => &self.assembled,
        }
    }
}

impl Checkpoint {
    /// Opens every shard. Fails on a damaged index, on a shard that is missing, cut short, of
    /// another checkpoint, or that the index does not name.
    pub fn open(folder: &Path) -> anyhow::Result<Checkpoint> {
        let index = Index::read(folder)?;
        let step = index.progress.step;
        if let Some(name) = folder.file_name().and_then(|name| name.to_str())
            && name.starts_with("step-")
            && name != folder::name(step)
        {
            bail!("{}: its index is that of step {step}", folder.display());
        }
        let shards = index.shards.iter();
        let files = shards.map(|shard| open_shard(folder, &index, shard));
        let files = files.collect::<anyhow::Result<_>>()?;
        let checkpoint = Checkpoint { folder: folder.to_path_buf(), files, index };
        if let Some(stray) = checkpoint.strays()?.iter().find(|name| name.ends_with(SHARD_END)) {
            bail!("{}: {stray} is there, but not in its index", folder.display());
        }
        Ok(checkpoint)
    }

    /// Files that do not belong to it.
    pub fn strays(&self) -> anyhow::Result<Vec<String>> {
        let failed = || format!("cannot list {}", self.folder.display());
        let mut strays = Vec::new();
        for entry in fs::read_dir(&self.folder).with_context(failed)? {
            let name = entry.with_context(failed)?.file_name().to_string_lossy().into_owned();
            let known = name == super::index::NAME
                || self.index.shards.iter().any(|shard| shard.file == name);
            if !known {
                strays.push(name);
            }
        }
        strays.sort();
        Ok(strays)
    }

    /// Rows and columns of a tensor, in row-major order, from whichever pieces hold them.
    pub fn read(
        &self,
        tensor: &Tensor,
        moment: Moment,
        rows: Range<usize>,
        cols: Range<usize>,
        out: &mut [f32],
    ) -> anyhow::Result<()> {
        let mut buffer = Buffer::default();
        self.read_by(&mut buffer, tensor, moment, rows, cols)?;
        out.copy_from_slice(buffer.values());
        Ok(())
    }

    /// The same, with a buffer from before. What lies together in one piece is not copied.
    pub fn read_by(
        &self,
        buffer: &mut Buffer,
        tensor: &Tensor,
        moment: Moment,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> anyhow::Result<()> {
        let Buffer { read, assembled, run } = buffer;
        let of = Of { checkpoint: self, tensor, moment };
        let pieces = &tensor.kept(moment).pieces;
        let holds = |piece: &&Piece| {
            let within = |k: usize, wanted: &Range<usize>| {
                piece.at[k] <= wanted.start && wanted.end <= piece.at[k] + piece.size[k]
            };
            within(0, &rows) && within(1, &cols) && (cols.len() == piece.size[1] || rows.len() == 1)
        };
        if let Some(piece) = pieces.iter().find(holds) {
            let first = element(piece, rows.start, cols.start);
            *run = Some(of.run(piece, first..first + rows.len() * cols.len(), read)?);
            return Ok(());
        }
        *run = None;
        assembled.resize(rows.len() * cols.len(), 0.0);
        for piece in pieces {
            of.copy(piece, &rows, &cols, assembled, read)?;
        }
        Ok(())
    }

    /// The whole of a tensor.
    pub fn whole(&self, tensor: &Tensor, moment: Moment) -> anyhow::Result<Vec<f32>> {
        let [rows, cols] = tensor.matrix()?;
        let mut values = vec![0.0; rows * cols];
        self.read(tensor, moment, 0..rows, 0..cols, &mut values)?;
        Ok(values)
    }

    /// Calls `each` with runs of whole rows of a tensor, in order: the first value's number, and
    /// the values. Holds a few MiB at a time.
    pub fn blocks(
        &self,
        tensor: &Tensor,
        moment: Moment,
        each: &mut dyn FnMut(usize, &[f32]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let [rows, cols] = tensor.matrix()?;
        let mut buffer = Buffer::default();
        for rows in row_blocks(tensor, moment, 0..rows)? {
            let first = rows.start * cols;
            self.read_by(&mut buffer, tensor, moment, rows, 0..cols)?;
            each(first, buffer.values())?;
        }
        Ok(())
    }
}

/// What is read, for messages about it.
struct Of<'c> {
    checkpoint: &'c Checkpoint,
    tensor: &'c Tensor,
    moment: Moment,
}

/// The number in its piece of a value of the tensor.
fn element(piece: &Piece, row: usize, col: usize) -> usize {
    (row - piece.at[0]) * piece.size[1] + col - piece.at[1]
}

impl Of<'_> {
    /// Copies what a piece has of a rectangle to its place there, a chunk at a time.
    fn copy(
        &self,
        piece: &Piece,
        rows: &Range<usize>,
        cols: &Range<usize>,
        out: &mut [f32],
        buffer: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let overlap = |k: usize, wanted: &Range<usize>| {
            let end = (piece.at[k] + piece.size[k]).min(wanted.end);
            piece.at[k].max(wanted.start)..end
        };
        let (rows_here, cols_here) = (overlap(0, rows), overlap(1, cols));
        if rows_here.is_empty() || cols_here.is_empty() {
            return Ok(());
        }
        let first = element(piece, rows_here.start, cols_here.start);
        let last = element(piece, rows_here.end - 1, cols_here.end - 1);
        for chunk in first / VALUES..=last / VALUES {
            let holds = chunk * VALUES..((chunk + 1) * VALUES).min(numel(piece));
            let run = self.run(piece, holds.clone(), buffer)?;
            let values: &[f32] = bytemuck::cast_slice(&buffer[run]);
            for row in rows_here.clone() {
                let start = element(piece, row, cols_here.start).max(holds.start);
                let end = (element(piece, row, cols_here.end - 1) + 1).min(holds.end);
                if start < end {
                    let col = piece.at[1] + start % piece.size[1];
                    let to = (row - rows.start) * cols.len() + col - cols.start;
                    let from = &values[start - holds.start..end - holds.start];
                    out[to..to + from.len()].copy_from_slice(from);
                }
            }
        }
        Ok(())
    }

    /// Reads values of a piece that follow each other, verified with the rest of their chunks.
    /// Returns where they lie in the buffer.
    fn run(
        &self,
        piece: &Piece,
        values: Range<usize>,
        buffer: &mut Vec<u8>,
    ) -> anyhow::Result<Range<usize>> {
        let chunks = values.start / VALUES..values.end.div_ceil(VALUES);
        let first = chunks.start * VALUES;
        let len = 4 * ((chunks.end * VALUES).min(numel(piece)) - first);
        let at = piece.byte + 4 * first as u64;
        let place = |at: u64, len: usize| {
            let folder = &self.checkpoint.folder;
            let path = folder.join(&self.checkpoint.index.shards[piece.shard].file);
            let (name, kept) = (&self.tensor.name, moment_name(self.moment));
            format!("{}: bytes {at}..{} ({kept} of {name})", path.display(), at + len as u64)
        };
        let read = self.checkpoint.files[piece.shard].read(at, len, buffer);
        let read = read.with_context(|| format!("{}: cannot be read", place(at, len)))?;
        for (i, (bytes, digest)) in
            buffer[read.clone()].chunks(CHUNK).zip(&piece.chunks[chunks]).enumerate()
        {
            ensure!(
                Digest::of(bytes) == *digest,
                "{}: damaged, their digest is not the one saved",
                place(at + (i * CHUNK) as u64, bytes.len())
            );
        }
        Ok(read.start + 4 * (values.start - first)..read.start + 4 * (values.end - first))
    }
}

fn numel(piece: &Piece) -> usize {
    piece.size[0] * piece.size[1]
}

/// Rows of a tensor, some MiB at a time: blocks that end where chunks do, as far as the first piece
/// that holds one of the rows goes.
pub fn row_blocks(
    tensor: &Tensor,
    moment: Moment,
    rows: Range<usize>,
) -> anyhow::Result<impl Iterator<Item = Range<usize>> + use<>> {
    let [_, cols] = tensor.matrix()?;
    let pieces = &tensor.kept(moment).pieces;
    let holds = |piece: &&Piece| (piece.at[0]..piece.at[0] + piece.size[0]).contains(&rows.start);
    let base = pieces.iter().find(holds).map_or(0, |piece| piece.at[0]);
    let step = pieces.iter().map(|piece| rows_at_once(piece.size[1])).max().unwrap_or(1);
    let step = step.clamp(1, (READ / (4 * cols)).max(1));
    let blocks = (base + (rows.start - base) / step * step..rows.end).step_by(step);
    Ok(blocks.map(move |first| first.max(rows.start)..(first + step).min(rows.end)))
}

/// Rows of so many columns that end where a chunk ends, if there are such: no chunk is then read
/// twice. (12 MiB for the usual widths, 3 · 2ⁿ.)
fn rows_at_once(cols: usize) -> usize {
    let row = 4 * cols;
    let shared = 1 << row.trailing_zeros().min(CHUNK.trailing_zeros());
    let aligned = CHUNK / shared;
    if aligned * row <= READ { aligned } else { (READ / row).max(1) }
}

impl ShardFile {
    /// Bytes `at .. at + len`: returns where they lie in the buffer.
    fn read(&self, at: u64, len: usize, buffer: &mut Vec<u8>) -> io::Result<Range<usize>> {
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
            // It ends early at the end of the file only.
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
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let len = file.metadata().with_context(|| path.display().to_string())?.len();
    ensure!(
        len >= shard.bytes,
        "{} is cut short: bytes {len}..{} are missing",
        path.display(),
        shard.bytes
    );
    ensure!(
        len == shard.bytes,
        "{} has {} bytes after its end at {}",
        path.display(),
        len - shard.bytes,
        shard.bytes
    );
    let mut header = vec![0; shard.header_bytes as usize];
    file.read_exact_at(&mut header, 0).with_context(|| format!("reading {}", path.display()))?;
    if Digest::of(&header) != shard.header_digest {
        let says = super::safetensors::Reader::open(&path).ok().map(|reader| {
            let says = |key: &str| reader.metadata.get(key).cloned().unwrap_or_default();
            format!(
                ": it says it is {} of step {} of run {}",
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
    let flags = OFlags::DIRECT.bits() as i32;
    let open = || OpenOptions::new().read(true).custom_flags(flags).open(&path).ok();
    let direct = if shard.bytes < DIRECT { None } else { open() };
    Ok(ShardFile { file, direct })
}
