//! The table of a distributed checkpoint, `.metadata`: each tensor's rectangles and the bytes of the
//! files they are in. Each item is an archive of torch.save of its own.

use super::super::super::torch::{IS_WHOLE, Tensor, TorchFile, Tree, Value, pickled};
use super::super::compare::Comparison;
use super::super::run::Put;
use super::super::{COPY_AGAIN, incomplete};
use anyhow::Context;
use base::{Problems, input};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The largest table that is read.
const MAX_BYTES: u64 = 256 << 20;
/// Rectangles of a tensor that are compared pair by pair, at most.
const MAX_PAIRED: usize = 1 << 13;

/// A checkpoint's tensors and objects by their names.
pub struct Metadata {
    dir: PathBuf,
    pub tensors: BTreeMap<String, Entry>,
    objects: BTreeMap<String, Item>,
    /// Files that items are in, with the bytes that each must have.
    files: BTreeMap<String, u64>,
}

/// A tensor of the whole model.
pub struct Entry {
    pub shape: Vec<usize>,
    chunks: Vec<Chunk>,
}

/// A rectangle of a tensor.
struct Chunk {
    offsets: Vec<usize>,
    sizes: Vec<usize>,
    item: Item,
}

/// Bytes of a file.
#[derive(Clone)]
struct Item {
    file: String,
    at: u64,
    len: u64,
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

    /// Checks that the rectangles of a tensor cover it exactly once.
    fn tiles(&self, name: &str) -> Result<(), String> {
        let entry = &self.tensors[name];
        let mut covered = 0usize;
        for chunk in &entry.chunks {
            let inside = chunk.offsets.len() == entry.shape.len()
                && chunk.sizes.len() == entry.shape.len()
                && chunk
                    .ends()
                    .zip(&entry.shape)
                    .all(|(end, size)| end <= *size);
            if !inside {
                return Err(format!(
                    "the part {:?} at {:?} is outside of {:?}",
                    chunk.sizes, chunk.offsets, entry.shape
                ));
            }
            covered = covered.saturating_add(volume(&chunk.sizes));
        }
        let mut chunks: Vec<&Chunk> = entry
            .chunks
            .iter()
            .filter(|chunk| volume(&chunk.sizes) > 0)
            .collect();
        if !is_grid(&mut chunks, 0) {
            overlaps(&chunks)?;
        }
        match volume(&entry.shape) {
            all if all == covered => Ok(()),
            all => Err(format!("its parts have {covered} of {all} elements")),
        }
    }

    /// Compares a tensor of the model with its expected shape.
    pub fn compare(&self, name: &str, expected: &[usize], compared: &mut Comparison) {
        let entry = self.tensors.get(name);
        if !entry.is_some_and(|entry| entry.is_of(expected)) {
            compared.shape(name, entry.map(|entry| &entry.shape[..]), expected);
            return;
        }
        if let Err(what) = self.tiles(name) {
            compared.add(format!("{name}: {what}"));
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
            let values = file.floats(tensor, before * numel..(before + 1) * numel)?;
            if flat {
                let share = entry.share(shape, lead);
                chunk.unfold(
                    &share.ok_or_else(|| {
                        value.problem(format!("{name} is not in pieces of {shape:?}"))
                    })?,
                    lead,
                    &values,
                    each,
                );
            } else {
                each(matrix(&chunk.offsets[lead..], 0), matrix(own, 1), &values);
            }
        }
        Ok(())
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

impl Entry {
    /// Whether it is a tensor of shape `whole`: in rectangles, or in flat pieces of ranks' shares.
    pub fn is_of(&self, whole: &[usize]) -> bool {
        self.shape == whole || self.share(whole, 0).is_some()
    }

    /// Shape of a rank's share of a tensor of shape `whole`, without its first `lead` axes, if the entry
    /// has flat pieces of such shares: its axes count the shares, the last one a share's elements.
    fn share(&self, whole: &[usize], lead: usize) -> Option<Vec<usize>> {
        let (elements, counts) = self.shape.split_last()?;
        let counts = counts
            .get(lead..)
            .filter(|counts| counts.len() == whole.len())?;
        let share = |(size, count): (&usize, &usize)| {
            (*count > 0 && size.is_multiple_of(*count)).then(|| size / count)
        };
        let share: Vec<usize> = whole.iter().zip(counts).map(share).collect::<Option<_>>()?;
        (volume(&share) == *elements).then_some(share)
    }
}

impl Chunk {
    /// Calls `each` with the rectangles of a flat piece of a rank's share: rows, and parts of rows.
    fn unfold(&self, share: &[usize], lead: usize, values: &[f32], each: &mut Put) {
        let counts = &self.offsets[lead..self.offsets.len() - 1];
        let corner: Vec<usize> = counts.iter().zip(share).map(|(n, size)| n * size).collect();
        let [top, left] = matrix(&corner, 0);
        let width = matrix(share, 1)[1].max(1);
        let begin = self.offsets.last().copied().unwrap_or(0);
        let mut done = 0;
        while done < values.len() {
            let row = (begin + done) / width;
            let col = (begin + done) % width;
            let rest = values.len() - done;
            let size = match col {
                0 if rest >= width => [rest / width, width],
                _ => [1, rest.min(width - col)],
            };
            let count = size[0] * size[1];
            each([top + row, left + col], size, &values[done..done + count]);
            done += count;
        }
    }

    fn ends(&self) -> impl Iterator<Item = usize> {
        self.offsets
            .iter()
            .zip(&self.sizes)
            .map(|(at, size)| at.saturating_add(*size))
    }

    fn overlaps(&self, other: &Chunk) -> bool {
        let starts = self.offsets.iter().zip(&other.offsets);
        let ends = self.ends().zip(other.ends());
        starts
            .zip(ends)
            .all(|((a, b), (a_end, b_end))| *a < b_end && *b < a_end)
    }
}

/// Whether rectangles are cut at the same places along each axis, and none is there twice: then none overlap.
fn is_grid(chunks: &mut [&Chunk], axis: usize) -> bool {
    let Some(first) = chunks.first() else { return true };
    if axis == first.sizes.len() {
        return chunks.len() == 1;
    }
    let range = |chunk: &Chunk| (chunk.offsets[axis], chunk.offsets[axis] + chunk.sizes[axis]);
    chunks.sort_by_key(|chunk| range(chunk));
    let mut end = 0;
    chunks
        .chunk_by_mut(|a, b| range(a) == range(b))
        .all(|group| {
            let (begin, last) = range(group[0]);
            let apart = begin >= end;
            end = last;
            apart && is_grid(group, axis + 1)
        })
}

/// An error if two rectangles overlap, or if there are too many to compare all pairs.
fn overlaps(chunks: &[&Chunk]) -> Result<(), String> {
    if chunks.len() > MAX_PAIRED {
        return Err(format!("its {} parts are not a grid", chunks.len()));
    }
    for (i, chunk) in chunks.iter().enumerate() {
        if let Some(other) = chunks[..i].iter().find(|other| chunk.overlaps(other)) {
            let [a, b] = [&other.offsets, &chunk.offsets];
            return Err(format!("its parts at {a:?} and {b:?} overlap"));
        }
    }
    Ok(())
}

/// Rows and columns of offsets or sizes; `default` is the value of a missing axis.
fn matrix(axes: &[usize], default: usize) -> [usize; 2] {
    [0, 1].map(|axis| axes.get(axis).copied().unwrap_or(default))
}

/// Elements of a shape; `usize::MAX` if they overflow.
fn volume(sizes: &[usize]) -> usize {
    sizes
        .iter()
        .try_fold(1usize, |n, size| n.checked_mul(*size))
        .unwrap_or(usize::MAX)
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

    fn tiles(shape: &[usize], parts: &[([usize; 2], [usize; 2])]) -> Result<(), String> {
        let entry = Entry {
            shape: shape.to_vec(),
            chunks: parts
                .iter()
                .map(|(offsets, sizes)| {
                    let item = Item { file: "__0_0.distcp".into(), at: 0, len: 0 };
                    Chunk { offsets: offsets.to_vec(), sizes: sizes.to_vec(), item }
                })
                .collect(),
        };
        let tensors = BTreeMap::from([("w".to_string(), entry)]);
        let (dir, objects, files) = Default::default();
        Metadata { dir, tensors, objects, files }.tiles("w")
    }

    #[test]
    fn rectangles_that_overlap_leave_gaps_or_reach_beyond_are_found() {
        let grid = [([0, 0], [2, 3]), ([2, 0], [2, 3]), ([0, 3], [2, 1]), ([2, 3], [2, 1])];
        assert_eq!(tiles(&[4, 4], &grid), Ok(()));
        assert!(tiles(&[4, 4], &grid[..3]).unwrap_err().contains("14 of 16"));
        assert!(
            tiles(&[3, 4], &grid)
                .unwrap_err()
                .contains("outside of [3, 4]")
        );
        // Around a square in the middle: not a grid.
        let wheel = [
            ([0, 0], [1, 2]),
            ([0, 2], [2, 1]),
            ([2, 1], [1, 2]),
            ([1, 0], [2, 1]),
            ([1, 1], [1, 1]),
        ];
        assert_eq!(tiles(&[3, 3], &wheel), Ok(()));
        let twice = [([0, 0], [2, 2]), ([0, 0], [2, 2])];
        assert!(tiles(&[2, 4], &twice).unwrap_err().contains("overlap"));
        let shifted = [([0, 0], [2, 2]), ([1, 1], [2, 2])];
        assert!(tiles(&[4, 2], &shifted).unwrap_err().contains("outside"));
        assert!(
            tiles(&[4, 4], &shifted)
                .unwrap_err()
                .contains("[0, 0] and [1, 1] overlap")
        );
    }

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

    #[test]
    fn a_flat_piece_is_cut_into_rows_and_parts_of_rows() {
        // Rank [1, 0] of [2, 2] has rows 2 and 3, columns 0 to 2; the piece has its elements 1 to 5.
        let item = Item { file: "__0_0.distcp".into(), at: 0, len: 0 };
        let chunk = Chunk { offsets: vec![1, 0, 1], sizes: vec![1, 1, 5], item };
        let mut found = Vec::new();
        chunk.unfold(&[2, 3], 0, &[1.0, 2.0, 3.0, 4.0, 5.0], &mut |at, size, values| {
            found.push((at, size, values.to_vec()));
        });
        assert_eq!(
            found,
            [([2, 1], [1, 2], vec![1.0, 2.0]), ([3, 0], [1, 3], vec![3.0, 4.0, 5.0])]
        );
        let entry = Entry { shape: vec![2, 2, 6], chunks: Vec::new() };
        assert_eq!(entry.share(&[4, 6], 0), Some(vec![2, 3]));
        assert!(entry.is_of(&[4, 6]) && !entry.is_of(&[4, 4]) && !entry.is_of(&[5, 6]));
    }
}
