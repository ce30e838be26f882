//! The weights in a Hugging Face folder: one safetensors file, or several and their index.

use super::HfTensor;
use crate::base::Problems;
use crate::checkpoint::safetensors::Reader;
use crate::manifest::Family;
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Opened safetensors files, their tensors by name without a leading `transformer.`.
pub struct Weights {
    folder: PathBuf,
    files: Vec<Reader>,
    /// Name → index of the file, and the tensor's name in it.
    names: BTreeMap<String, (usize, String)>,
}

impl Weights {
    pub fn open(folder: &Path) -> anyhow::Result<Weights> {
        let mut weights =
            Weights { folder: folder.to_path_buf(), files: Vec::new(), names: BTreeMap::new() };
        for (i, file) in files(folder)?.iter().enumerate() {
            let reader = Reader::open(&folder.join(file))?;
            for name in reader.entries.keys() {
                let short = name.strip_prefix("transformer.").unwrap_or(name);
                weights.names.insert(short.to_string(), (i, name.clone()));
            }
            weights.files.push(reader);
        }
        Ok(weights)
    }

    /// One weight, widened to f32, in our layout. `shape` is ours.
    pub fn read(&self, tensor: &HfTensor, shape: &[usize]) -> anyhow::Result<Vec<f32>> {
        let folder = self.folder.display();
        let found = self.names.get(&tensor.name);
        let (file, name) = found.with_context(|| format!("{folder} has no {}", tensor.name))?;
        let reader = &self.files[*file];
        let (theirs, needed) = (&reader.entry(name)?.shape, tensor.shape(shape));
        if *theirs != needed {
            let what = format!("{name} is {theirs:?}, config.json makes it {needed:?}");
            return Err(Problems::one(folder.to_string(), what, "fix config.json").into());
        }
        Ok(tensor.ours(&reader.floats(name)?))
    }

    /// Names of tensors that no weight of ours is read from, which would be lost; without masks and
    /// the second copy of a tied head.
    pub fn unread(&self, family: Family, read: &BTreeSet<String>, tied: bool) -> Vec<String> {
        let mask = |name: &str| {
            let masks = ["attn.bias", "attn.masked_bias"];
            family == Family::Gpt2 && masks.iter().any(|mask| name.ends_with(mask))
        };
        let copy = |name: &str| tied && name == "lm_head.weight";
        let unread = self.names.keys().filter(|n| !read.contains(*n) && !mask(n) && !copy(n));
        unread.cloned().collect()
    }
}

/// The safetensors files of a folder.
fn files(folder: &Path) -> anyhow::Result<BTreeSet<String>> {
    let one = "model.safetensors";
    let index = folder.join("model.safetensors.index.json");
    if folder.join(one).exists() || !index.exists() {
        return Ok(BTreeSet::from([one.to_string()]));
    }
    let place = || format!("cannot read {}", index.display());
    let text = fs::read_to_string(&index).with_context(place)?;
    let json: serde_json::Value = serde_json::from_str(&text).with_context(place)?;
    let map = json["weight_map"].as_object().with_context(place)?;
    let names = map.values().filter_map(|file| file.as_str());
    let plain = names.filter(|name| !name.contains(['/', '\\']));
    Ok(plain.map(str::to_string).collect())
}
