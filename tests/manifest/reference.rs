//! docs/manifest.md, the reference of every setting, is made from the schema:
//! `UPDATE=1 cargo nextest run --locked --test manifest -E 'test(reference)'` writes it.

use serde_json::Value;
use std::fmt::Write;
use std::fs;

const PAGE: &str = "docs/manifest.md";

/// Text above the tables.
const ABOVE: &str = "# The manifest, setting by setting
Made from the schema (`gptrain manifest schema`) by a test; do not edit. Sections are in alphabetical
order, as are their keys; in **bold** what must be given. `--set section.key=value` changes a setting
for one command; `gptrain manifest new` writes a first manifest.
";

#[test]
fn the_reference_is_made_of_the_schema() {
    let schema = gptrain::manifest::schema();
    let mut page = ABOVE.to_string();
    let mut wanted = vec![("a manifest".to_string(), schema.clone())];
    let mut done: Vec<String> = Vec::new();
    while !wanted.is_empty() {
        let (title, section) = wanted.remove(0);
        if !done.contains(&title) {
            table(&title, &section, &schema, &mut wanted, &mut page);
            done.push(title);
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let there = fs::read_to_string(PAGE).unwrap_or_default();
    assert!(there == page, "{PAGE} is not what the schema says: run this test with UPDATE=1");
}

/// A section's keys; sections that they lead to are added to `wanted`.
fn table(
    title: &str,
    section: &Value,
    schema: &Value,
    wanted: &mut Vec<(String, Value)>,
    page: &mut String,
) {
    let about = section["description"].as_str().unwrap_or_default().replace('\n', " ");
    write!(page, "\n## {title}\n{about}\n\n| key | takes | |\n|---|---|---|\n").unwrap();
    let required: Vec<&str> =
        section["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (key, value) in section["properties"].as_object().into_iter().flatten() {
        let mut takes = Vec::new();
        match value["properties"].is_object() {
            true => {
                takes.push(format!("a section: [{key}](#{key})"));
                wanted.push((key.clone(), value.clone()));
            }
            false => kinds(value, schema, wanted, &mut takes),
        }
        takes.dedup();
        let bold = if required.contains(&key.as_str()) { "**" } else { "" };
        let about = value["description"].as_str().unwrap_or_default().replace('\n', " ");
        writeln!(page, "| {bold}`{key}`{bold} | {} | {about} |", takes.join(", ")).unwrap();
    }
}

/// Permitted values, in words.
fn kinds(
    value: &Value,
    schema: &Value,
    wanted: &mut Vec<(String, Value)>,
    takes: &mut Vec<String>,
) {
    if let Some(pointer) = value["$ref"].as_str() {
        let name = pointer.rsplit('/').next().unwrap();
        let target = schema.pointer(pointer.trim_start_matches('#')).unwrap();
        match target["properties"].is_object() {
            true => {
                let heading = name.to_lowercase();
                takes.push(format!("a section: [{name}](#{heading})"));
                wanted.push((name.to_string(), target.clone()));
            }
            false => kinds(target, schema, wanted, takes),
        }
    }
    for key in ["anyOf", "oneOf"] {
        for one in value[key].as_array().into_iter().flatten() {
            kinds(one, schema, wanted, takes);
        }
    }
    if let Some(word) = value["const"].as_str() {
        takes.push(format!("`{word}`"));
    }
    let words = value["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
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
                kinds(&value["items"], schema, wanted, &mut items);
                takes.push(format!("a list of: {}", items.join(", ")));
            }
            "object" => {
                let mut named = Vec::new();
                assert!(value["additionalProperties"].is_object(), "what it takes: {value}");
                kinds(&value["additionalProperties"], schema, wanted, &mut named);
                takes.push(format!("names, each with: {}", named.join(", ")));
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
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let keys: Vec<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
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
        let section = schema.pointer(name.trim_start_matches('#')).expect("a definition");
        return leads(section, schema, path);
    }
    let ways = ["anyOf", "oneOf", "allOf"].iter().filter_map(|kind| section[kind].as_array());
    let known = section["properties"].get(key);
    known.is_some_and(|value| leads(value, schema, below))
        || ways.flatten().any(|way| leads(way, schema, path))
}
