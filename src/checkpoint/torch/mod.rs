//! Files that `torch.save` wrote: a ZIP archive of stored entries, in which `data.pkl` describes a
//! tree of values and each `data/KEY` is the storage of a tensor.
//!
//! | file | what it knows |
//! |---|---|
//! | `zip` | the archive: its directory, checksums, ranges of entries |
//! | `pickle` | the opcodes, which build a tree of values |
//! | `rebuild` | the short table of names whose values are known: tensors, sets, numpy's numbers |
//! | `tree` | the tree, and how it is asked for a key |
//! | `tensor` | shapes, strides and types, and the numbers behind them |
//! | `write` | the way back: the same archive and pickle, written |
//!
//! Reading executes nothing: a name in a file is text, and an object of a name that the table lacks
//! is its name and its arguments. Every count has a limit, so that a hostile file costs bounded
//! memory and time.
//!
//! Does not know trainers, nor what a key means.

mod pickle;
mod rebuild;
mod tensor;
mod tree;
mod write;
mod zip;

pub use tensor::{Element, Tensor};
pub use tree::{Node, Tree, Value};
pub use write::{Out, Stored, TorchWriter};
pub use zip::Archive;

use anyhow::Context;
use base::Problems;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// How a file of PyTorch before 1.6 begins: the magic number, pickled.
const LEGACY: &[u8] = &[0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50];

/// A file of `torch.save`, opened: its values are read, its tensors are described.
pub struct TorchFile {
    archive: Archive,
    tree: Tree,
}

impl TorchFile {
    pub fn open(path: &Path) -> anyhow::Result<TorchFile> {
        let place = path.display().to_string();
        let file = File::open(path).with_context(|| format!("cannot open {place}"))?;
        let about = file.metadata().with_context(|| format!("cannot read {place}"))?;
        if !about.is_file() {
            return Err(Problems::one(place, "is not a file", "copy the checkpoint again").into());
        }
        TorchFile::within(Arc::new(file), place, 0, about.len())
    }

    /// The archive in `len` bytes from byte `start` of a file; `place` is what messages call it.
    pub fn within(
        file: Arc<File>,
        place: String,
        start: u64,
        len: u64,
    ) -> anyhow::Result<TorchFile> {
        let mut begin = vec![0; LEGACY.len().min(usize::try_from(len).unwrap_or(usize::MAX))];
        std::os::unix::fs::FileExt::read_exact_at(&*file, &mut begin, start)
            .with_context(|| format!("{place}: cannot read"))?;
        if begin == LEGACY {
            let what = "is in the format of torch.save before PyTorch 1.6, which is not an archive";
            let remedy = "load and save it once with PyTorch 1.6 or later: \
                          torch.save(torch.load(FILE, map_location='cpu'), FILE)";
            return Err(Problems::one(place, what, remedy).into());
        }
        let archive = Archive::read(file, place, start, len)?;
        if archive.has("byteorder") {
            let order = archive.bytes("byteorder", 16)?;
            if order.trim_ascii() != b"little" {
                let order = String::from_utf8_lossy(&order).escape_debug().to_string();
                let what = format!("byteorder is {order:?}: only little is read");
                let remedy = "save it on a little-endian machine";
                return Err(Problems::one(archive.place().to_string(), what, remedy).into());
            }
        }
        let pickle = archive.bytes("data.pkl", pickle::MAX_BYTES)?;
        let tree = pickle::parse(&pickle, &format!("{}, data.pkl", archive.place()))?;
        Ok(TorchFile { archive, tree })
    }

    /// The outermost value.
    pub fn root(&self) -> Value<'_> {
        self.tree.root()
    }

    /// The file's name in messages.
    pub fn place(&self) -> &str {
        self.archive.place()
    }

    /// Whether the file has checksums; without them damage to its tensors is not seen.
    pub fn has_checksums(&self) -> bool {
        self.archive.has_checksums()
    }

    /// Numbers of a tensor, widened to f32, in the order of its rows; `which` counts elements in
    /// that order. The first reading of a storage compares its checksum.
    pub fn floats(
        &self,
        tensor: &Tensor,
        which: std::ops::Range<usize>,
    ) -> anyhow::Result<Vec<f32>> {
        tensor.floats(&self.archive, which)
    }
}

/// The values of a bare pickle, such as the `.metadata` of a distributed checkpoint.
pub fn pickled(bytes: &[u8], place: &str) -> anyhow::Result<Tree> {
    pickle::parse(bytes, place)
}
