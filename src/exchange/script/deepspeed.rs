//! DeepSpeed's JSON as arguments of the program that it configures.

use super::Script;
use super::launch::{Given, Program};
use anyhow::Context;
use base::{Problems, input};
use manifest::dialects::{Dialect, Meaning, ROWS, Row};
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;

/// DeepSpeed's loss scale of 0 is a dynamic one.
const LOSS_SCALE: &str = "fp16.loss_scale";
/// Set by `offload`.
const OFFLOAD: &str = "topology.offload.what";
/// Read by `trainer`. DeepSpeed counts the ranks of a shard group, Megatron the groups.
const SHARD: &str = "topology.shard";
/// Exponent of the first dynamic scale.
const POWER: &str = "fp16.initial_scale_power";

/// Reads DeepSpeed's JSON, flattened to dotted names: of `--deepspeed`, of a here-document of the script, or
/// of a file that is here. None if the script names none, or one that is not here, which is noted.
pub fn read(script: &Script, notes: &mut Vec<String>) -> anyhow::Result<BTreeMap<String, Json>> {
    let names = ["deepspeed_config", "deepspeed"];
    let named = names
        .into_iter()
        .filter_map(|name| script.launch.get(name)?.words.first())
        .find(|word| word.ends_with(".json") || script.shell.files.contains_key(*word));
    let (place, text) = match (&script.choices.deepspeed, named) {
        (Some(path), _) => {
            input::is_there(path)?;
            let place = path.display().to_string();
            let bytes =
                input::read(path, input::SMALL).with_context(|| format!("cannot read {place}"))?;
            (place, String::from_utf8_lossy(&bytes).into_owned())
        }
        (None, Some(name)) => match script.shell.file(name) {
            Some(text) => (name.clone(), text),
            None => {
                notes.push(format!(
                    "{name}: DeepSpeed's JSON is not here: give it with --deepspeed FILE for its loss \
                     scale, clipping and ZeRO stage"
                ));
                return Ok(BTreeMap::new());
            }
        },
        (None, None) => return Ok(BTreeMap::new()),
    };
    let json: Json = serde_json::from_str(&text).map_err(|error| {
        Problems::one(
            format!("{place}, line {}", error.line()),
            format!("is not JSON: {error}"),
            "correct it, or give another file: --deepspeed FILE",
        )
    })?;
    let mut flat = BTreeMap::new();
    flatten("", json, &mut flat);
    Ok(flat)
}

/// The JSON again, of its dotted names.
pub fn nest(flat: &BTreeMap<String, Json>) -> Json {
    let mut root = Json::Null;
    for (name, value) in flat {
        let mut place = &mut root;
        for word in name.split('.') {
            // A name with a dot of its own may lead into a value.
            if !place.is_object() {
                *place = Json::Object(Map::new());
            }
            place = &mut place[word];
        }
        *place = value.clone();
    }
    root
}

fn flatten(prefix: &str, json: Json, flat: &mut BTreeMap<String, Json>) {
    match json {
        Json::Object(entries) => {
            for (key, value) in entries {
                let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                flatten(&name, value, flat);
            }
        }
        // The Trainer replaces "auto" by the value of its argument.
        Json::String(text) if text == "auto" => {}
        value => {
            flat.insert(prefix.to_string(), value);
        }
    }
}

/// Row of a name in DeepSpeed's JSON: of all of it, of the section of a device, or of its last word.
pub fn row(name: &str) -> Option<&'static Row> {
    let exact = |name: &str| {
        let mut rows = ROWS.iter();
        rows.find(|row| row.names(Dialect::HuggingFace).any(|known| known == name))
    };
    let (section, last) = name.rsplit_once('.').unwrap_or(("", name));
    let section = if last == "device" { section } else { name };
    let beginning = || ROWS.iter().find(|row| row.has(Dialect::HuggingFace, name));
    exact(name)
        .or_else(|| exact(section))
        .or_else(|| exact(last))
        .or_else(beginning)
}

/// Value of `topology.offload.what`, and its name; None without offload.
pub fn offload(flat: &BTreeMap<String, Json>) -> Option<(&'static str, &'static str)> {
    let devices = [
        ("full", "zero_optimization.offload_param.device"),
        ("optimizer", "zero_optimization.offload_optimizer.device"),
    ];
    devices.into_iter().find(|(_, name)| {
        let device = flat.get(*name).and_then(Json::as_str);
        device.is_some_and(|device| device != "none")
    })
}

/// JSON as arguments of a program: those that it has by another name too.
pub fn arguments(flat: &BTreeMap<String, Json>, program: Program) -> Vec<Given> {
    let dialect = program.dialect();
    let enabled =
        |section: &str| flat.get(&format!("{section}.enabled")) == Some(&Json::from(true));
    let dynamic = flat.get(LOSS_SCALE).and_then(Json::as_f64) == Some(0.0);
    let mut arguments = Vec::new();
    for (name, value) in flat {
        let section = name.split('.').next().unwrap_or(name);
        if section == "fp16" && !enabled("fp16") || (name == POWER && !dynamic) {
            continue;
        }
        if section == "curriculum_learning" {
            if name == "curriculum_learning.enabled" && enabled(section) {
                arguments.push(Given::new(section, vec![value.to_string()]));
            }
            continue;
        }
        let setting = match row(name).map(|row| row.meaning) {
            Some(Meaning::Setting { key: OFFLOAD | SHARD, .. }) => continue,
            Some(Meaning::Setting { key, value: Some(value) }) => format!("{key}: {value}"),
            Some(Meaning::Setting { key, value: None }) => key.to_string(),
            _ => continue,
        };
        let Some(theirs) = dialect.names(&setting).first().copied() else { continue };
        let value = match value {
            _ if name == LOSS_SCALE && dynamic => Json::Null,
            Json::Number(power) if name == POWER => {
                Json::from(2f64.powf(power.as_f64().unwrap_or(16.0)))
            }
            Json::Bool(false) if name.ends_with(".enabled") => continue,
            value => value.clone(),
        };
        let text = match value {
            Json::String(text) => text,
            other => other.to_string(),
        };
        arguments.push(Given { flag: name.clone(), name: theirs.to_string(), words: vec![text] });
    }
    arguments
}
