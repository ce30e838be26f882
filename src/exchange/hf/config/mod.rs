//! Converts a manifest's model to config.json, and back.

mod gpt;
mod llama;
mod reader;
mod rope;

use super::family;
use crate::foreign::detect;
use anyhow::Context;
use base::Problems;
use manifest::dialects::{Dialect, ROWS};
use manifest::{Family, Model, model_settings};
use reader::Reader;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Contents of a config.json.
#[derive(Clone, Debug)]
pub struct HfConfig {
    pub family: Family,
    /// Shape and dropout, as in a manifest; initial weights and padding are a manifest's defaults.
    pub model: Model,
    /// Longest sample for which the model was made.
    pub positions: usize,
    /// Unknown keys, which are ignored.
    pub unknown: Vec<String>,
}

/// Reads a folder's config.json. The error is every mistake in it.
pub fn read_config(folder: &Path) -> anyhow::Result<HfConfig> {
    let path = folder.join("config.json");
    let place = path.display().to_string();
    let remedy = "give a folder that transformers' save_pretrained wrote";
    match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(missing(folder, place, remedy).into())
        }
        read => parse_config(&read.with_context(|| format!("cannot read {place}"))?, place),
    }
}

/// Whether a text is a config.json of Hugging Face, of a known model or not.
pub fn is_config(text: &[u8]) -> bool {
    let Ok(Value::Object(config)) = base::json::from_python(text) else { return false };
    config.contains_key("model_type") || config.contains_key("architectures")
}

/// Model of a config.json's text. `place` names it in messages.
pub fn parse_config(text: &[u8], place: String) -> anyhow::Result<HfConfig> {
    let remedy = "give a folder that transformers' save_pretrained wrote";
    let config: Map<String, Value> = match base::json::from_python(text) {
        Ok(Value::Object(config)) => config,
        Ok(_) => return Err(Problems::one(place, "not a JSON object", remedy).into()),
        Err(error) => {
            return Err(Problems::one(place, format!("not a JSON object: {error}"), remedy).into());
        }
    };
    let mut reader = Reader::new(&config, &place, "", Dialect::Llama);
    let kind = reader.text("model.family");
    let Some(family) = kind.and_then(Family::by_name) else {
        let what = format!("{} {}", reader.name("model.family"), kind.unwrap_or("is missing"));
        let known: Vec<&str> = Family::ALL.iter().map(|family| family.name()).collect();
        let (last, others) = known.split_last().expect("families");
        let known = format!("{} and {last} are known", others.join(", "));
        return Err(Problems::one(place, what, known).into());
    };
    reader.dialect = family::dialect(family);
    architecture(&mut reader, family);
    let read = if family.is_llama() {
        llama::read(&mut reader, family)
    } else {
        gpt::read(&mut reader, family)
    };
    Ok(reader.problems.or(read)?)
}

/// Error for a folder without config.json, which may be another trainer's.
fn missing(folder: &Path, place: String, remedy: &str) -> Problems {
    match detect(folder) {
        Ok(other) => Problems::one(
            place,
            format!("there is no such file: the files are those of {}", other.name()),
            format!("gptrain import {} --dry", folder.display()),
        ),
        Err(_) => Problems::one(place, "there is no such file", remedy),
    }
}

/// A classifier has other weights than a language model.
fn architecture(config: &mut Reader, family: Family) {
    let Some(value) = config.get("architectures") else { return };
    let own = family::row(family).class;
    let base = own
        .replace("ForCausalLM", "Model")
        .replace("LMHeadModel", "Model");
    let named = value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    if !named.into_iter().any(|name| name == own || name == base) {
        config.wrong("architectures", &format!("{own} is needed"));
    }
}

/// Family whose config.json can describe the model: its own, or another of the Llama families, such as
/// Mistral for a Llama with a window. The error lists the settings that its own cannot express.
pub fn target(model: &Model, place: &str) -> Result<Family, Problems> {
    let own = model.family;
    if !own.is_llama() {
        return gpt::check_expressible(own, model, place);
    }
    let lacks = llama::lacks(own, model);
    let others = Family::ALL
        .iter()
        .copied()
        .filter(|family| family.is_llama());
    let found = [own]
        .into_iter()
        .chain(others)
        .find(|f| llama::lacks(*f, model).is_empty());
    found.ok_or_else(|| {
        Problems::one(
            place,
            format!("{}: {} cannot say that", lacks.join(", "), own.name()),
            "Hugging Face has no model of these parts: train one of its families'",
        )
    })
}

/// Keys and values of settings of the model.
fn copy(dialect: Dialect, m: &Model, settings: &[&str]) -> Map<String, Value> {
    let model = json!({ "model": model_settings(m) });
    let written = settings
        .iter()
        .filter_map(|setting| dialect.written(setting, &model));
    written
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

/// Ids of tokens, as in config.json and generation_config.json.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenIds {
    pub bos: Value,
    /// One id, or a list.
    pub eos: Value,
}

/// Text of config.json. `dtype` is the type of the weights in the folder. `carried` is the imported
/// config.json, if any; its other keys are kept.
pub fn write_config(
    family: Family,
    m: &Model,
    dtype: &str,
    tokens: &TokenIds,
    carried: Option<Map<String, Value>>,
) -> String {
    let mut config = carried.unwrap_or_default();
    let kept: Vec<String> = config.keys().cloned().collect();
    let ours = if family.is_llama() { llama::write(family, m) } else { gpt::write(family, m) };
    let dialect = family::dialect(family);
    if family.is_llama() {
        let key = dialect.name("model.positions");
        let longest = config.get(key).and_then(Value::as_u64);
        config.extend(ours);
        if longest > config.get(key).and_then(Value::as_u64) {
            config.insert(key.to_string(), json!(longest));
        }
    } else {
        config.extend(ours);
    }
    config.append(&mut copy(dialect, m, &["model.vocab", "model.init.std", "model.tied_head"]));
    config.insert("architectures".into(), json!([family::row(family).class]));
    config.insert(dialect.name("model.family").into(), family.name().into());
    // Its name since transformers 5, and before.
    for key in dialect.names("precision") {
        config.insert(key.into(), dtype.into());
    }
    // An imported file may have the same setting under another name.
    for row in ROWS {
        let mut names = row.names(dialect);
        let value = names.next().and_then(|name| config.get(name)).cloned();
        for other in names.filter(|other| kept.iter().any(|name| name == other)) {
            config.insert(other.to_string(), value.clone().unwrap_or_default());
        }
    }
    for (key, id) in [("bos_token_id", &tokens.bos), ("eos_token_id", &tokens.eos)] {
        config.entry(key).or_insert(id.clone());
    }
    format!("{:#}\n", Value::Object(config))
}
