//! Disk cache of orders that take long to compute: 100 million documents were mapped in half a
//! second, without memory of the process (benches/RESULTS.md).
//!
//! A file is named after all inputs of its content, begins with them, and ends with a digest of the
//! whole. A truncated, damaged or foreign file is never used, but built again.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::super::indexed::{Access, Indexed, Mapped};
use super::{Array, Order, OrderSize, OrderSpec};
use base::memory;

/// Folder of orders. Files in it may be removed at any time between runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    pub folder: PathBuf,
    /// Minimum size of a cached order; smaller ones are built in memory every time.
    pub from_bytes: u64,
}

/// Bytes of an order that takes about a second to build: 138 MB did.
const SLOW: u64 = 128 << 20;

/// Inputs of an order, behind the version: equal keys mean equal orders.
type Key = [u64; 13];
/// Version of layout and rules. Files of other versions are built again.
const MAGIC: u64 = u64::from_le_bytes(*b"gptord02");

impl Cache {
    /// Caches orders in `folder` that are slow to build.
    pub fn new(folder: PathBuf) -> Cache {
        Cache { folder, from_bytes: SLOW }
    }

    /// Order over `part` of a dataset, as from `Order::build`. A small one is built in memory. A
    /// larger one is read from the folder, or built and stored there. One process builds it while
    /// others wait. Fails if the folder cannot be written.
    pub fn order(
        &self,
        spec: &OrderSpec,
        dataset: &Indexed,
        part: Range<usize>,
        place: &str,
    ) -> Result<Order> {
        let lengths = dataset.lengths();
        let size = OrderSize::new(spec, lengths, &part, place)?;
        if size.bytes() < self.from_bytes {
            size.check_room(memory::available(), place)?;
            return Ok(Order::build_sized(&size, spec, lengths, part));
        }
        let key = key(spec, &size, dataset, &part);
        let name = format!("order-{:016x}", xxh3_64(bytemuck::cast_slice(&key)));
        let path = self.folder.join(&name);
        let failed = || {
            format!(
                "cannot keep the order of {}'s samples in {} ({} MB): data.cache names the folder",
                dataset.prefix().display(),
                self.folder.display(),
                size.bytes() / 1_000_000
            )
        };
        fs::create_dir_all(&self.folder).with_context(failed)?;
        if let Some(order) = read(&path, &key, &size)? {
            return Ok(order);
        }
        let lock = File::create(path.with_extension("lock")).with_context(failed)?;
        let locked = lock.lock().is_ok(); // some network file systems have no locks
        if let Some(order) = read(&path, &key, &size)?.filter(|_| locked) {
            return Ok(order);
        }
        size.check_room(memory::available(), place)?;
        let order = Order::build_sized(&size, spec, lengths, part);
        if !locked {
            return Ok(order);
        }
        publish(&path, &key, &order).with_context(failed)?;
        drop(order); // the file replaces it, without using memory
        read(&path, &key, &size)?.with_context(|| {
            format!("{} does not hold what was just written to it", path.display())
        })
    }
}

fn key(spec: &OrderSpec, size: &OrderSize, dataset: &Indexed, part: &Range<usize>) -> Key {
    [
        MAGIC,
        spec.rule as u64,
        spec.seq_len as u64,
        spec.seed,
        u64::from(spec.cut.extra_token) | u64::from(spec.cut.drop_partial) << 1,
        size.epochs,
        size.samples,
        size.before_last.map_or(0, |before| before + 1),
        part.start as u64,
        part.end as u64,
        dataset.identity(),
        dataset.sequences() as u64,
        dataset.tokens(),
    ]
}

/// Reads an order from a file; `None` if the file does not exist, or is not this complete order.
fn read(path: &Path, key: &Key, size: &OrderSize) -> Result<Option<Order>> {
    let failed = || format!("cannot read {}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(failed),
    };
    let bytes = size_of::<Key>() as u64 + size.bytes() + 8;
    if file.metadata().with_context(failed)?.len() != bytes || !is_intact(&mut file, key)? {
        return Ok(None);
    }
    let file = Arc::new(Mapped::from_file(&file, path, Access::Scattered)?);
    let samples = size.samples as usize;
    let entries = size.entries as usize;
    let starts = size_of::<Key>();
    let sequences = starts + (samples + 1) * size_of::<[u32; 2]>();
    let shuffle = sequences + entries * size_of::<u32>();
    Ok(Some(Order {
        epochs: size.epochs,
        tokens: size.tokens,
        last_tokens: size.last_tokens,
        starts: Array::Mapped { file: file.clone(), from: starts, count: samples + 1 },
        sequences: Array::Mapped { file: file.clone(), from: sequences, count: entries },
        shuffle: Array::Mapped { file, from: shuffle, count: samples },
    }))
}

/// Whether a file begins with the key and ends with the digest of everything before. Reads through
/// a small buffer, so that the process does not grow.
fn is_intact(file: &mut File, key: &Key) -> Result<bool> {
    let mut hash = Xxh3Default::new();
    let mut buffer = vec![0; 1 << 20];
    let mut remaining = file.metadata()?.len() as usize - 8;
    let mut first = true;
    while remaining > 0 {
        let count = remaining.min(buffer.len());
        if file.read_exact(&mut buffer[..count]).is_err() {
            return Ok(false); // it shrank, or the disk fails: build it again
        }
        if first && !buffer.starts_with(bytemuck::cast_slice(key)) {
            return Ok(false);
        }
        hash.update(&buffer[..count]);
        (first, remaining) = (false, remaining - count);
    }
    let mut digest = [0; 8];
    Ok(file.read_exact(&mut digest).is_ok() && u64::from_ne_bytes(digest) == hash.digest())
}

/// Writes an order under a temporary name, and renames it when it is complete and on disk.
fn publish(path: &Path, key: &Key, order: &Order) -> Result<()> {
    let partial = path.with_extension("partial");
    let written = write(&partial, key, order).and_then(|()| Ok(fs::rename(&partial, path)?));
    if written.is_err() {
        fs::remove_file(&partial).ok();
    }
    written
}

fn write(path: &Path, key: &Key, order: &Order) -> Result<()> {
    let (Array::Memory(starts), Array::Memory(sequences), Array::Memory(shuffle)) =
        (&order.starts, &order.sequences, &order.shuffle)
    else {
        unreachable!("the order was just built in memory");
    };
    let parts: [&[u8]; 4] = [
        bytemuck::cast_slice(key),
        bytemuck::cast_slice(starts),
        bytemuck::cast_slice(sequences),
        bytemuck::cast_slice(shuffle),
    ];
    let mut hash = Xxh3Default::new();
    let mut out = BufWriter::new(File::create(path)?);
    for part in parts {
        hash.update(part);
        out.write_all(part)?;
    }
    out.write_all(&hash.digest().to_ne_bytes())?;
    out.into_inner()
        .map_err(|error| error.into_error())?
        .sync_all()?;
    Ok(())
}
