//! Arguments of Megatron-LM and Megatron-DeepSpeed as settings.

use super::launch::{Given, Program};
use super::{Read, Script, deepspeed, missing_variable};
use crate::foreign::{Arguments, Choices, set_grid, set_replicas, set_said_split};
use crate::torch::Tree;
use base::{Problems, input};
use manifest::dialects::Dialect;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Values of settings whose arguments are not given, as Megatron has them.
fn defaults() -> Vec<(&'static str, Json)> {
    vec![
        ("optimizer.adamw.beta1", json!(0.9)),
        ("optimizer.adamw.beta2", json!(0.999)),
        ("optimizer.adamw.eps", json!(1e-8)),
        ("optimizer.adamw.weight_decay", json!(0.01)),
        ("optimizer.adamw.clip", json!(1.0)),
        ("model.bias", json!(true)),
        ("model.dropout.attention", json!(0.1)),
        ("model.dropout.residual", json!(0.1)),
        ("model.gelu", json!(true)),
        ("model.init.std", json!(0.02)),
        ("model.layernorm_eps", json!(1e-5)),
        ("train.eval_interval", json!(1000)),
        ("train.eval_samples", json!(100)),
        ("train.seed", json!(1234)),
        ("log.interval", json!(100)),
        ("lr.decay", json!("linear")),
        ("lr.min", json!(0.0)),
        ("topology.pipeline", json!(1)),
        ("topology.tensor", json!(1)),
        ("data.split", json!("969, 30, 1")),
    ]
}

/// Settings that a training needs.
const NEEDED: [&str; 6] =
    ["model.layers", "model.hidden", "model.heads", "model.seq_len", "batch.micro", "lr.peak"];

/// Settings of which one gives the length of the run.
const LENGTHS: [&str; 3] = ["train.samples", "train.steps", "train.tokens"];

/// Megatron's first name of a setting.
fn name(setting: &str) -> &'static str {
    Dialect::Megatron.name(setting)
}

/// Name and value of the first argument that sets this.
fn find<'v>(values: &'v Map<String, Json>, setting: &str) -> Option<(&'static str, &'v Json)> {
    let names = Dialect::Megatron.names(setting).into_iter();
    names
        .filter_map(|name| Some((name, values.get(name)?)))
        .find(|(_, value)| !value.is_null())
}

/// The count that an argument sets.
fn count(values: &Map<String, Json>, setting: &str) -> Option<u64> {
    find(values, setting)?.1.as_u64()
}

/// Settings of a script.
pub fn settings(script: &Script) -> anyhow::Result<Read> {
    let mut notes = Vec::new();
    let mut problems = Problems::default();
    let flat = deepspeed::read(script, &mut notes)?;
    let more = deepspeed::arguments(&flat, script.launch.program);
    let mut values = script.values(Dialect::Megatron, &more, &mut problems);
    note_contradictions(script, &more, &mut notes);
    let is_given = |setting: &str| {
        let names = Dialect::Megatron.names(setting);
        names.iter().any(|name| script.launch.get(name).is_some())
    };
    let mut sources = BTreeMap::new();
    for (setting, value) in defaults() {
        if find(&values, setting).is_none() && !is_given(setting) {
            let name = name(setting);
            sources.insert(name.to_string(), format!("{name}, Megatron's default"));
            values.insert(name.to_string(), value);
        }
    }
    for setting in NEEDED {
        let name = name(setting);
        if let Some(asked) = script.asked(setting) {
            let asked = Given::new(name, vec![asked.to_string()]);
            values.insert(name.to_string(), asked.json(Dialect::Megatron));
        } else if !is_given(setting) && find(&values, setting).is_none() {
            problems.add(
                script.place.clone(),
                format!("has no --{}", name.replace('_', "-")),
                format!("add it to the script, or --set {setting}=VALUE"),
            );
        }
    }
    if LENGTHS.into_iter().any(|key| script.asked(key).is_some()) {
        // The manifest has it by `--set`; the arguments need one to be converted.
        for setting in LENGTHS {
            values.remove(name(setting));
        }
        values.insert(name("train.steps").to_string(), Json::from(1));
    } else if !LENGTHS.into_iter().any(is_given) {
        let flags = LENGTHS.map(|setting| format!("--{}", name(setting).replace('_', "-")));
        problems.add(
            script.place.clone(),
            format!("has none of {}", flags.join(", ")),
            "add one to the script, or --set train.samples=N",
        );
    }
    let tensor = count(&values, "topology.tensor").unwrap_or(1) as usize;
    let pipeline = count(&values, "topology.pipeline").unwrap_or(1) as usize;
    let replicas = script.replicas(tensor.saturating_mul(pipeline), &mut problems);
    let vocab = vocabulary(script, &values, &mut problems);
    problems.or(())?;
    let replicas = replicas.unwrap_or(1);
    let micro = count(&values, "batch.micro").unwrap_or(1);
    let has_global = find(&values, "batch.global").is_some();
    let mut derive = |setting: &str, value: u64, from: &str| {
        sources.insert(name(setting).to_string(), from.to_string());
        values.insert(name(setting).to_string(), Json::from(value));
    };
    derive("topology.data", replicas as u64, "ranks / (tensor × pipeline)");
    if !has_global {
        let global = micro.saturating_mul(replicas as u64);
        derive("batch.global", global, "micro-batch × replicas");
    }
    if let Some(samples) = warm_up_fraction(&values) {
        let name = name("lr.warmup_samples");
        sources.insert(name.to_string(), FRACTION.to_string());
        values.insert(name.to_string(), Json::from(samples));
    }
    weighted_paths(script, &mut values, &mut sources);
    convert(
        script,
        values,
        &sources,
        (tensor, pipeline, replicas),
        vocab,
        Read { notes, json: flat, more, ..Read::default() },
    )
}

/// Converts the arguments, with all defaults, to settings.
fn convert(
    script: &Script,
    values: Map<String, Json>,
    sources: &BTreeMap<String, String>,
    (tensor, pipeline, replicas): (usize, usize, usize),
    vocab: Option<Vocabulary>,
    mut read: Read,
) -> anyhow::Result<Read> {
    let names: Vec<String> = values.keys().cloned().collect();
    let tree = Tree::from_json(&Json::Object(values.clone()), &script.place);
    let rule = match script.launch.program {
        Program::MegatronDeepSpeed => "megatron-deepspeed",
        _ => "mcore",
    };
    let choices = Choices { dry: true, ..Choices::default() };
    let args = Arguments::new(tree.root(), script.place.clone(), rule, &choices);
    args.refuse(&[])?;
    let (mut settings, notes) = args.settings(None)?;
    read.notes.extend(notes);
    let config = Tree::from_json(&deepspeed::nest(&read.json), &script.place);
    args.length_ramp_up(Some(config.root()), &mut settings, &mut read.notes)?;
    set_grid(&mut settings, &args, [tensor, pipeline]);
    let layers = args.count("model.layers")? as usize;
    set_said_split(&mut settings, &args, layers, pipeline)?;
    set_replicas(&mut settings, &args)?;
    if let Some((what, from)) = deepspeed::offload(&read.json) {
        settings.set("topology.offload.what", what, from);
    }
    if let Some(stage) = values.get("zero_stage").and_then(Json::as_u64) {
        let bf16 = settings.get("precision") == Some("bf16");
        let own = stage == 0 && bf16 && replicas > 1;
        let from = if own { "zero_stage: BF16_Optimizer shares the states" } else { "zero_stage" };
        let stage = if own { 1 } else { stage };
        if stage > 0 && replicas > 1 {
            settings.set("topology.zero", stage, from);
        }
    }
    if let Some(Vocabulary { rows, multiple, from }) = vocab {
        settings.set("model.vocab", rows, &from);
        if let Some(multiple) = multiple {
            settings.set("model.vocab_multiple", multiple, "the rows are padded already");
        }
    }
    args.refusals().or(())?;
    for row in &mut settings.0 {
        if let Some(source) = sources.get(&row.from) {
            row.from = source.clone();
        }
    }
    read.read = names
        .into_iter()
        .filter(|name| args.has_read(name))
        .collect();
    read.settings = settings;
    Ok(read)
}

/// Notes arguments that DeepSpeed's JSON contradicts.
fn note_contradictions(script: &Script, more: &[Given], notes: &mut Vec<String>) {
    for theirs in more {
        let Some(ours) = script.launch.get(&theirs.name) else { continue };
        let [a, b] = [ours, theirs].map(|given| given.json(Dialect::Megatron));
        let same = a == b || (a.is_number() && a.as_f64() == b.as_f64());
        if !same {
            let value = if b.is_null() { "dynamic".to_string() } else { theirs.text() };
            let flag = &theirs.flag;
            let said = ours.text();
            notes.push(format!(
                "{} {said}: DeepSpeed's JSON has {flag} {value}, which counts",
                ours.flag
            ));
        }
    }
}

/// Warm-up as a share of the decay.
const FRACTION: &str = "lr_warmup_fraction";

/// Samples of the warm-up that is a share of the decay, or of the run. None without it.
fn warm_up_fraction(values: &Map<String, Json>) -> Option<u64> {
    let fraction = values.get(FRACTION)?.as_f64()?;
    let global = count(values, "batch.global").unwrap_or(1);
    let decay = "lr.decay.cosine.samples";
    let in_steps = |steps: &Json| Some(steps.as_u64()?.saturating_mul(global));
    let samples = count(values, decay)
        .or_else(|| in_steps(values.get(Dialect::Megatron.steps(decay))?))
        .or_else(|| count(values, "train.samples"))
        .or_else(|| in_steps(find(values, "train.steps")?.1))?;
    Some((fraction * samples as f64) as u64)
}

/// Groups of weighted datasets, "NAME: WEIGHT RANGE PATH, …", of an argument or of the file that another one
/// names, and the name of the argument. None without either, or if the file is not here.
fn weighted_groups(script: &Script, which: &str) -> Option<(String, Vec<String>)> {
    let name = format!("{which}_weighted_split_paths");
    let Some(given) = script.launch.get(&name) else {
        let given = script.launch.get(&format!("{name}_path"))?;
        let [word] = &given.words[..] else { return None };
        let beside = Path::new(&script.place).with_file_name(word);
        let texts = [Path::new(word), &beside].map(|path| input::read(path, input::SMALL).ok());
        let text = String::from_utf8(texts.into_iter().flatten().next()?).ok()?;
        let groups = manifest::list_weight_groups(&text);
        return Some((given.name.clone(), groups.into_iter().map(str::to_string).collect()));
    };
    // A file that is not here: its note names it.
    let is_missing = |word: &String| missing_variable(word).is_some();
    if given.words.iter().any(is_missing) {
        return None;
    }
    // Words that the shell has split belong to the group before them.
    let mut joined: Vec<String> = Vec::new();
    for word in &given.words {
        match joined.last_mut() {
            Some(last) if !word.contains(": ") && !word.ends_with(':') => {
                *last += &format!(" {word}");
            }
            _ => joined.push(word.clone()),
        }
    }
    Some((given.name.clone(), joined))
}

/// Splits groups of weighted datasets into the lists that a checkpoint's arguments have.
fn weighted_paths(
    script: &Script,
    values: &mut Map<String, Json>,
    sources: &mut BTreeMap<String, String>,
) {
    for which in ["train", "valid"] {
        let Some((argument, groups)) = weighted_groups(script, which) else { continue };
        values.remove(&argument);
        sources.insert(format!("{which}_weighted_split_paths"), argument);
        let mut lists: [Vec<Json>; 4] = Default::default();
        for group in &groups {
            let (name, datasets) = group.split_once(':').unwrap_or(("train", group));
            let parts: Vec<Vec<&str>> = datasets
                .split(',')
                .map(|part| part.split_whitespace().collect())
                .collect();
            let column = |at: usize| -> Json {
                parts
                    .iter()
                    .filter_map(|part| part.get(at).copied())
                    .collect()
            };
            lists[0].push(Json::from(name.trim()));
            for (list, at) in lists[1..].iter_mut().zip(0..) {
                list.push(column(at));
            }
        }
        for (part, list) in ["names", "weights", "splits", "paths"]
            .into_iter()
            .zip(lists)
        {
            values.insert(format!("{which}_weighted_split_{part}"), Json::Array(list));
        }
    }
}

/// Rows of the vocabulary.
struct Vocabulary {
    rows: u64,
    /// `model.vocab_multiple`, where it is not Megatron's default.
    multiple: Option<u64>,
    from: String,
}

/// Finds the number of tokens: of an argument, of the tokenizer's file, or of a variable of the script.
fn vocabulary(
    script: &Script,
    values: &Map<String, Json>,
    problems: &mut Problems,
) -> Option<Vocabulary> {
    if script.asked("model.vocab").is_some() {
        return None;
    }
    for name in ["pad_vocab_size_to", "padded_vocab_size"] {
        if let Some(rows) = values.get(name).and_then(Json::as_u64) {
            return Some(Vocabulary { rows, multiple: Some(1), from: name.to_string() });
        }
    }
    let multiple = count(values, "model.vocab_multiple").filter(|multiple| *multiple != 128);
    let counted = || {
        let names = Dialect::Megatron.names("data.tokenizer").into_iter();
        names
            .filter(|name| values.contains_key(*name))
            .find_map(|name| {
                let text = script.shell.file(values.get(name)?.as_str()?)?;
                Some((tokens_of(&text)?, name.to_string()))
            })
    };
    let variable = || {
        let size = script.shell.value("VOCAB_SIZE")?.replace('_', "");
        Some((size.parse().ok()?, "VOCAB_SIZE of the script".to_string()))
    };
    let found = find(values, "model.vocab")
        .and_then(|(name, rows)| Some((rows.as_u64()?, name.to_string())));
    match found.or_else(counted).or_else(variable) {
        Some((rows, from)) => Some(Vocabulary { rows, multiple, from }),
        None => {
            problems.add(
                script.place.clone(),
                "does not say how many tokens the vocabulary has, and the tokenizer's file is not here",
                "give the number: --set model.vocab=50257 is that of GPT-2",
            );
            None
        }
    }
}

/// Number of tokens in a `vocab.json` or `tokenizer.json`.
fn tokens_of(text: &str) -> Option<u64> {
    let json: Json = serde_json::from_str(text).ok()?;
    let ids = |map: &Map<String, Json>| map.values().filter_map(Json::as_u64).max();
    let largest = match json.pointer("/model/vocab") {
        Some(Json::Object(vocab)) => {
            let added = json["added_tokens"].as_array().cloned().unwrap_or_default();
            let added = added.iter().filter_map(|token| token["id"].as_u64()).max();
            ids(vocab).max(added)
        }
        _ => ids(json.as_object()?),
    };
    Some(largest? + 1)
}
