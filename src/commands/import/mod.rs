//! Starts a run from Hugging Face weights, or from another trainer's checkpoint.

pub mod command;
mod divergence;
pub mod foreign;
pub mod hugging_face;
mod options;

use base::Problems;
use manifest::Loaded;
use serde_json::Value;
use std::path::Path;

/// Name of a new run: that of its folder if a manifest may have it, else "imported".
fn run_name(run: &Path) -> &str {
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
fn new_manifest(
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
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Text as a quoted scalar in YAML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
