//! Settings that changed between two starts of a run: those that may, and those that would make it a
//! different run.

use anyhow::{Context, Result};
use base::Problems;
use checkpoint::CheckpointFolder;
use manifest::FREE_MODEL_SETTINGS;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Setting that changed between two starts of a run, as in its events:
/// "lr.peak was 0.0005, is 0.0002 after step 254".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    pub key: String,
    pub before: String,
    pub after: String,
    /// Last step with the value before.
    pub step: u64,
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingChange { key, before, after, step } = self;
        write!(f, "{key} was {before}, is {after} after step {step}")
    }
}

impl SettingChange {
    /// Reads the text of an event of the kind `Setting`.
    pub fn parse(text: &str) -> Option<SettingChange> {
        let (key, rest) = text.split_once(" was ")?;
        let (values, step) = rest.rsplit_once(" after step ")?;
        let (before, after) = values.split_once(", is ")?;
        let [key, before, after] = [key, before, after].map(String::from);
        Some(SettingChange { key, before, after, step: step.parse().ok()? })
    }
}

/// Effect of a changed setting on a resumed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The losses do not depend on it.
    Allow,
    /// It changes the losses from here: accepted with a warning.
    Warn,
    /// It would be a different run: an error.
    Reject,
}

/// Settings that may change on resume. The first row that is a prefix of a key decides; a change
/// of a key without a row is rejected, as one of its section.
#[rustfmt::skip]
const RULES: &[(&str, Change)] = &[
    ("name",                Change::Allow),
    ("log",                 Change::Allow),
    ("plan",                Change::Allow),
    ("checkpoint",          Change::Allow),
    ("topology",            Change::Allow),
    ("comm",                Change::Allow),
    ("slurm",               Change::Allow),
    ("divergence",          Change::Allow),    // what it does is named as it does it
    ("train.threads",       Change::Allow),
    ("train.device",        Change::Allow),
    ("train.eval_interval", Change::Allow),
    ("train.eval_samples",  Change::Allow),
    ("train.eval_tasks",    Change::Allow),
    ("train.stop_at_loss",  Change::Allow),
    ("train.audit_interval", Change::Allow),
    ("data.valid",          Change::Allow),
    ("data.cache",          Change::Allow),
    ("data.tokenizer",      Change::Allow),
    ("data.drop_last_partial_validation_sequence", Change::Allow),
    ("data.train.prefix",   Change::Allow),    // the files' content is compared instead
    ("data.skip",           Change::Warn),     // other samples from here on
    ("data.seed",           Change::Warn),     // the rest of the epoch in another order
    ("data.train",          Change::Warn),     // another mixture from here on
    ("data.stages",         Change::Warn),     // or from later on
    ("lr",                  Change::Warn),
    ("optimizer",           Change::Warn),
    ("loss_scale",          Change::Warn),
    ("model.dropout",       Change::Warn),
    ("batch.micro",         Change::Warn),     // sums of floats in another order
    ("batch.micro_stages",  Change::Warn),
    ("train.z_loss",        Change::Warn),
    ("train.samples",       Change::Warn),     // and with it the order of samples
    ("train.seed",          Change::Warn),     // other dropout from here on
];

/// Changes that need a warning. Fails with a list of all changes that are not allowed. After an
/// `import` only the settings of the weights are compared.
pub fn compare(
    saved: &str,
    now: &str,
    import: bool,
    found: &CheckpointFolder,
) -> Result<Vec<SettingChange>> {
    let mut saved = flatten(saved)?;
    let mut now = flatten(now)?;
    keep_common_optimizer_settings(&mut saved, &mut now);
    add_positions(&mut saved);
    add_positions(&mut now);
    let keys: BTreeSet<&String> = saved.keys().chain(now.keys()).collect();
    let none = "nothing".to_string();
    let value = |keys: &BTreeMap<String, String>, key| keys.get(key).unwrap_or(&none).clone();
    let mut warnings = Vec::new();
    let mut rejected = BTreeMap::<&str, Vec<String>>::new();
    for key in keys {
        let before = value(&saved, key);
        let after = value(&now, key);
        let (row, change) = find_rule(key).unwrap_or_else(|| {
            let section = key.split('.').next().unwrap_or(key);
            (section, Change::Reject)
        });
        match change {
            _ if before == after || import && is_free_after_import(key) => {}
            Change::Allow => {}
            Change::Warn => {
                let key = key.clone();
                let step = found.step;
                warnings.push(SettingChange { key, before, after, step });
            }
            Change::Reject => {
                rejected
                    .entry(row)
                    .or_default()
                    .push(format!("{key} was {before}, is {after}"));
            }
        }
    }
    let mut problems = Problems::default();
    let folder = found
        .folder
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("FOLDER"));
    for (row, changes) in rejected {
        problems.add(
            found.folder.display().to_string(),
            format!(
                "was trained with another `{row}` than the manifest has now: {}",
                changes.join(", ")
            ),
            format!(
                "continue it as it was: gptrain run {}, or start a new run: --set log.folder=DIR",
                folder.display()
            ),
        );
    }
    Ok(problems.or(warnings)?)
}

/// Whether a setting may change when a run begins with imported weights.
fn is_free_after_import(key: &str) -> bool {
    !key.starts_with("model.")
        || key == "model.seq_len"
        || FREE_MODEL_SETTINGS
            .iter()
            .any(|free| key.starts_with(*free))
}

/// Adds the rows of a table of learned positions: seq_len, if they are not given.
fn add_positions(keys: &mut BTreeMap<String, String>) {
    let learned = keys
        .get("model.position")
        .is_some_and(|position| position.contains("learned"));
    let rows = keys.get("model.seq_len").filter(|_| learned).cloned();
    if let Some(rows) = rows {
        keys.entry("model.positions".to_string()).or_insert(rows);
    }
}

/// Settings to compare under another optimizer (reported separately): those that both have.
fn keep_common_optimizer_settings(
    saved: &mut BTreeMap<String, String>,
    now: &mut BTreeMap<String, String>,
) {
    const SECTION: &str = "optimizer.";
    let name = |keys: &BTreeMap<String, String>| {
        let mut names = keys
            .keys()
            .filter_map(|key| key.strip_prefix(SECTION)?.split_once('.'));
        names.next().map(|(name, _)| format!("{SECTION}{name}."))
    };
    let (Some(before), Some(after)) = (name(saved), name(now)) else { return };
    if before == after {
        return;
    }
    let mut common = BTreeMap::new();
    for (key, value) in std::mem::take(saved) {
        let key = match key.strip_prefix(&before) {
            Some(rest) => format!("{after}{rest}"),
            None => key,
        };
        if !key.starts_with(SECTION) || now.contains_key(&key) {
            common.insert(key, value);
        }
    }
    *saved = common;
    now.retain(|key, _| !key.starts_with(SECTION) || saved.contains_key(key));
}

fn find_rule(key: &str) -> Option<(&'static str, Change)> {
    let covers = |row: &str| {
        key.strip_prefix(row)
            .is_some_and(|k| k.is_empty() || k.starts_with('.'))
    };
    RULES.iter().find(|(row, _)| covers(row)).copied()
}

/// Effective manifest as key → value. Keys contain the numbers of list items, except
/// `data.train.prefix`, which has its own rule.
fn flatten(yaml: &str) -> Result<BTreeMap<String, String>> {
    fn walk(key: &str, value: &serde_json::Value, to: &mut BTreeMap<String, String>) {
        let child = |name: &str| if key.is_empty() { name.into() } else { format!("{key}.{name}") };
        match value {
            serde_json::Value::Object(map) => {
                for (name, value) in map {
                    walk(&child(name), value, to);
                }
            }
            serde_json::Value::Array(list) => {
                for (i, value) in list.iter().enumerate() {
                    walk(&child(&i.to_string()), value, to);
                }
            }
            value => {
                let is_training_data =
                    key.starts_with("data.train.") || key.starts_with("data.stages.");
                let is_prefix = is_training_data && key.ends_with(".prefix");
                let key = if is_prefix { "data.train.prefix" } else { key };
                to.insert(key.to_string(), value.to_string());
            }
        }
    }
    let value = serde_saphyr::from_str(yaml).context("reading an effective manifest")?;
    let mut keys = BTreeMap::new();
    walk("", &value, &mut keys);
    Ok(keys)
}
