//! Manifest of a new run that begins from another program's checkpoint.

use base::Problems;
use manifest::{FREE_MODEL_SETTINGS, Loaded, Model};
use serde_json::Value;
use std::path::Path;

/// Name of a new run: that of its folder if a manifest may have it, else "imported".
pub fn run_name(run: &Path) -> &str {
    let name = run
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let fits = !name.is_empty() && !name.starts_with('.') && name.len() <= 200;
    if fits
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'))
    {
        name
    } else {
        "imported"
    }
}

/// Reads the manifest of a new run in the folder `run`, which an import of `from` would write: its text
/// with `sets`, and its settings. No file has the text yet, so mistakes are those of the import.
pub fn new_manifest(
    text: &str,
    from: &str,
    run: &Path,
    sets: &[String],
) -> Result<(String, Loaded), Problems> {
    let name = run.join(manifest::IN_FOLDER).display().to_string();
    manifest::rewrite(text, &name, run, sets)
        .and_then(|text| Ok((text.clone(), manifest::parse(&text, &name, run, &[])?)))
        .map_err(|mut problems| {
            for problem in &mut problems.list {
                let line = problem.place.strip_prefix(&name);
                if line.is_some_and(|line| line.is_empty() || line.starts_with(':')) {
                    problem.place = from.to_string();
                    problem.remedy += " (--set KEY=VALUE)";
                }
            }
            problems
        })
}

/// Path for a comment of one line.
pub fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Text as a quoted scalar in YAML.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Fails unless the model of the Hugging Face folder `from` is that of a manifest, up to settings that
/// do not change its weights.
pub fn ensure_same_model(theirs: &Model, ours: &Model, from: &str) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let theirs = manifest::model_settings(theirs);
    let ours = manifest::model_settings(ours);
    let text = |value: Option<&Value>| match value {
        None => "null".to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let keys = theirs
        .keys()
        .chain(ours.keys().filter(|key| !theirs.contains_key(*key)));
    let free = |key: &&String| FREE_MODEL_SETTINGS.contains(&format!("model.{key}").as_str());
    for key in keys.filter(|key| {
        // Without a table of positions there, another position is the mistake.
        !free(key) && *key != "seq_len" && (*key != "positions" || theirs.contains_key(*key))
    }) {
        let theirs = text(theirs.get(key));
        let ours = text(ours.get(key));
        if theirs != ours {
            problems.add(
                Path::new(from).join("config.json").display().to_string(),
                format!("model.{key} is {theirs} there, {ours} in the manifest"),
                format!("--set model.{key}={theirs}"),
            );
        }
    }
    problems.or(())
}
