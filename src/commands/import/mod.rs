//! Starts a run from Hugging Face weights, or from another trainer's checkpoint.

pub mod foreign;
pub mod hugging_face;

use serde_json::Value;
use std::path::Path;

/// Name of a new run: that of its folder if a manifest may have it, else "imported".
fn run_name(run: &Path) -> &str {
    let name = run.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = !name.is_empty() && !name.starts_with('.') && name.len() <= 200;
    if fits && name.chars().all(plain) { name } else { "imported" }
}

/// Path for a comment of one line.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Text as a quoted scalar in YAML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
