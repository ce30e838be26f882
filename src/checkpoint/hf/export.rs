//! A checkpoint written as a Hugging Face folder.

use super::config::{config, family_of};
use super::names::tensor_of;
use crate::base::{Bytes, DType, Problems};
use crate::checkpoint::{Checkpoint, safetensors};
use crate::engine::MASTER;
use crate::manifest::{self, Family};
use crate::model::{Layout, ModelShard};
use anyhow::Context;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

/// What was written.
#[derive(Clone, Debug)]
pub struct Exported {
    pub family: Family,
    pub bytes: Bytes,
    /// Whether there was a tokenizer.json to copy.
    pub tokenizer: bool,
}

/// Writes config.json, model.safetensors and the run's tokenizer into `to`, which is made. The
/// values are written as `dtype`, a type of floats. Holds one tensor at a time.
pub fn export(from: &Path, to: &Path, dtype: DType) -> anyhow::Result<Exported> {
    let checkpoint = Checkpoint::open(from)?;
    let text = &checkpoint.index.manifest;
    let m = manifest::parse(text, "the checkpoint's manifest", Path::new("."), &[])?.manifest;
    let family = family_of(&m.model, &from.display().to_string())?;
    let path = to.join("model.safetensors");
    if path.exists() {
        let what = "there is a model already";
        let remedy = "choose another folder, or remove it first";
        return Err(Problems::one(to.display().to_string(), what, remedy).into());
    }
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let bytes = weights(&checkpoint, &m.model, family, &path, dtype)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let eod = m.data.eod.map(|eod| eod.token);
    let (_, name) = names(dtype);
    write(&to.join("config.json"), &config(family, &m.model, name, eod))?;
    let tokenizer = match &m.data.tokenizer {
        Some(tokenizer) => copy_tokenizer(tokenizer, to, eod)?,
        None => false,
    };
    Ok(Exported { family, bytes: Bytes(bytes), tokenizer })
}

/// A type's name in safetensors and in config.json.
fn names(dtype: DType) -> (&'static str, &'static str) {
    match dtype {
        DType::F32 => ("F32", "float32"),
        DType::BF16 => ("BF16", "bfloat16"),
        DType::F16 => ("F16", "float16"),
        other => panic!("weights as {other}"),
    }
}

fn weights(
    checkpoint: &Checkpoint,
    model: &manifest::Model,
    family: Family,
    path: &Path,
    dtype: DType,
) -> anyhow::Result<u64> {
    let layout = Layout::new(model, ModelShard::whole(model));
    let mut all = Vec::new();
    for param in layout.params() {
        let tensor = checkpoint.index.tensor(&param.name);
        let tensor = tensor.with_context(|| format!("the checkpoint has no {}", param.name))?;
        let theirs = tensor_of(family, param, &tensor.shape, model.heads());
        all.push((tensor, theirs.with_context(|| format!("{} has no place", param.name))?));
    }
    let name = |name: &str| match name.starts_with("lm_head") {
        true => name.to_string(),
        false => format!("transformer.{name}"),
    };
    let (code, _) = names(dtype);
    let wanted: Vec<_> =
        all.iter().map(|(t, theirs)| (name(&theirs.name), code, theirs.shape(&t.shape))).collect();
    let metadata = BTreeMap::from([("format", "pt".to_string())]);
    let (header, data) = safetensors::header(&wanted, &metadata, 64)?;
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&header)?;
    for (tensor, theirs) in all {
        let values = theirs.theirs(&checkpoint.whole(tensor, MASTER)?);
        match dtype.halves(&values) {
            Some(bits) => out.write_all(bytemuck::cast_slice(&bits))?,
            None => out.write_all(bytemuck::cast_slice(&values))?,
        }
    }
    out.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    Ok(header.len() as u64 + data)
}

/// Copies tokenizer.json, and says in tokenizer_config.json how to load it.
fn copy_tokenizer(from: &Path, to: &Path, eod: Option<u32>) -> anyhow::Result<bool> {
    let text = match fs::read_to_string(from) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        read => read.with_context(|| format!("cannot read {}", from.display()))?,
    };
    let json: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", from.display()))?;
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let is_end = |token: &&serde_json::Value| {
        eod.is_some_and(|eod| token["id"] == eod) || token["content"] == "<|endoftext|>"
    };
    let end = added.clone().find(is_end).map(|token| token["content"].clone());
    write(&to.join("tokenizer.json"), &text)?;
    let mut config = json!({"tokenizer_class": "PreTrainedTokenizerFast"});
    if let Some(end) = end {
        config["bos_token"] = end.clone();
        config["eos_token"] = end;
    }
    write(&to.join("tokenizer_config.json"), &format!("{config:#}\n"))?;
    Ok(true)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
