//! Results of the arguments of a script.

use super::launch::Given;
use super::{Read, Script, deepspeed};
use manifest::dialects::{Meaning, Row};
use manifest::{Loaded, settings_json};
use serde_json::Value as Json;

/// Result of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Setting,
    NotNeeded,
    NoSetting,
}

/// An argument, its value, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentRow {
    /// As the script has it: `--num-layers`, or `fp16.hysteresis` of DeepSpeed's JSON.
    pub argument: String,
    pub value: String,
    pub outcome: Outcome,
    /// "model.layers: 40", or the reason.
    pub text: String,
}

/// Rows of the command's arguments, then those of DeepSpeed's JSON.
pub fn rows(script: &Script, read: &Read, loaded: &Loaded) -> Vec<ArgumentRow> {
    let settings = settings_json(&loaded.manifest);
    let dialect = script.launch.program.dialect();
    let mut rows = Vec::new();
    for given in &script.launch.arguments {
        let (outcome, text) =
            result(&given.name, &given.words, given.row(dialect), read, &settings);
        rows.push(ArgumentRow { argument: given.flag.clone(), value: value(given), outcome, text });
    }
    for (name, value) in &read.json {
        let theirs = read.more.iter().find(|given| given.flag == *name);
        let theirs = theirs.map_or(name.as_str(), |given| given.name.as_str());
        let (outcome, text) =
            result(theirs, &[value.to_string()], deepspeed::row(name), read, &settings);
        rows.push(ArgumentRow { argument: name.clone(), value: value.to_string(), outcome, text });
    }
    rows
}

fn value(given: &Given) -> String {
    let text = given.words.join(" ");
    let plain = given.flag.trim_start_matches('-').replace('-', "_");
    // The value of a flag that argparse stores under another name is not in the script.
    if plain != given.name && given.words.len() == 1 { String::new() } else { text }
}

/// Whether a setting has the value of an argument.
fn is_same(value: &Json, words: &[String]) -> bool {
    match (value, words) {
        (Json::Bool(yes), []) => *yes,
        (Json::Bool(yes), [word]) => yes.to_string() == word.to_lowercase(),
        (Json::Number(number), [word]) => word.replace('_', "").parse().ok() == number.as_f64(),
        (Json::String(text), [word]) => text == word,
        _ => false,
    }
}

/// Outcome of an argument of this name and these words, and its text.
fn result(
    name: &str,
    words: &[String],
    row: Option<&Row>,
    read: &Read,
    settings: &Json,
) -> (Outcome, String) {
    let is_named = |from: &str| {
        let mut words = from.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        from == name || words.any(|word| word == name)
    };
    let set: Vec<String> = read
        .settings
        .0
        .iter()
        .filter(|row| is_named(&row.from))
        .map(|row| format!("{}: {}", row.key, row.value))
        .collect();
    if !set.is_empty() {
        return (Outcome::Setting, set.join(", "));
    }
    match row.map(|row| row.meaning) {
        Some(Meaning::Setting { key, .. }) => {
            match settings.pointer(&format!("/{}", key.replace('.', "/"))) {
                Some(value) if value.is_object() || is_same(value, words) => {
                    (Outcome::Setting, format!("{key}: {value}"))
                }
                Some(value) => {
                    (Outcome::NotNeeded, format!("{key} keeps gptrain's value, {value}"))
                }
                None => (Outcome::NotNeeded, format!("{key} keeps gptrain's value")),
            }
        }
        Some(Meaning::Unneeded(why)) => (Outcome::NotNeeded, why.to_string()),
        Some(Meaning::Only { why, .. }) => (Outcome::NotNeeded, format!("{why}, as here")),
        Some(Meaning::Lacking(why) | Meaning::Noted { why, .. }) => {
            (Outcome::NoSetting, why.to_string())
        }
        None if read.read.contains(name) => {
            (Outcome::NotNeeded, "the result is the same without it".to_string())
        }
        None => (Outcome::NoSetting, "gptrain does not know it".to_string()),
    }
}
