//! Files of `torch.save`: a ZIP archive of stored entries, in which `data.pkl` describes a
//! tree of values and each `data/KEY` is the storage of a tensor.
//!
//! | file | contents |
//! |---|---|
//! | `zip` | the archive: its directory, checksums, ranges of entries |
//! | `pickle` | the opcodes, which build a tree of values |
//! | `rebuild` | the table of supported names: tensors, sets, numpy's numbers |
//! | `tree` | the tree, and lookups of keys |
//! | `tensor` | shapes, strides and types, and the numbers behind them |
//! | `write` | writes the same archive and pickle |
//!
//! Reading executes nothing: a name in a file is text, and an object of an unsupported name is read as
//! its name and its arguments. Every count has a limit, so that a hostile file costs bounded memory and
//! time.
//!
//! Independent of trainers and of the meaning of keys.

mod pickle;
mod rebuild;
mod tensor;
mod tree;
mod write;
mod zip;

pub use tensor::{Element, Tensor};
pub use tree::{Node, Tree, Value};
pub use write::{Out, StorageWriter, Stored, TorchWriter};
pub use zip::Archive;

use anyhow::Context;
use base::Problems;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

/// Remedy where a file may be of another program, or not all of it.
pub(crate) const IS_WHOLE: &str = "is this a checkpoint of that trainer, copied whole?";

/// First bytes of a file of PyTorch before 1.6: the magic number, pickled.
const LEGACY: &[u8] = &[0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50];

/// Open file of `torch.save`: its values are read, its tensors are described.
pub struct TorchFile {
    archive: Archive,
    tree: Tree,
}

impl TorchFile {
    pub fn open(path: &Path) -> anyhow::Result<TorchFile> {
        let place = path.display().to_string();
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Problems::one(
                    place,
                    "is missing",
                    "copy the folder of the checkpoint whole",
                )
                .into());
            }
            opened => opened.with_context(|| format!("cannot open {place}"))?,
        };
        let about = file
            .metadata()
            .with_context(|| format!("cannot read {place}"))?;
        if !about.is_file() {
            return Err(Problems::one(place, "is not a file", IS_WHOLE).into());
        }
        TorchFile::within(Arc::new(file), place, 0, about.len())
    }

    /// Opens the archive in `len` bytes from byte `start` of a file; `place` is its name in messages.
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
            return Err(Problems::one(
                place,
                "is in the format of torch.save before PyTorch 1.6, which is not an archive",
                "load and save it once with PyTorch 1.6 or later: \
                 torch.save(torch.load(FILE, map_location='cpu'), FILE)",
            )
            .into());
        }
        let archive = Archive::read(file, place, start, len)?;
        if archive.has("byteorder") {
            let order = archive.bytes("byteorder", 16)?;
            if order.trim_ascii() != b"little" {
                let order = String::from_utf8_lossy(&order).escape_debug().to_string();
                return Err(Problems::one(
                    archive.place().to_string(),
                    format!("byteorder is {order:?}: only little is read"),
                    "save it on a little-endian machine",
                )
                .into());
            }
        }
        let pickle = archive.bytes("data.pkl", pickle::MAX_BYTES)?;
        let tree = pickle::parse(&pickle, &format!("{}, data.pkl", archive.place()))?;
        Ok(TorchFile { archive, tree })
    }

    /// Outermost value.
    pub fn root(&self) -> Value<'_> {
        self.tree.root()
    }

    /// The file's name in messages.
    pub fn place(&self) -> &str {
        self.archive.place()
    }

    /// Whether the file has checksums; without them damage to its tensors is not detected.
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

    /// Passes the same numbers to `each`, some MiB at a time.
    pub fn each_floats(
        &self,
        tensor: &Tensor,
        which: std::ops::Range<usize>,
        each: &mut dyn FnMut(&[f32]),
    ) -> anyhow::Result<()> {
        tensor.each_floats(&self.archive, which, each)
    }

    /// A number of Python's, or the element of a tensor with one element.
    pub fn number(&self, value: &Value) -> anyhow::Result<f64> {
        let Node::Tensor(tensor) = value.node() else { return value.float() };
        match self.floats(tensor, 0..tensor.numel().min(2))?.as_slice() {
            [number] => Ok(f64::from(*number)),
            _ => Err(value.problem(format!("{value} is not one number"))),
        }
    }

    /// A number of either kind that counts.
    pub fn count(&self, value: &Value) -> anyhow::Result<u64> {
        if !matches!(value.node(), Node::Tensor(_)) {
            return value.count();
        }
        let number = self.number(value)?;
        if number < 0.0 || number.fract() != 0.0 || !number.is_finite() {
            return Err(value.problem(format!("{number} is not a count")));
        }
        Ok(number as u64)
    }
}

/// Values of a bare pickle, such as the `.metadata` of a distributed checkpoint.
pub fn pickled(bytes: &[u8], place: &str) -> anyhow::Result<Tree> {
    pickle::parse(bytes, place)
}
