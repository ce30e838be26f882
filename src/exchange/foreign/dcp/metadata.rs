//! The table of a distributed checkpoint, `.metadata`: each tensor's rectangles and the bytes of the
//! files they are in. Each item is an archive of torch.save of its own.

use super::super::super::torch::{Element, IS_WHOLE, Tensor, TorchFile, Tree, Value, pickled};
use super::super::compare::Comparison;
use super::super::run::{Put, Rows};
use super::super::{COPY_AGAIN, incomplete};
use super::rectangles::{Chunk, Entry, Item, matrix, volume};
use anyhow::Context;
use base::{Problems, input};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest table that is read.
const MAX_BYTES: u64 = 256 << 20;

/// A checkpoint's tensors and objects by their names.
pub struct Metadata {
    dir: PathBuf,
    pub tensors: BTreeMap<String, Entry>,
    objects: BTreeMap<String, Item>,
    /// Files that items are in, with the bytes that each must have.
    files: BTreeMap<String, u64>,
}

/// Items by name and, of tensors, the first element of the rectangle.
type Items = BTreeMap<(String, Option<Vec<usize>>), Item>;

impl Metadata {
    /// Reads the table; every file that it names is there and long enough.
    pub fn read(dir: &Path) -> anyhow::Result<Metadata> {
        let path = dir.join(".metadata");
        let place = path.display().to_string();
        if !path.is_file() {
            return Err(incomplete(dir, ".metadata is missing"));
        }
        let bytes =
            input::read(&path, MAX_BYTES).with_context(|| format!("cannot read {place}"))?;
        let tree: Tree = pickled(&bytes, &place)?;
        let root = tree.root();
        let mut meta = Metadata {
            dir: dir.to_path_buf(),
            tensors: BTreeMap::new(),
            objects: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        let mut items = meta.items(&root.need("storage_data")?)?;
        for (name, about) in root.need("state_dict_metadata")?.named()? {
            if !about
                .object()
                .is_some_and(|(class, _)| class.ends_with("TensorStorageMetadata"))
            {
                let item = items.remove(&(name.to_string(), None));
                meta.objects
                    .extend(item.map(|item| (name.to_string(), item)));
                continue;
            }
            let mut chunks = Vec::new();
            for chunk in about.need("chunks")?.items()? {
                let offsets = numbers(&chunk.need("offsets")?)?;
                let sizes = numbers(&chunk.need("sizes")?)?;
                let item = items.remove(&(name.to_string(), Some(offsets.clone())));
                let Some(item) = item else {
                    return Err(about
                        .problem(format!("storage_data has no item for {name} at {offsets:?}")));
                };
                chunks.push(Chunk { offsets, sizes, item });
            }
            let shape = numbers(&about.need("size")?)?;
            meta.tensors
                .insert(name.to_string(), Entry { shape, chunks });
        }
        meta.complete()?;
        Ok(meta)
    }

    /// The items of `storage_data`, by name and, of tensors, the first element of the rectangle.
    fn items(&mut self, storage: &Value) -> anyhow::Result<Items> {
        let mut items = BTreeMap::new();
        for (index, info) in storage.pairs()? {
            let name = index.need("fqn")?.str()?.to_string();
            if let Some(how) = info.some("transform_descriptors") {
                return Err(Problems::one(
                    self.place(),
                    format!("{name} is transformed ({how}): compressed items are not read"),
                    "save once without compression (FileSystemWriter without _extensions)",
                )
                .into());
            }
            let file = info.need("relative_path")?.str()?.to_string();
            if file.is_empty() || file.contains(['/', '\\', '\0']) || file.starts_with("..") {
                let file: String = file.chars().take(100).collect();
                return Err(
                    info.problem(format!("{name} is in {file:?}, which is not a file's name"))
                );
            }
            let at = info.need("offset")?.count()?;
            let len = info.need("length")?.count()?;
            let end = at
                .checked_add(len)
                .ok_or_else(|| info.problem(format!("the place of {name} overflows")))?;
            let needed = self.files.entry(file.clone()).or_default();
            *needed = end.max(*needed);
            let offset = index
                .some("offset")
                .map(|offset| numbers(&offset))
                .transpose()?;
            items.insert((name, offset), Item { file, at, len });
        }
        Ok(items)
    }

    /// The files are there, and as long as the table says.
    fn complete(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        for (file, needed) in &self.files {
            let path = self.dir.join(file);
            match fs::metadata(&path) {
                Ok(about) if about.len() >= *needed => {}
                Ok(about) => {
                    problems.add(
                        self.dir.display().to_string(),
                        format!(
                            "{file} is cut short: it has {} bytes, .metadata needs {needed}",
                            about.len()
                        ),
                        COPY_AGAIN,
                    );
                }
                Err(_) => {
                    problems.add(
                        self.dir.display().to_string(),
                        format!("{file} is missing"),
                        COPY_AGAIN,
                    );
                }
            }
        }
        problems.list.truncate(8);
        problems.or(())
    }

    /// Processes that wrote: the files are `__RANK_NUMBER.distcp`.
    pub fn writers(&self) -> usize {
        self.files
            .keys()
            .filter_map(|file| {
                file.strip_prefix("__")?
                    .split('_')
                    .next()?
                    .parse::<usize>()
                    .ok()
            })
            .collect::<BTreeSet<_>>()
            .len()
            .max(1)
    }

    /// Compares a tensor of the model with its expected shape.
    pub fn compare(&self, name: &str, expected: &[usize], compared: &mut Comparison) {
        match self.tensors.get(name) {
            Some(entry) if entry.is_of(expected) => {
                if let Err(what) = entry.check_tiles() {
                    compared.add(format!("{name}: {what}"));
                }
            }
            entry => compared.shape(name, entry.map(|entry| &entry.shape[..]), expected),
        }
    }

    /// Calls `each` with the rectangles of a tensor of `shape`: first row and column, rows and columns,
    /// values. A vector is a matrix of one column. With `layer`, the tensor has one such matrix a layer, on
    /// a leading axis, of which those of that layer are read.
    pub fn each_rectangle(
        &self,
        name: &str,
        layer: Option<usize>,
        shape: &[usize],
        each: &mut Put,
    ) -> anyhow::Result<()> {
        let entry = self.entry(name)?;
        let lead = usize::from(layer.is_some());
        let flat = entry.shape.len() == shape.len() + lead + 1;
        for chunk in &entry.chunks {
            let (first, size) = (chunk.offsets.first().copied(), chunk.sizes.first().copied());
            let before = match layer {
                None => 0,
                Some(layer) => match layer.checked_sub(first.unwrap_or(0)) {
                    Some(before) if before < size.unwrap_or(0) => before,
                    _ => continue,
                },
            };
            let file = self.archive(name, &chunk.item)?;
            let value = file.root();
            let tensor: &Tensor = value.tensor()?;
            if tensor.shape != chunk.sizes {
                let found = &tensor.shape;
                let said = &chunk.sizes;
                return Err(value.problem(format!("{name} is {found:?}, .metadata says {said:?}")));
            }
            let own = &chunk.sizes[lead..];
            let numel = volume(own);
            let which = before * numel..(before + 1) * numel;
            if flat {
                let Some(share) = entry.share(shape, lead) else {
                    return Err(value.problem(format!("{name} is not in pieces of {shape:?}")));
                };
                let mut done = 0;
                file.each_floats(tensor, which, &mut |values| {
                    chunk.unfold(&share, lead, done, values, each);
                    done += values.len();
                })?;
            } else {
                let mut rows = Rows::new(each, matrix(&chunk.offsets[lead..], 0), matrix(own, 1));
                file.each_floats(tensor, which, &mut |values| rows.push(values))?;
            }
        }
        Ok(())
    }

    /// Type of a tensor's numbers.
    pub fn element(&self, name: &str) -> anyhow::Result<Element> {
        let first = self.entry(name)?.chunks.first();
        let Some(chunk) = first else {
            return Err(self.problem(format!("{name} has no rectangle")));
        };
        Ok(self.archive(name, &chunk.item)?.root().tensor()?.element)
    }

    /// A number, which PyTorch saves as an object if it is Python's, and else as a tensor; None if it is
    /// not there.
    pub fn number(&self, name: &str) -> anyhow::Result<Option<f64>> {
        let items = self
            .tensors
            .get(name)
            .and_then(|entry| entry.chunks.first());
        let Some(item) = items
            .map(|chunk| &chunk.item)
            .or_else(|| self.objects.get(name))
        else {
            return Ok(None);
        };
        let file = self.archive(name, item)?;
        file.number(&file.root()).map(Some)
    }

    /// A number that counts steps or samples.
    pub fn count(&self, name: &str) -> anyhow::Result<Option<u64>> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        if number < 0.0 || number.fract() != 0.0 || !number.is_finite() {
            return Err(self.problem(format!("{name} is {number}, which is not a count")));
        }
        Ok(Some(number as u64))
    }

    /// Names of the tensors and of the objects.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors
            .keys()
            .chain(self.objects.keys())
            .map(String::as_str)
    }

    /// An object that torch.save wrote, opened; None if it is not there.
    pub fn object(&self, name: &str) -> anyhow::Result<Option<TorchFile>> {
        self.objects
            .get(name)
            .map(|item| self.archive(name, item))
            .transpose()
    }

    fn entry(&self, name: &str) -> anyhow::Result<&Entry> {
        self.tensors
            .get(name)
            .ok_or_else(|| self.problem(format!("has no {name}")))
    }

    fn archive(&self, name: &str, item: &Item) -> anyhow::Result<TorchFile> {
        let path = self.dir.join(&item.file);
        let place = path.display().to_string();
        let file = File::open(&path).with_context(|| format!("cannot open {place}"))?;
        TorchFile::within(Arc::new(file), format!("{place}, {name}"), item.at, item.len)
    }

    /// Name of the table in messages.
    pub fn place(&self) -> String {
        self.dir.join(".metadata").display().to_string()
    }

    /// An error about what the table has.
    pub fn problem(&self, what: String) -> anyhow::Error {
        Problems::one(self.place(), what, IS_WHOLE).into()
    }

    /// An error about a run whose states gptrain cannot continue.
    pub fn unsupported(&self, what: String) -> anyhow::Error {
        Problems::one(
            self.place(),
            what,
            "import the weights alone by way of Hugging Face's format",
        )
        .into()
    }
}

/// Whole numbers of a list, a tuple or a `torch.Size`.
fn numbers(value: &Value) -> anyhow::Result<Vec<usize>> {
    value
        .items()?
        .iter()
        .map(|number| Ok(number.count()? as usize))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/fixtures/torch/small.py` wrote it with PyTorch.
    fn small() -> Metadata {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Metadata::read(&root.join("../../tests/fixtures/torch/small")).unwrap()
    }

    #[test]
    fn tensors_objects_and_numbers_of_pytorch_are_found() {
        let meta = small();
        let shapes: Vec<_> = meta
            .tensors
            .iter()
            .map(|(name, entry)| (&name[..], &entry.shape))
            .collect();
        let expected: [(&str, &[usize]); 5] = [
            ("half", &[3, 4]),
            ("layers", &[2, 2, 3]),
            ("matrix", &[3, 4]),
            ("step", &[]),
            ("vector", &[3]),
        ];
        assert_eq!(shapes.len(), expected.len());
        for (found, expected) in shapes.into_iter().zip(expected) {
            assert_eq!((found.0, &found.1[..]), expected);
        }
        assert_eq!(meta.writers(), 1);
        // A tensor, Python's int and float.
        assert_eq!(meta.count("step").unwrap(), Some(6));
        assert_eq!(meta.count("count").unwrap(), Some(7));
        assert_eq!(meta.number("rate").unwrap(), Some(0.125));
        assert_eq!(meta.number("missing").unwrap(), None);
        assert!(
            meta.count("rate")
                .unwrap_err()
                .to_string()
                .contains("rate is 0.125, which is not a count")
        );
        let text = meta.object("text").unwrap().unwrap();
        assert_eq!(text.root().str().unwrap(), "naïve");
    }

    #[test]
    fn rectangles_of_pytorch_are_read_and_those_of_one_layer() {
        let meta = small();
        let read = |name: &str, layer, shape: &[usize]| {
            let mut found = Vec::new();
            meta.each_rectangle(name, layer, shape, &mut |at, size, values| {
                found.push((at, size, values.to_vec()));
            })
            .map(|()| found)
        };
        let count = |from: u8, to: u8| (from..to).map(f32::from).collect::<Vec<_>>();
        assert_eq!(read("matrix", None, &[3, 4]).unwrap(), [([0, 0], [3, 4], count(0, 12))]);
        let eighths = count(0, 12).iter().map(|value| value / 8.0).collect();
        assert_eq!(read("half", None, &[3, 4]).unwrap(), [([0, 0], [3, 4], eighths)]);
        assert_eq!(read("vector", None, &[3]).unwrap(), [([0, 0], [3, 1], vec![1.0, -2.0, 0.5])]);
        assert_eq!(read("layers", Some(1), &[2, 3]).unwrap(), [([0, 0], [2, 3], count(6, 12))]);
        assert_eq!(read("layers", Some(2), &[2, 3]).unwrap(), []);
        assert!(
            read("missing", None, &[1])
                .unwrap_err()
                .to_string()
                .contains("has no missing")
        );
    }
}
