//! Reading a checkpoint: no value leaves this file before its digest was compared.

use super::digest::{CHUNK, Digest};
use super::disk::{BLOCK, DIRECT};
use super::folder;
use super::index::{Index, Piece, SHARD_END, Shard, Tensor, moment_name};
use crate::engine::Moment;
use anyhow::{Context, bail, ensure};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that are read at a time, at most, but for a row that is longer.
const READ: usize = 64 << 20;

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

/// Memory for one chunk, to be used again.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
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
        self.read_by(&mut Buffer::default(), tensor, moment, rows, cols, out)
    }

    /// The same, with a buffer from before.
    pub fn read_by(
        &self,
        buffer: &mut Buffer,
        tensor: &Tensor,
        moment: Moment,
        rows: Range<usize>,
        cols: Range<usize>,
        out: &mut [f32],
    ) -> anyhow::Result<()> {
        assert_eq!(out.len(), rows.len() * cols.len(), "{}", tensor.name);
        for piece in &tensor.kept(moment).pieces {
            let overlap = |k: usize, wanted: &Range<usize>| {
                let end = (piece.at[k] + piece.size[k]).min(wanted.end);
                piece.at[k].max(wanted.start)..end
            };
            let (rows_here, cols_here) = (overlap(0, &rows), overlap(1, &cols));
            if rows_here.is_empty() || cols_here.is_empty() {
                continue;
            }
            let width = piece.size[1];
            let element = |row: usize, col: usize| (row - piece.at[0]) * width + col - piece.at[1];
            let first = 4 * element(rows_here.start, cols_here.start) / CHUNK;
            let last = 4 * element(rows_here.end - 1, cols_here.end - 1) / CHUNK;
            for chunk in first..=last {
                let bytes = self.chunk(tensor, moment, piece, chunk, buffer)?;
                let values: &[f32] = bytemuck::cast_slice(bytes);
                let begin = chunk * CHUNK / 4;
                let holds = begin..begin + values.len();
                for row in rows_here.clone() {
                    let start = element(row, cols_here.start).max(holds.start);
                    let end = (element(row, cols_here.end - 1) + 1).min(holds.end);
                    if start < end {
                        let col = piece.at[1] + start % width;
                        let to = (row - rows.start) * cols.len() + col - cols.start;
                        let from = &values[start - begin..end - begin];
                        out[to..to + from.len()].copy_from_slice(from);
                    }
                }
            }
        }
        Ok(())
    }

    /// One chunk of a piece, verified.
    fn chunk<'b>(
        &self,
        tensor: &Tensor,
        moment: Moment,
        piece: &Piece,
        chunk: usize,
        buffer: &'b mut Buffer,
    ) -> anyhow::Result<&'b [u8]> {
        let shard = &self.index.shards[piece.shard];
        let bytes = 4 * piece.size[0] * piece.size[1];
        let len = CHUNK.min(bytes - chunk * CHUNK);
        let at = piece.byte + (chunk * CHUNK) as u64;
        let place = || {
            let (path, end) = (self.folder.join(&shard.file), at + len as u64);
            let (name, kept) = (&tensor.name, moment_name(moment));
            format!("{}: bytes {at}..{end} ({kept} of {name})", path.display())
        };
        let read = self.files[piece.shard].read(at, len, buffer);
        let bytes = read.with_context(|| format!("{}: cannot be read", place()))?;
        ensure!(
            Digest::of(bytes) == piece.chunks[chunk],
            "{}: damaged, their digest is not the one saved",
            place()
        );
        Ok(bytes)
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
        let (mut values, mut buffer) = (Vec::new(), Buffer::default());
        for rows in row_blocks(tensor, 0..rows)? {
            values.resize(rows.len() * cols, 0.0);
            self.read_by(&mut buffer, tensor, moment, rows.clone(), 0..cols, &mut values)?;
            each(rows.start * cols, &values)?;
        }
        Ok(())
    }
}

/// Rows of a tensor, some MiB at a time.
pub fn row_blocks(
    tensor: &Tensor,
    rows: Range<usize>,
) -> anyhow::Result<impl Iterator<Item = Range<usize>> + use<>> {
    let step = rows_at_once(tensor.matrix()?[1]);
    let blocks = (rows.start / step * step..rows.end).step_by(step);
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
    /// Bytes `at .. at + len`, in the buffer.
    fn read<'b>(&self, at: u64, len: usize, buffer: &'b mut Buffer) -> std::io::Result<&'b [u8]> {
        buffer.bytes.resize(CHUNK + 3 * BLOCK, 0);
        let aligned = buffer.bytes.as_ptr().align_offset(BLOCK);
        let bytes = &mut buffer.bytes[aligned..];
        if let Some(direct) = &self.direct {
            let skip = at as usize % BLOCK;
            let whole = (skip + len).next_multiple_of(BLOCK);
            let mut got = 0;
            // It ends early at the end of the file only.
            while got < skip + len && got % BLOCK == 0 {
                match direct.read_at(&mut bytes[got..whole], at - skip as u64 + got as u64)? {
                    0 => break,
                    n => got += n,
                }
            }
            if got >= skip + len {
                return Ok(&bytes[skip..skip + len]);
            }
        }
        self.file.read_exact_at(&mut bytes[..len], at)?;
        Ok(&bytes[..len])
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
