//! docs/manifest.md, the reference of every setting, is made from the schema:
//! `UPDATE=1 cargo nextest run --locked --test manifest -E 'test(reference)'` writes it.

use serde_json::Value;
use std::fmt::Write;
use std::fs;

const PAGE: &str = "docs/manifest.md";

/// Text above the sections.
const ABOVE: &str = "# The manifest, setting by setting
A test makes this page from the schema (`gptrain manifest schema`); do not edit it. Each heading is the full key of a
setting, as in `--set data.seed=7`, which changes a setting for one command. `gptrain manifest new` writes a first
manifest. Numbers are written as `64`, `3e-4`, `1_000_000`, `100k` or `1.5B` (k, M, B or G, and T: thousands to
trillions), here and as values of flags.
";

/// Sections of the page, and the paths of types that have one.
#[derive(Default)]
struct Sections {
    /// Path and schema of each section, in the order of the page.
    wanted: Vec<(String, Value)>,
    /// Type, and the path at which the page describes it.
    types: Vec<(String, String)>,
}

impl Sections {
    /// Link to the section of a type, which is at `path` unless an earlier key has the same type.
    fn link(&mut self, name: &str, path: &str, section: &Value) -> String {
        if !self.types.iter().any(|(known, _)| known == name) {
            self.types.push((name.to_string(), path.to_string()));
            self.wanted.push((path.to_string(), section.clone()));
        }
        let (_, path) = self.types.iter().find(|(known, _)| known == name).unwrap();
        let anchor: String = path.to_lowercase().chars().filter(|c| *c != '.').collect();
        format!("[the section {path}](#section-{anchor})")
    }
}

#[test]
fn the_reference_is_made_of_the_schema() {
    let schema = gptrain::manifest::schema();
    let mut page = ABOVE.to_string();
    let mut sections = Sections::default();
    sections.wanted.push((String::new(), schema.clone()));
    let mut at = 0;
    while let Some((path, section)) = sections.wanted.get(at).cloned() {
        describe(&path, &section, &schema, &mut sections, &mut page);
        at += 1;
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let there = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(there == page, "{PAGE} is not what the schema says: run this test with UPDATE=1");
}

/// Writes a section: a heading for each key, with permitted values and description.
fn describe(
    path: &str,
    section: &Value,
    schema: &Value,
    sections: &mut Sections,
    page: &mut String,
) {
    let title = if path.is_empty() { "Top level".into() } else { format!("Section {path}") };
    let about = section["description"].as_str().unwrap_or_default();
    write!(page, "\n## {title}\n{}", wrapped(about)).unwrap();
    let required: Vec<&str> = section["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (key, value) in section["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let mut takes = Vec::new();
        if value["properties"].is_object() {
            takes.push(sections.link(&path, &path, value))
        } else {
            kinds(value, schema, &path, sections, &mut takes)
        }
        takes.dedup();
        let needed = if required.contains(&key.as_str()) { "Required. " } else { "" };
        let about = value["description"].as_str().unwrap_or_default();
        let text = format!("{needed}{about} Values: {}.", takes.join(", "));
        write!(page, "\n### {path}\n{}", wrapped(&text)).unwrap();
    }
}

/// Lines of at most 120 columns.
fn wrapped(text: &str) -> String {
    let (mut lines, mut columns) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        let fits = columns + 1 + length <= 120;
        let space = if columns == 0 {
            ""
        } else if fits {
            " "
        } else {
            "\n"
        };
        columns = if columns > 0 && fits { columns + 1 + length } else { length };
        lines.push_str(space);
        lines.push_str(word);
    }
    lines + "\n"
}

/// Permitted values, in words.
fn kinds(
    value: &Value,
    schema: &Value,
    path: &str,
    sections: &mut Sections,
    takes: &mut Vec<String>,
) {
    if let Some(pointer) = value["$ref"].as_str() {
        let name = pointer.rsplit('/').next().unwrap();
        let target = schema.pointer(pointer.trim_start_matches('#')).unwrap();
        if target["properties"].is_object() {
            takes.push(sections.link(name, path, target))
        } else {
            kinds(target, schema, path, sections, takes)
        }
    }
    for key in ["anyOf", "oneOf"] {
        for one in value[key].as_array().into_iter().flatten() {
            kinds(one, schema, path, sections, takes);
        }
    }
    if let Some(word) = value["const"].as_str() {
        takes.push(format!("`{word}`"));
    }
    let words = value["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    takes.extend(words.map(|word| format!("`{word}`")));
    let types = match &value["type"] {
        Value::Array(several) => several.clone(),
        one => vec![one.clone()],
    };
    for one in types.iter().filter_map(Value::as_str) {
        match one {
            "null" => {}
            "string" if !value["const"].is_null() || !value["enum"].is_null() => {}
            "string" => takes.push("text".into()),
            "boolean" => takes.push("`true`, `false`".into()),
            "integer" | "number" => takes.push(number(one, value)),
            "array" => {
                let mut items = Vec::new();
                kinds(&value["items"], schema, path, sections, &mut items);
                takes.push(format!("a list of ({})", items.join(", ")));
            }
            "object" => {
                let mut named = Vec::new();
                let below = &value["additionalProperties"];
                assert!(below.is_object(), "keys without a type: {value}");
                kinds(below, schema, &format!("{path}.NAME"), sections, &mut named);
                takes.push(format!("names, each with ({})", named.join(", ")));
            }
            other => takes.push(other.into()),
        }
    }
}

fn number(kind: &str, value: &Value) -> String {
    let kind = if kind == "integer" { "a whole number" } else { "a number" };
    match (&value["minimum"], &value["maximum"]) {
        (Value::Number(least), Value::Number(most)) => format!("{kind}, {least} to {most}"),
        _ => kind.to_string(),
    }
}

/// Every key in the first column of docs/coming-from.md is one of the schema.
#[test]
fn keys_beside_those_of_other_trainers_exist() {
    let page = fs::read_to_string("docs/coming-from.md").unwrap();
    let schema = gptrain::manifest::schema();
    let settings = page.split("\n## ").next().unwrap();
    let rows = settings.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.map(|row| row.split('`').next().unwrap());
    // A row may have a value: `topology.zero: 1`.
    let keys: Vec<&str> = rows.map(|row| row.split(':').next().unwrap()).collect();
    assert!(keys.len() > 30, "{keys:?}");
    let has = |key: &str| leads(&schema, &schema, &key.split('.').collect::<Vec<_>>());
    for key in keys {
        assert!(has(key), "{key} is not a setting");
    }
    assert!(!has("model.learning_rate") && !has("lr.layers") && !has("peak"));
}

/// Whether a section of the schema has the keys of a path, one below the other.
fn leads(section: &Value, schema: &Value, path: &[&str]) -> bool {
    let Some((key, below)) = path.split_first() else { return true };
    if let Some(name) = section["$ref"].as_str() {
        let section = schema
            .pointer(name.trim_start_matches('#'))
            .expect("a definition");
        return leads(section, schema, path);
    }
    let ways = ["anyOf", "oneOf", "allOf"]
        .iter()
        .filter_map(|kind| section[kind].as_array());
    let known = section["properties"].get(key);
    known.is_some_and(|value| leads(value, schema, below))
        || ways.flatten().any(|way| leads(way, schema, path))
}
