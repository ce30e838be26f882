//! The safetensors format (github.com/huggingface/safetensors): 8 bytes header length, a JSON
//! header of names, shapes and offsets, then the tensors without gaps.

use anyhow::{Context, bail, ensure};
use base::{DType, WrongInput, ensure_input};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Deserialize as Read, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Maximum header length, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// Tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Read)]
pub struct Entry {
    /// `F32`, `BF16`, …
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Bytes from the end of the header.
    pub data_offsets: [u64; 2],
}

/// Tensor to be written: name, dtype, shape.
pub type Wanted = (String, &'static str, Vec<usize>);

/// Length word and header of a file with these tensors in this order, and the length of the data.
/// The header is padded so that the data starts at a multiple of `align` bytes.
pub fn header(
    tensors: &[Wanted],
    metadata: &BTreeMap<&str, String>,
    align: usize,
) -> anyhow::Result<(Vec<u8>, u64)> {
    let mut entries = serde_json::Map::new();
    if !metadata.is_empty() {
        entries.insert("__metadata__".to_string(), serde_json::to_value(metadata)?);
    }
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let start = end;
        let size = element_bytes(dtype).with_context(|| format!("unknown dtype {dtype}"))?;
        end += size * shape.iter().product::<usize>() as u64;
        let dtype = dtype.to_string();
        let shape = shape.clone();
        let entry = Entry { dtype, shape, data_offsets: [start, end] };
        let before = entries.insert(name.clone(), serde_json::to_value(entry)?);
        ensure!(before.is_none(), "two tensors are called {name}");
    }
    let mut json = serde_json::to_vec(&entries)?;
    json.resize((json.len() + 8).next_multiple_of(align) - 8, b' ');
    Ok(([&(json.len() as u64).to_le_bytes()[..], &json].concat(), end))
}

/// Name of a dtype in the format.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::BF16 => "BF16",
        DType::F16 => "F16",
        DType::U8 => "U8",
        DType::I32 => "I32",
        DType::I64 => "I64",
    }
}

/// Floating-point type of a name in the format, of those that weights may have.
pub fn float_type(name: &str) -> Option<DType> {
    [DType::F32, DType::BF16, DType::F16]
        .into_iter()
        .find(|dtype| dtype_name(*dtype) == name)
}

/// Bytes per element of a dtype; None if they are not known.
fn element_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "F64" | "I64" | "U64" => Some(8),
        "F32" | "I32" | "U32" => Some(4),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" => Some(1),
        _ => None,
    }
}

/// Elements that are read at a time, at most, unless a row has more.
const BLOCK: usize = 1 << 20;

/// File opened for reading, with a checked header: every tensor is inside the file, none overlap,
/// and no bytes are unused.
pub struct Reader {
    path: PathBuf,
    file: File,
    data_start: u64,
    pub metadata: BTreeMap<String, String>,
    pub entries: BTreeMap<String, Entry>,
}

impl Reader {
    pub fn open(path: &Path) -> anyhow::Result<Reader> {
        let failed = |error| WrongInput::reading(error, format!("cannot open {}", path.display()));
        let file = File::open(path).map_err(failed)?;
        let len = file.metadata()?.len();
        let damaged = || WrongInput(format!("{} ({len} bytes) is damaged", path.display()));
        let failed = |error| WrongInput::reading(error, damaged().0);
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 0).map_err(failed)?;
        let header_len = u64::from_le_bytes(word);
        ensure_input!(
            header_len <= MAX_HEADER && header_len + 8 <= len,
            "{} ({len} bytes) is cut short, or not a safetensors file: the length of its header is \
             {header_len} bytes",
            path.display()
        );
        let mut json = vec![0; header_len as usize];
        file.read_exact_at(&mut json, 8).map_err(failed)?;
        let header: Header = serde_json::from_slice(&json).with_context(damaged)?;
        check(&header.entries, len - 8 - header_len).with_context(damaged)?;
        Ok(Reader {
            path: path.to_path_buf(),
            file,
            data_start: 8 + header_len,
            metadata: header.metadata,
            entries: header.entries,
        })
    }

    pub fn entry(&self, name: &str) -> anyhow::Result<&Entry> {
        let entry = self.entries.get(name);
        entry.with_context(|| format!("{} has no tensor {name}", self.path.display()))
    }

    /// Elements of a tensor of 4-byte elements.
    pub fn words<T: bytemuck::Pod + Default>(&self, name: &str) -> anyhow::Result<Vec<T>> {
        let entry = self.entry(name)?;
        assert_eq!(size_of::<T>(), 4);
        ensure!(
            matches!(entry.dtype.as_str(), "F32" | "I32"),
            "{}: tensor {name} is {}, not of 4 bytes",
            self.path.display(),
            entry.dtype
        );
        let mut values = vec![T::default(); entry.shape.iter().product()];
        self.bytes(name, entry, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Elements of a floating-point tensor, widened to f32.
    pub fn floats(&self, name: &str) -> anyhow::Result<Vec<f32>> {
        let mut values = Vec::with_capacity(self.entry(name)?.shape.iter().product());
        self.each_floats(name, 1, &mut |_, block| values.extend_from_slice(block))?;
        Ok(values)
    }

    /// Passes the elements of a floating-point tensor, widened to f32, to `each`: the index of the first
    /// one, and a block of some MiB whose length is a multiple of `row`.
    pub fn each_floats(
        &self,
        name: &str,
        row: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> anyhow::Result<()> {
        let entry = self.entry(name)?;
        let Some(dtype) = float_type(&entry.dtype) else {
            let other = &entry.dtype;
            bail!("{}: tensor {name} is {other}, not a float", self.path.display());
        };
        let numel: usize = entry.shape.iter().product();
        let row = row.max(1);
        let block = (BLOCK / row).max(1) * row;
        let mut bytes = Vec::new();
        for first in (0..numel).step_by(block) {
            bytes.resize(block.min(numel - first) * dtype.size(), 0);
            let at = self.data_start + entry.data_offsets[0] + (first * dtype.size()) as u64;
            self.file
                .read_exact_at(&mut bytes, at)
                .with_context(|| format!("{}: cannot read tensor {name}", self.path.display()))?;
            each(first, &dtype.widen(&bytes));
        }
        Ok(())
    }

    /// Elements of a numeric tensor, widened to f64.
    pub fn numbers(&self, name: &str) -> anyhow::Result<Vec<f64>> {
        let entry = self.entry(name)?;
        let mut words = vec![[0u8; 8]; entry.shape.iter().product()];
        let widen = match entry.dtype.as_str() {
            "F64" => f64::from_le_bytes,
            "I64" => |bytes| i64::from_le_bytes(bytes) as f64,
            "I32" => {
                return Ok(self
                    .words::<i32>(name)?
                    .into_iter()
                    .map(f64::from)
                    .collect());
            }
            _ => return Ok(self.floats(name)?.into_iter().map(f64::from).collect()),
        };
        self.bytes(name, entry, words.as_flattened_mut())?;
        Ok(words.into_iter().map(widen).collect())
    }

    fn bytes(&self, name: &str, entry: &Entry, to: &mut [u8]) -> anyhow::Result<()> {
        self.file
            .read_exact_at(to, self.data_start + entry.data_offsets[0])
            .with_context(|| format!("{}: cannot read tensor {name}", self.path.display()))
    }
}

/// Checks that the tensors cover the data exactly once, and that each fits its shape.
fn check(entries: &BTreeMap<String, Entry>, data_len: u64) -> anyhow::Result<()> {
    let mut spans = Vec::new();
    for (name, entry) in entries {
        let [start, end] = entry.data_offsets;
        let fits = |size: u64| {
            let bytes = entry
                .shape
                .iter()
                .try_fold(size, |n: u64, d| n.checked_mul(*d as u64));
            bytes == end.checked_sub(start)
        };
        // A type that is not known is refused where the tensor is needed.
        ensure!(
            start <= end && end <= data_len && element_bytes(&entry.dtype).is_none_or(fits),
            "tensor {name}: {} {:?} does not fit bytes {start}..{end} of {data_len}",
            entry.dtype,
            entry.shape
        );
        spans.push((start, end, name));
    }
    spans.sort();
    let mut covered = 0;
    for (start, end, name) in spans {
        ensure!(start == covered, "tensor {name} starts at byte {start}, expected {covered}");
        covered = end;
    }
    ensure!(covered == data_len, "{data_len} bytes of data, the tensors need {covered}");
    Ok(())
}

/// JSON of the header. Each name may occur once.
struct Header {
    metadata: BTreeMap<String, String>,
    entries: BTreeMap<String, Entry>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Header, D::Error> {
        from.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { metadata: BTreeMap::new(), entries: BTreeMap::new() };
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let metadata: Option<BTreeMap<String, String>> = map.next_value()?;
                header.metadata = metadata.unwrap_or_default();
                continue;
            }
            let twice = format!("two tensors are called {name}");
            if header.entries.insert(name, map.next_value()?).is_some() {
                return Err(serde::de::Error::custom(twice));
            }
        }
        Ok(header)
    }
}
