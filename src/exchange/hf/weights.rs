//! Weights in a Hugging Face folder: one safetensors file, or several and their index.

use super::family;
use super::names::HfTensor;
use anyhow::Context;
use base::{DType, Problems};
use checkpoint::safetensors::{Entry, Reader, float_type};
use checkpoint::validate;
use engine::MASTER;
use manifest::Family;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// File of a model that is not sharded.
pub const ONE: &str = "model.safetensors";
/// Index that maps each tensor to its shard.
pub const INDEX: &str = "model.safetensors.index.json";

/// Remedy for a file that is missing, cut short or damaged.
const COPY_FILE: &str = "copy that file again";

/// Maximum number of listed problems of one kind; of more, only the number is given.
const LISTED: usize = 6;

/// Opened safetensors files.
pub struct Weights {
    folder: PathBuf,
    family: Family,
    files: Vec<Reader>,
    /// Name → index of the file.
    names: BTreeMap<String, usize>,
}

impl Weights {
    /// Opens the files, whose headers are checked.
    pub fn open(folder: &Path, family: Family) -> anyhow::Result<Weights> {
        let mut weights = Weights {
            folder: folder.to_path_buf(),
            family,
            files: Vec::new(),
            names: BTreeMap::new(),
        };
        let index = ShardIndex::read(folder, |name| !weights.is_buffer(name))?;
        for (i, file) in index.files.iter().enumerate() {
            if is_lfs_pointer(&folder.join(file)) {
                return Err(weights
                    .problem(
                        format!("{file} is a pointer of Git LFS, without the weights"),
                        "git lfs pull, or hf download",
                    )
                    .into());
            }
            let opened = Reader::open(&folder.join(file));
            let reader = opened.map_err(|error| weights.damaged(error))?;
            for name in reader.entries.keys() {
                let Some(other) = weights.names.insert(name.clone(), i) else { continue };
                // If two files have a tensor, the index says which one counts.
                match index.map.get(name) {
                    Some(named) if named == file => {}
                    Some(named) if *named == index.files[other] => {
                        weights.names.insert(name.clone(), other);
                    }
                    _ => {
                        return Err(weights
                            .problem(
                                format!("{name} is in {} and in {file}", index.files[other]),
                                &format!("name the file to use for it in {INDEX}"),
                            )
                            .into());
                    }
                }
            }
            weights.files.push(reader);
        }
        // A name of the index that no file has is missing only if the model needs it (`check`).
        Ok(weights)
    }

    /// Checks that the folder has exactly the needed tensors, with their shapes, as floating-point
    /// numbers. Returns the number of values of each type, or all problems. `tied`: whether the head is
    /// the embedding.
    pub fn check(
        &self,
        needed: &[HfTensor],
        tied: bool,
    ) -> Result<BTreeMap<String, usize>, Problems> {
        let mut missing = Vec::new();
        let mut wrong = Vec::new();
        let mut unread = Vec::new();
        let mut types = BTreeMap::new();
        let mut read = BTreeSet::new();
        for tensor in needed {
            let Some((name, entry)) = self.find(&tensor.name) else {
                missing.push(format!("{} is missing", tensor.name));
                continue;
            };
            read.insert(name);
            *types.entry(entry.dtype.clone()).or_insert(0) += entry.shape.iter().product::<usize>();
            let shape = &entry.shape;
            let dtype = &entry.dtype;
            if *shape != tensor.shape {
                let needed = &tensor.shape;
                wrong.push(format!("{name} is {shape:?}, config.json makes it {needed:?}"));
            } else if float_type(dtype).is_none() {
                unread.push(format!("{name} is {dtype}: F32, BF16 and F16 are read"));
            }
        }
        let known = |name: &str| self.is_buffer(name) || tied && name == "lm_head.weight";
        let more = self
            .names
            .keys()
            .filter(|name| !read.contains(name.as_str()) && !known(name))
            .map(|name| format!("{name} is not in a {} model", self.family.name()));
        let mut problems = Problems::default();
        self.list(
            missing,
            "config.json is of another model, or a shard was not copied",
            &mut problems,
        );
        self.list(wrong, "config.json and the weights are not of one model", &mut problems);
        self.list(unread, "save the model in float32, bfloat16 or float16", &mut problems);
        self.list(more.collect(), "config.json is of another model", &mut problems);
        problems.or(types)
    }

    /// Types of the needed tensors, by their names in a whole model.
    pub fn types(&self, needed: &[HfTensor]) -> BTreeMap<String, String> {
        needed
            .iter()
            .filter_map(|tensor| {
                Some((tensor.name.clone(), self.find(&tensor.name)?.1.dtype.clone()))
            })
            .collect()
    }

    fn list(&self, found: Vec<String>, remedy: &str, problems: &mut Problems) {
        let rest = found.len().saturating_sub(LISTED);
        for what in found.into_iter().take(LISTED) {
            problems.add(self.folder.display().to_string(), what, remedy);
        }
        if rest > 0 {
            problems.add(
                self.folder.display().to_string(),
                format!("and {rest} more tensors like the last one"),
                "",
            );
        }
    }

    /// Copies a tensor, widened to f32, to its place in our weight. Fails on non-finite values. Holds some
    /// MiB, of a transposed tensor all.
    pub fn read(&self, tensor: &HfTensor, ours: &mut [f32]) -> anyhow::Result<()> {
        let (name, _) = self
            .find(&tensor.name)
            .with_context(|| format!("no {}", tensor.name))?;
        let Some(cols) = tensor.row_len() else {
            let values = self.floats(name)?;
            self.ensure_finite(name, &values)?;
            tensor.put(&values, ours);
            return Ok(());
        };
        let mut finite = true;
        let file = &self.files[self.names[name]];
        let read = file.each_floats(name, cols, &mut |first, values| {
            finite &= DType::F32.finite(bytemuck::cast_slice(values));
            tensor.put_rows(first / cols.max(1), values, ours);
        });
        read.map_err(|error| self.damaged(error))?;
        if !finite {
            self.ensure_finite(name, &self.floats(name)?)?;
        }
        Ok(())
    }

    fn ensure_finite(&self, name: &str, values: &[f32]) -> Result<(), Problems> {
        let found = validate::values(MASTER, DType::F32, bytemuck::cast_slice(values));
        if found.is_empty() {
            return Ok(());
        }
        Err(self.problem(
            format!("{name} has {}", found.join(", ")),
            "this model cannot be used: take an earlier version of it",
        ))
    }

    /// Fails if config.json ties the head to the embedding, but the folder has a head with other values:
    /// transformers 5 uses that head, older versions the embedding.
    pub fn check_head(&self, needed: &[HfTensor], tied: bool) -> anyhow::Result<()> {
        let end = family::row(self.family).embedding;
        let embedding = needed
            .iter()
            .find(|tensor| tensor.name.ends_with(end))
            .and_then(|tensor| self.find(&tensor.name));
        let (true, Some((head, _)), Some((embedding, _))) =
            (tied, self.find("lm_head.weight"), embedding)
        else {
            return Ok(());
        };
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        if bits(self.floats(head)?) == bits(self.floats(embedding)?) {
            return Ok(());
        }
        let tied = family::dialect(self.family).name("model.tied_head");
        Err(self
            .problem(
                format!("lm_head.weight is not {embedding}, which config.json ties"),
                &format!("set {tied} to false in config.json to keep this head"),
            )
            .into())
    }

    /// Tensors of the folder, without constants that old files contain.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Entry)> {
        let all = self.names.iter();
        all.filter(|(name, _)| !self.is_buffer(name))
            .map(|(name, file)| (name.as_str(), &self.files[*file].entries[name]))
    }

    /// Values of a tensor. Damage is reported as the user's mistake, because the folder is an input.
    pub fn floats(&self, name: &str) -> anyhow::Result<Vec<f32>> {
        let read = self.files[self.names[name]].floats(name);
        read.map_err(|error| self.damaged(error))
    }

    /// Error for a missing or damaged file: the user's mistake. A failed read of the disk is not.
    fn damaged(&self, error: anyhow::Error) -> anyhow::Error {
        let kind = error
            .chain()
            .find_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
        let damage = [ErrorKind::NotFound, ErrorKind::UnexpectedEof];
        if kind.is_none_or(|kind| damage.contains(&kind)) {
            self.problem(format!("{error:#}"), COPY_FILE).into()
        } else {
            error
        }
    }

    /// Tensor by its name, or by that without the family's prefix, as in a model without a head.
    fn find(&self, name: &str) -> Option<(&str, &Entry)> {
        let short = name
            .strip_prefix(family::row(self.family).prefix)
            .unwrap_or(name);
        let (name, file) = self
            .names
            .get_key_value(name)
            .or_else(|| self.names.get_key_value(short))?;
        Some((name, &self.files[*file].entries[name]))
    }

    /// Whether it is a constant that old files contain: masks, and the frequencies of RoPE.
    fn is_buffer(&self, name: &str) -> bool {
        let buffers = family::row(self.family).buffers;
        buffers.iter().any(|buffer| name.ends_with(buffer))
    }

    fn problem(&self, what: String, remedy: &str) -> Problems {
        Problems::one(self.folder.display().to_string(), what, remedy)
    }
}

/// Whether a file is the text that git stores in place of a large one.
fn is_lfs_pointer(path: &Path) -> bool {
    let mut begin = [0; 23];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == *b"version https://git-lfs"
}

/// Files of a folder.
struct ShardIndex {
    files: Vec<String>,
    /// Name → file, if there is an index.
    map: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Reads the index, with the names that are `needed`.
    fn read(folder: &Path, needed: impl Fn(&str) -> bool) -> anyhow::Result<ShardIndex> {
        let path = folder.join(INDEX);
        let place = path.display().to_string();
        let wrong = |what: &str| Problems::one(place.clone(), what, COPY_FILE);
        if folder.join(ONE).exists() {
            return Ok(ShardIndex { files: vec![ONE.to_string()], map: BTreeMap::new() });
        }
        if !path.exists() {
            let bin = folder.join("pytorch_model.bin").exists()
                || folder.join("pytorch_model.bin.index.json").exists();
            let what = if bin {
                "holds pytorch_model.bin, which may run code when it is read".to_string()
            } else {
                format!("holds neither {ONE} nor {INDEX}")
            };
            return Err(Problems::one(
                folder.display().to_string(),
                what,
                "save the model with transformers' save_pretrained, which writes safetensors",
            )
            .into());
        }
        let text = fs::read(&path).with_context(|| format!("cannot read {place}"))?;
        let json: serde_json::Value = base::json::from_python(&text)
            .map_err(|error| wrong(&format!("is not JSON: {error}")))?;
        let map = json["weight_map"]
            .as_object()
            .ok_or_else(|| wrong("has no weight_map"))?;
        let map: BTreeMap<String, String> = map
            .iter()
            .filter(|(name, _)| needed(name))
            .map(|(name, file)| {
                let file = file.as_str().filter(|file| !file.contains(['/', '\\']));
                Ok((
                    name.clone(),
                    file.ok_or_else(|| wrong(&format!("the file of {name}")))?
                        .to_string(),
                ))
            })
            .collect::<Result<_, Problems>>()?;
        let files: BTreeSet<String> = map.values().cloned().collect();
        Ok(ShardIndex { files: files.into_iter().collect(), map })
    }
}
