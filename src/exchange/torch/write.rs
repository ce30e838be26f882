//! Writes a file of `torch.save`: a pickle of protocol 2, then the storages, each as it is given.

use super::tensor::Element;
use anyhow::{Context, ensure};
use serde_json::Value as Json;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes that a storage's first byte is aligned to, as PyTorch's.
const ALIGN: u64 = 64;

/// A value that is written.
#[derive(Clone, Debug)]
pub enum Out {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    List(Vec<Out>),
    Dict(Vec<(Out, Out)>),
    /// `argparse.Namespace`.
    Namespace(Vec<(String, Out)>),
    Dtype(Element),
    Tensor(Stored),
}

/// A whole tensor, whose storage is `data/KEY`.
#[derive(Clone, Debug)]
pub struct Stored {
    pub key: usize,
    pub element: Element,
    pub shape: Vec<usize>,
}

impl Out {
    /// A dict whose keys are text.
    pub fn named<'n>(entries: impl IntoIterator<Item = (&'n str, Out)>) -> Out {
        Out::Dict(
            entries
                .into_iter()
                .map(|(key, value)| (Out::from(key), value))
                .collect(),
        )
    }
}

impl From<&str> for Out {
    fn from(text: &str) -> Out {
        Out::Str(text.to_string())
    }
}

/// A setting's value.
impl From<&Json> for Out {
    fn from(value: &Json) -> Out {
        match value {
            Json::Bool(yes) => Out::Bool(*yes),
            Json::Number(number) if number.is_f64() => Out::Float(number.as_f64().unwrap_or(0.0)),
            Json::Number(number) => Out::Int(number.as_i64().unwrap_or(i64::MAX)),
            other => Out::Str(other.as_str().unwrap_or_default().to_string()),
        }
    }
}

impl From<u64> for Out {
    fn from(number: u64) -> Out {
        Out::Int(number as i64)
    }
}

impl From<usize> for Out {
    fn from(number: usize) -> Out {
        Out::Int(number as i64)
    }
}

impl From<f64> for Out {
    fn from(number: f64) -> Out {
        Out::Float(number)
    }
}

impl From<bool> for Out {
    fn from(yes: bool) -> Out {
        Out::Bool(yes)
    }
}

/// A file whose pickle is written, and whose storages follow.
pub struct TorchWriter {
    path: PathBuf,
    file: BufWriter<File>,
    at: u64,
    entries: Vec<Entry>,
    /// Storages that are still to be written, by their keys: bytes.
    awaited: Vec<Option<u64>>,
}

/// Byte of the checksum in the header of an entry.
const CRC_AT: u64 = 14;

/// Storage that is written in parts; its checksum follows at the end.
pub struct StorageWriter<'w> {
    writer: &'w mut TorchWriter,
    entry: Entry,
    hasher: crc32fast::Hasher,
    left: u64,
}

impl StorageWriter<'_> {
    pub fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left =
            left.with_context(|| format!("{} has more bytes than its tensor", self.entry.name))?;
        self.hasher.update(bytes);
        self.writer.write(bytes)
    }

    pub fn finish(self) -> anyhow::Result<()> {
        let StorageWriter { writer, mut entry, hasher, left } = self;
        ensure!(left == 0, "{} lacks {left} bytes", entry.name);
        entry.crc = hasher.finalize();
        writer.write_checksum(&entry)?;
        writer.entries.push(entry);
        Ok(())
    }
}

struct Entry {
    name: String,
    header: u64,
    size: u64,
    crc: u32,
}

impl TorchWriter {
    pub fn create(path: &Path, root: &Out) -> anyhow::Result<TorchWriter> {
        let file = BufWriter::with_capacity(
            1 << 20,
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?,
        );
        let path = path.to_path_buf();
        let entries = Vec::new();
        let awaited = Vec::new();
        let mut writer = TorchWriter { path, file, at: 0, entries, awaited };
        let mut pickle = vec![0x80, 2];
        writer.pickle(root, &mut pickle)?;
        pickle.push(b'.');
        writer.entry("data.pkl", &pickle)?;
        writer.entry("byteorder", b"little")?;
        Ok(writer)
    }

    /// Writes the storage of a tensor. Each is written once, in any order.
    pub fn storage(&mut self, key: usize, bytes: &[u8]) -> anyhow::Result<()> {
        let mut storage = self.begin(key)?;
        storage.write(bytes)?;
        storage.finish()
    }

    /// Begins the storage of a tensor, whose bytes are written in parts.
    pub fn begin(&mut self, key: usize) -> anyhow::Result<StorageWriter<'_>> {
        let awaited = self.awaited.get_mut(key).and_then(Option::take);
        let size = awaited
            .with_context(|| format!("storage {key} is written already, or not a tensor's"))?;
        let entry = self.header(&format!("data/{key}"), size, 0)?;
        Ok(StorageWriter { writer: self, entry, hasher: crc32fast::Hasher::new(), left: size })
    }

    /// Writes the directory; the bytes of the file.
    pub fn finish(mut self) -> anyhow::Result<u64> {
        let missing = self.awaited.iter().position(Option::is_some);
        ensure!(missing.is_none(), "storage {missing:?} was not written");
        self.entry("version", b"3\n")?;
        let begin = self.at;
        let mut bytes = Vec::new();
        for entry in &self.entries {
            directory_entry(entry, &mut bytes);
        }
        let count = self.entries.len() as u64;
        let size = bytes.len() as u64;
        let end = begin + size;
        // The ZIP64 record and its locator, always: both are read where they are not needed.
        bytes.extend_from_slice(b"PK\x06\x06");
        bytes.extend(44u64.to_le_bytes());
        bytes.extend([45, 0, 45, 0]);
        bytes.extend([0; 8]);
        for number in [count, count, size, begin] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend_from_slice(b"PK\x06\x07");
        bytes.extend([0; 4]);
        bytes.extend(end.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend_from_slice(b"PK\x05\x06");
        bytes.extend([0; 4]);
        let short = u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes();
        bytes.extend([short, short].concat());
        bytes.extend(narrow(size).to_le_bytes());
        bytes.extend(narrow(begin).to_le_bytes());
        bytes.extend([0; 2]);
        self.write(&bytes)?;
        self.file
            .flush()
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(self.at)
    }

    fn entry(&mut self, name: &str, data: &[u8]) -> anyhow::Result<()> {
        let entry = self.header(name, data.len() as u64, crc32fast::hash(data))?;
        self.write(data)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Writes the header of an entry.
    fn header(&mut self, name: &str, size: u64, crc: u32) -> anyhow::Result<Entry> {
        let name = format!("archive/{name}");
        let header = self.at;
        let large = size >= u64::from(u32::MAX);
        let fixed = 30 + name.len() as u64 + 4 + if large { 20 } else { 0 };
        let padding = (header + fixed).next_multiple_of(ALIGN) - header - fixed;
        let extra = padding + 4 + if large { 20 } else { 0 };
        let mut bytes = Vec::new();
        bytes.extend_from_slice(b"PK\x03\x04");
        bytes.extend([if large { 45 } else { 20 }, 0, 0, 0, 0, 0, 0, 0, 0x21, 0]);
        bytes.extend(crc.to_le_bytes());
        bytes.extend(narrow(size).to_le_bytes());
        bytes.extend(narrow(size).to_le_bytes());
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend((extra as u16).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        if large {
            bytes.extend([1, 0, 16, 0]);
            bytes.extend(size.to_le_bytes());
            bytes.extend(size.to_le_bytes());
        }
        // As PyTorch's: a field that readers skip.
        bytes.extend_from_slice(b"FB");
        bytes.extend((padding as u16).to_le_bytes());
        bytes.resize(bytes.len() + padding as usize, b'Z');
        self.write(&bytes)?;
        Ok(Entry { name, header, size, crc })
    }

    /// Writes the checksum of an entry into its header.
    fn write_checksum(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let end = self.at;
        let checksum = entry.header + CRC_AT;
        let written = self
            .file
            .seek(SeekFrom::Start(checksum))
            .and_then(|_| self.file.write_all(&entry.crc.to_le_bytes()))
            .and_then(|()| self.file.seek(SeekFrom::Start(end)));
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file
            .write_all(bytes)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn pickle(&mut self, value: &Out, to: &mut Vec<u8>) -> anyhow::Result<()> {
        match value {
            Out::None => to.push(b'N'),
            Out::Bool(yes) => to.push(if *yes { 0x88 } else { 0x89 }),
            Out::Int(number) => integer(*number, to),
            Out::Float(number) => {
                to.push(b'G');
                to.extend(number.to_be_bytes());
            }
            Out::Str(text) => string(text, to),
            Out::List(items) => {
                to.extend_from_slice(b"](");
                for item in items {
                    self.pickle(item, to)?;
                }
                to.push(b'e');
            }
            Out::Dict(entries) => {
                to.extend_from_slice(b"}(");
                for (key, value) in entries {
                    self.pickle(key, to)?;
                    self.pickle(value, to)?;
                }
                to.push(b'u');
            }
            Out::Namespace(entries) => {
                to.extend_from_slice(b"cargparse\nNamespace\n)\x81}(");
                for (key, value) in entries {
                    string(key, to);
                    self.pickle(value, to)?;
                }
                to.extend_from_slice(b"ub");
            }
            Out::Dtype(element) => {
                let (_, name) = element.names().context("a type that is not written")?;
                to.extend_from_slice(format!("ctorch\n{name}\n").as_bytes());
            }
            Out::Tensor(stored) => self.tensor(stored, to)?,
        }
        Ok(())
    }

    /// A tensor, by the call that rebuilds it; its storage is awaited.
    fn tensor(&mut self, stored: &Stored, to: &mut Vec<u8>) -> anyhow::Result<()> {
        let Stored { key, element, shape } = stored;
        let (class, _) = element.names().context("a type that is not written")?;
        let numel: usize = shape.iter().product();
        let size = element.size().context("a type that is not written")?;
        if self.awaited.len() <= *key {
            self.awaited.resize(*key + 1, None);
        }
        let known = self.awaited[*key].replace(numel as u64 * size);
        ensure!(known.is_none(), "storage {key} is two tensors'");
        to.extend_from_slice(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        string("storage", to);
        to.extend_from_slice(format!("ctorch\n{class}\n").as_bytes());
        string(&key.to_string(), to);
        string("cpu", to);
        integer(numel as i64, to);
        to.extend_from_slice(b"tQK\0(");
        shape.iter().for_each(|size| integer(*size as i64, to));
        to.extend_from_slice(b"t(");
        for i in 0..shape.len() {
            integer(shape[i + 1..].iter().product::<usize>() as i64, to);
        }
        to.extend_from_slice(b"t\x89ccollections\nOrderedDict\n)RtR");
        Ok(())
    }
}

/// An entry of the directory, with the ZIP64 field for numbers that do not fit.
fn directory_entry(entry: &Entry, bytes: &mut Vec<u8>) {
    let Entry { name, header, size, crc } = entry;
    let wide: Vec<u64> = [*size, *size, *header]
        .into_iter()
        .filter(|number| *number >= u64::from(u32::MAX))
        .collect();
    let extra = if wide.is_empty() { 0 } else { 4 + 8 * wide.len() };
    bytes.extend_from_slice(b"PK\x01\x02");
    bytes.extend([45, 0, if wide.is_empty() { 20 } else { 45 }, 0, 0, 0, 0, 0, 0, 0, 0x21, 0]);
    bytes.extend(crc.to_le_bytes());
    bytes.extend(narrow(*size).to_le_bytes());
    bytes.extend(narrow(*size).to_le_bytes());
    bytes.extend((name.len() as u16).to_le_bytes());
    bytes.extend((extra as u16).to_le_bytes());
    bytes.extend([0; 10]);
    bytes.extend(narrow(*header).to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
    if !wide.is_empty() {
        bytes.extend([1, 0]);
        bytes.extend((8 * wide.len() as u16).to_le_bytes());
        bytes.extend(wide.into_iter().flat_map(u64::to_le_bytes));
    }
}

/// A number of 32 bits; one that does not fit is all ones, and elsewhere.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn string(text: &str, to: &mut Vec<u8>) {
    to.push(b'X');
    to.extend((text.len() as u32).to_le_bytes());
    to.extend_from_slice(text.as_bytes());
}

fn integer(number: i64, to: &mut Vec<u8>) {
    match i32::try_from(number) {
        Ok(small) => {
            to.push(b'J');
            to.extend(small.to_le_bytes());
        }
        Err(_) => {
            to.extend([0x8a, 8]);
            to.extend(number.to_le_bytes());
        }
    }
}
