//! RoPE in config.json: `rope_parameters` of transformers 5, two keys beside each other of 4.

use super::reader::Reader;
use manifest::dialects::Dialect;
use manifest::{Linear, Llama3, Rope, RopeScaling, Yarn};
use serde_json::{Map, Value, json};

/// Setting of theta, whose key is in the file or in the table.
const THETA_SETTING: &str = "model.position.rope.theta";

/// Setting of the object before transformers 5.
const SCALING: &str = "model.position.rope.scaling";

/// Default theta of transformers.
const THETA: f64 = 10_000.0;

/// Keys of the table that are read, and those that are redundant for a kind.
const KEYS: [&str; 13] = [
    "rope_type",
    "type",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "finetuned",
];

/// Keys of YaRN's attention factor in DeepSeek's configurations.
const MSCALES: [&str; 2] = ["mscale", "mscale_all_dim"];

/// Reads RoPE. `positions` is the longest sample, the default of YaRN's original length.
pub fn read(config: &mut Reader, positions: usize) -> Rope {
    let theta = config.number_in(THETA_SETTING, 1.0, 1e12);
    let new = table(config, "rope_parameters");
    let old = table(config, SCALING);
    let Some((name, map)) = new.or(old) else {
        return Rope { theta: theta.unwrap_or(THETA), scaling: None };
    };
    let mut table = Reader::new(map, config.place, name, config.dialect);
    let inner = table.number_in(THETA_SETTING, 1.0, 1e12);
    let scaling = scaling(&mut table, positions);
    if let (Some((_, new)), Some((_, old))) = (new, old) {
        contradictions(config, new, old);
    }
    if let (Some(inner), Some(outer)) = (inner, theta)
        && inner != outer
    {
        let theta = config.name(THETA_SETTING);
        let remedy = format!("{name}.{theta} is {inner}: remove the wrong one");
        config.wrong(THETA_SETTING, &remedy);
    }
    config.problems.list.extend(table.problems.list);
    Rope { theta: inner.or(theta).unwrap_or(THETA), scaling }
}

/// Object under one of the two keys, and the key's name.
fn table<'a>(
    config: &mut Reader<'a>,
    key: &'static str,
) -> Option<(&'static str, &'a Map<String, Value>)> {
    match config.get(key)? {
        Value::Object(map) => Some((config.name(key), map)),
        _ => {
            config.wrong(key, "an object or null is needed");
            None
        }
    }
}

/// Both forms may be present, but must agree.
fn contradictions(config: &mut Reader, new: &Map<String, Value>, old: &Map<String, Value>) {
    let kind = |map: &Map<String, Value>| map.get("rope_type").or(map.get("type")).cloned();
    let number = |value: &Value| value.as_f64();
    let other = old.keys().filter(|key| !key.ends_with("type")).find(|key| {
        new.get(*key)
            .is_some_and(|value| number(value) != old.get(*key).and_then(number))
    });
    if kind(new) != kind(old) || other.is_some() {
        config.wrong(SCALING, "rope_parameters says something else: remove the wrong one");
    }
}

fn scaling(table: &mut Reader, positions: usize) -> Option<RopeScaling> {
    let kind = table
        .text("rope_type")
        .or_else(|| table.text("type"))
        .unwrap_or("default");
    table.reject_other_models();
    if kind != "yarn" {
        if table.flag("truncate") == Some(false) {
            table.wrong("truncate", "it belongs to rope_type yarn: remove it");
        }
        for key in MSCALES {
            if table.get(key).is_some() {
                table.wrong(key, "it belongs to rope_type yarn: remove it");
            }
        }
    }
    let unknown = table.config.keys().find(|key| {
        !KEYS.contains(&key.as_str())
            && *key != table.name(THETA_SETTING)
            && !table.dialect.fixed().any(|(name, ..)| name == *key)
    });
    if let Some(key) = unknown.filter(|key| table.get(key).is_some()) {
        table.wrong(key, "gptrain does not know this of RoPE");
    }
    let original = "original_max_position_embeddings";
    match kind {
        "default" => None,
        "linear" => Some(RopeScaling::Linear(Linear { factor: factor(table) })),
        "llama3" => Some(RopeScaling::Llama3(Llama3 {
            factor: factor(table),
            low_freq_factor: table.number_in("low_freq_factor", 1e-3, 1e6).unwrap_or(1.0),
            high_freq_factor: table
                .number_in("high_freq_factor", 1e-3, 1e6)
                .unwrap_or(4.0),
            original_seq_len: table.size(original),
        })),
        "yarn" => {
            let factor = factor(table);
            Some(RopeScaling::Yarn(Yarn {
                factor,
                original_seq_len: table.optional_size(original).unwrap_or(positions),
                beta_fast: table.number_in("beta_fast", 1e-3, 1e6).unwrap_or(32.0),
                beta_slow: table.number_in("beta_slow", 1e-3, 1e6).unwrap_or(1.0),
                attention_factor: attention_factor(table, factor),
                truncate: table.flag("truncate").unwrap_or(true),
            }))
        }
        "dynamic" => {
            let why = "dynamic NTK turns by the length of what is read, so that training on short \
                       samples would be of another model: linear, llama3 and yarn are read";
            table.wrong(kind_key(table), why);
            None
        }
        _ => {
            table.wrong(kind_key(table), "default, linear, llama3 and yarn are known");
            None
        }
    }
}

/// YaRN's factor of queries and keys: as given, or from `mscale` and `mscale_all_dim`, which count
/// only together (`_compute_yarn_parameters` of transformers). None for the default.
fn attention_factor(table: &mut Reader, factor: f64) -> Option<f64> {
    let given = table.number_in("attention_factor", 1e-3, 1e3);
    let [one, all] = MSCALES.map(|key| table.number_in(key, 0.0, 1e3).unwrap_or(0.0));
    let scale = |mscale: f64| 0.1 * mscale * factor.ln() + 1.0;
    given.or((one > 0.0 && all > 0.0).then(|| scale(one) / scale(all)))
}

fn kind_key(table: &Reader) -> &'static str {
    if table.get("rope_type").is_some() { "rope_type" } else { "type" }
}

fn factor(table: &mut Reader) -> f64 {
    if table.get("factor").is_none() {
        table.wrong("factor", "a number from 1 on is needed");
    }
    table.number_in("factor", 1.0, 1e6).unwrap_or(1.0)
}

/// Adds both forms to a config.json.
pub fn write(rope: &Rope, config: &mut Map<String, Value>) {
    let mut table = match rope.scaling {
        None => json!({"rope_type": "default"}),
        Some(RopeScaling::Linear(rule)) => json!({"rope_type": "linear", "factor": rule.factor}),
        Some(RopeScaling::Llama3(rule)) => json!({
            "rope_type": "llama3",
            "factor": rule.factor,
            "low_freq_factor": rule.low_freq_factor,
            "high_freq_factor": rule.high_freq_factor,
            "original_max_position_embeddings": rule.original_seq_len,
        }),
        Some(RopeScaling::Yarn(rule)) => {
            let mut table = json!({
                "rope_type": "yarn",
                "factor": rule.factor,
                "beta_fast": rule.beta_fast,
                "beta_slow": rule.beta_slow,
                "original_max_position_embeddings": rule.original_seq_len,
            });
            if let Some(factor) = rule.attention_factor {
                table["attention_factor"] = json!(factor);
            }
            if !rule.truncate {
                table["truncate"] = json!(false);
            }
            table
        }
    };
    let old = if rope.scaling.is_some() { table.clone() } else { Value::Null };
    let theta = Dialect::Llama.name(THETA_SETTING);
    table[theta] = json!(rope.theta);
    config.insert(Dialect::Llama.name(SCALING).to_string(), old);
    config.insert(theta.to_string(), json!(rope.theta));
    config.insert("rope_parameters".to_string(), table);
}

/// Longest sample that config.json names for a model of `seq_len`: with YaRN the original length times the
/// factor, because transformers 4 computes the factor from it.
pub fn positions(rope: &Rope, seq_len: usize) -> usize {
    match rope.scaling {
        Some(RopeScaling::Yarn(Yarn { factor, original_seq_len, .. })) => {
            seq_len.max((factor * original_seq_len as f64).round() as usize)
        }
        _ => seq_len,
    }
}
