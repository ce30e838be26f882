//! Rows of the new run's manifest, each with the name that the other trainer had for it.

use manifest::dialects::Dialect;

/// A setting and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// "model.layers".
    pub key: String,
    /// As YAML.
    pub value: String,
    /// The other trainer's name of it, or a reason.
    pub from: String,
}

/// A setting that the folder does not have, and that changes what is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub key: &'static str,
    /// The other trainer's name of it.
    pub why: String,
    pub example: &'static str,
}

impl Wanted {
    /// Whether one of `KEY=VALUE` sets it: itself, a section that it is in, or a part of it.
    pub fn is_in(&self, sets: &[String]) -> bool {
        let within = |a: &str, b: &str| {
            a.strip_prefix(b)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        // One of three says how long the run is.
        let keys: &[&str] = match self.key {
            "train.steps" => &["train.steps", "train.samples", "train.tokens"],
            _ => &[self.key],
        };
        let set = |set: &str| keys.iter().any(|key| within(key, set) || within(set, key));
        sets.iter()
            .filter_map(|text| text.split_once('='))
            .any(|(key, _)| set(key.trim()))
    }
}

/// Settings that a distributed checkpoint may lack, with examples.
const WANTED: &[(&str, &str)] = &[
    ("model.heads", "16"),
    ("model.seq_len", "4096"),
    ("model.position.rope.theta", "500000"),
    ("batch.global", "512"),
    ("lr.peak", "3e-4"),
    ("lr.warmup_samples", "102400"),
    ("lr.decay", "cosine"),
    ("train.steps", "10000"),
    ("data.train", "corpus"),
];

/// Settings of a distributed checkpoint that neither its files nor the user's `sets` have.
pub fn wanted(
    trainer: &str,
    dialect: Dialect,
    settings: &Settings,
    sets: &[String],
) -> Vec<Wanted> {
    wanted_settings(settings, sets, |key| {
        let Some(row) = dialect.row(key) else { return "not in its files".to_string() };
        let names = dialect.names(key).join(" or ");
        let unit = if row.unit.is_empty() { "" } else { " × batch.global" };
        match row.remark(dialect) {
            "" => format!("{trainer}'s {names}{unit}"),
            remark => format!("{trainer}'s {names}{unit}, {remark}"),
        }
    })
}

/// The same, with `name`'s words for the other program's name of a setting.
pub fn wanted_settings(
    settings: &Settings,
    sets: &[String],
    name: impl Fn(&str) -> String,
) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for (key, example) in WANTED {
        let why = match *key {
            "data.train" => "the datasets: see docs/data.md".to_string(),
            key => name(key),
        };
        let row = Wanted { key, why, example };
        if settings.get(key).is_none() && !row.is_in(sets) {
            wanted.push(row);
        }
    }
    wanted
}

/// Last value that `KEY=VALUE` gives a key.
pub fn asked<'s>(sets: &'s [String], key: &str) -> Option<&'s str> {
    let pairs = sets.iter().rev().filter_map(|text| text.split_once('='));
    pairs
        .into_iter()
        .find(|(found, _)| found.trim() == key)
        .map(|(_, value)| value.trim())
}

/// Settings of an imported run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub Vec<Row>);

impl Settings {
    pub fn set(&mut self, key: &str, value: impl ToString, from: &str) {
        let row = Row { key: key.into(), value: value.to_string(), from: from.into() };
        match self.0.iter_mut().find(|row| row.key == key) {
            Some(known) => *known = row,
            None => self.0.push(row),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.0.retain(|row| row.key != key);
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|row| row.key == key)
            .map(|row| row.value.as_str())
    }

    /// The manifest's text: sections in the order of their first rows, each line with its source.
    pub fn yaml(&self) -> String {
        let rows: Vec<(Vec<&str>, &Row)> = self
            .0
            .iter()
            .map(|row| (row.key.split('.').collect(), row))
            .collect();
        let mut text = String::new();
        write(&rows, 0, &mut text);
        text
    }
}

fn write(rows: &[(Vec<&str>, &Row)], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let mut done: Vec<&str> = Vec::new();
    for (path, row) in rows {
        let name = path[depth];
        if done.contains(&name) {
            continue;
        }
        done.push(name);
        if path.len() == depth + 1 {
            let from = if row.from.is_empty() { String::new() } else { format!(" # {}", row.from) };
            text.push_str(&format!("{indent}{name}: {}{from}\n", row.value));
            continue;
        }
        let inside: Vec<_> = rows
            .iter()
            .filter(|(path, _)| path[depth] == name && path.len() > depth + 1)
            .cloned()
            .collect();
        if depth == 0 {
            text.push('\n');
        }
        text.push_str(&format!("{indent}{name}:\n"));
        write(&inside, depth + 1, text);
    }
}

/// A text as a YAML string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A number as the manifest reads it.
pub fn number(value: f64) -> String {
    format!("{value:?}")
}
