//! The schema that editors use accepts what the program accepts.

use super::GOOD;
use gptrain::manifest;
use regex_lite::Regex;
use serde_json::Value;
use std::fs;

/// Whether a value fits a schema, as an editor decides it.
fn fits(root: &Value, schema: &Value, value: &Value) -> bool {
    if let Some(name) = schema["$ref"].as_str() {
        return fits(root, root.pointer(name.trim_start_matches('#')).unwrap(), value);
    }
    for ways in ["anyOf", "oneOf"] {
        if let Some(ways) = schema[ways].as_array()
            && !ways.iter().any(|way| fits(root, way, value))
        {
            return false;
        }
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        Value::String(kind) => vec![kind.as_str()],
        _ => Vec::new(),
    };
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    let is_one_of = |choices: &Value| choices.as_array().is_none_or(|all| all.contains(value));
    let is_const = schema["const"].is_null() || schema["const"] == *value;
    if !(kinds.is_empty() || kinds.into_iter().any(is)) || !is_one_of(&schema["enum"]) || !is_const
    {
        return false;
    }
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap();
            schema["minimum"]
                .as_f64()
                .is_none_or(|least| number >= least)
                && schema["maximum"].as_f64().is_none_or(|most| number <= most)
        }
        Value::String(text) => schema["pattern"]
            .as_str()
            .is_none_or(|pattern| Regex::new(pattern).unwrap().is_match(text)),
        Value::Array(items) => items.iter().all(|item| fits(root, &schema["items"], item)),
        Value::Object(keys) => keys
            .iter()
            .all(|(key, below)| match &schema["properties"][key] {
                Value::Null => match &schema["additionalProperties"] {
                    Value::Bool(permitted) => *permitted,
                    Value::Null => true,
                    schema => fits(root, schema, below),
                },
                schema => fits(root, schema, below),
            }),
        _ => true,
    }
}

fn is_accepted_by_editors(text: &str) -> bool {
    let schema = manifest::editor_schema();
    fits(&schema, &schema, &serde_saphyr::from_str(text).unwrap())
}

#[test]
fn every_shipped_manifest_fits() {
    let mut count = 0;
    for file in fs::read_dir("manifests").unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            assert!(is_accepted_by_editors(&text), "{}", path.display());
            count += 1;
        }
    }
    assert!(count > 3, "{count}");
    assert!(!is_accepted_by_editors(&format!("{GOOD}learning_rate: 1\n")));
}

#[test]
fn numbers_with_units_fit_as_the_program_reads_them() {
    let key = "samples: ";
    let line = GOOD.lines().find(|line| line.contains(key)).unwrap();
    let fits = |number: &str| {
        let text =
            GOOD.replace(line, &format!("{}{key}{number}", &line[..line.find(key).unwrap()]));
        let accepted = manifest::parse(&text, "test", std::path::Path::new("."), &[]).is_ok();
        assert_eq!(is_accepted_by_editors(&text), accepted, "{number}");
        accepted
    };
    for number in ["1B", "100k", "1_000_000", "3e9", "2 M", "1.5k", "4096", "0.5M"] {
        assert!(fits(number), "{number}");
    }
    for number in ["1Q", "many", "1kk", "true", "[1]", "-5"] {
        assert!(!fits(number), "{number}");
    }
}
