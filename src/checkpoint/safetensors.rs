//! The safetensors format (github.com/huggingface/safetensors): 8 bytes header length, a JSON header
//! of names, shapes and offsets, then the tensors. Reads and writes a tensor at a time.

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Longest header read, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Bytes from the end of the header.
    pub data_offsets: [u64; 2],
}

/// Writes f32 tensors in the order given; `fill(i, values)` supplies each. Returns their digests.
pub fn write(
    path: &Path,
    tensors: &[(String, Vec<usize>)],
    fill: &mut dyn FnMut(usize, &mut [f32]),
) -> anyhow::Result<BTreeMap<String, String>> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path).with_context(failed)?);
    file.write_all(&header(tensors)?).with_context(failed)?;
    let mut digests = BTreeMap::new();
    let mut values = Vec::new();
    for (i, (name, shape)) in tensors.iter().enumerate() {
        values.resize(shape.iter().product(), 0.0);
        fill(i, &mut values);
        let bytes: &[u8] = bytemuck::cast_slice(&values);
        digests.insert(name.clone(), digest(bytes));
        file.write_all(bytes).with_context(failed)?;
    }
    let file = file.into_inner().map_err(|e| e.into_error()).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    Ok(digests)
}

/// The header, padded so that the data starts on a multiple of 64 bytes.
fn header(tensors: &[(String, Vec<usize>)]) -> anyhow::Result<Vec<u8>> {
    let mut entries = BTreeMap::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>() as u64;
        let entry = Entry { dtype: "F32".into(), shape: shape.clone(), data_offsets: [start, end] };
        entries.insert(name, entry);
    }
    let mut json = serde_json::to_vec(&entries)?;
    json.resize((json.len() + 8).next_multiple_of(64) - 8, b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// How a tensor's bytes are hashed.
pub fn digest(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

/// A file opened for reading, its header checked.
pub struct Reader {
    path: PathBuf,
    file: File,
    data_start: u64,
    pub entries: BTreeMap<String, Entry>,
}

impl Reader {
    pub fn open(path: &Path) -> anyhow::Result<Reader> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let len = file.metadata()?.len();
        let damaged = || format!("{} ({len} bytes) is damaged", path.display());
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 0).with_context(damaged)?;
        let header_len = u64::from_le_bytes(word);
        if header_len > MAX_HEADER || header_len + 8 > len {
            bail!("{}: header of {header_len} bytes", damaged());
        }
        let mut json = vec![0; header_len as usize];
        file.read_exact_at(&mut json, 8).with_context(damaged)?;
        let raw: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&json).with_context(damaged)?;
        let mut entries = BTreeMap::new();
        for (name, value) in raw.into_iter().filter(|(name, _)| name != "__metadata__") {
            let entry: Entry = serde_json::from_value(value)
                .with_context(|| format!("{}: tensor {name}", damaged()))?;
            check(&entry, len - 8 - header_len)
                .with_context(|| format!("{}: tensor {name}", damaged()))?;
            entries.insert(name, entry);
        }
        Ok(Reader { path: path.to_path_buf(), file, data_start: 8 + header_len, entries })
    }

    /// The elements of a tensor of 4-byte elements.
    pub fn words<T: bytemuck::Pod + Default>(&self, name: &str) -> anyhow::Result<Vec<T>> {
        let entry = self
            .entries
            .get(name)
            .with_context(|| format!("{} has no tensor {name}", self.path.display()))?;
        assert_eq!(size_of::<T>(), 4);
        ensure!(
            matches!(entry.dtype.as_str(), "F32" | "I32"),
            "{}: tensor {name} is {}, not of 4 bytes",
            self.path.display(),
            entry.dtype
        );
        let mut values = vec![T::default(); entry.shape.iter().product()];
        let at = self.data_start + entry.data_offsets[0];
        self.file
            .read_exact_at(bytemuck::cast_slice_mut(&mut values), at)
            .with_context(|| format!("{}: cannot read tensor {name}", self.path.display()))?;
        Ok(values)
    }
}

/// The offsets lie in the data and fit the shape.
fn check(entry: &Entry, data_len: u64) -> anyhow::Result<()> {
    let size = match entry.dtype.as_str() {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        "I8" | "U8" | "BOOL" => 1,
        other => bail!("unknown dtype {other}"),
    };
    let [start, end] = entry.data_offsets;
    let bytes = entry.shape.iter().try_fold(size, |n: u64, d| n.checked_mul(*d as u64));
    ensure!(
        start <= end && end <= data_len && bytes == Some(end - start),
        "{} {:?} does not fit bytes {start}..{end} of {data_len}",
        entry.dtype,
        entry.shape
    );
    Ok(())
}
