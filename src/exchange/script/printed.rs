//! Arguments that Megatron prints at the start of its log.
//!
//! ```text
//! [default0]:------------------------ arguments ------------------------
//! [default0]:  seed ............................................ 42
//! [default0]:-------------------- end of arguments ---------------------
//! ```

use super::launch::{Given, Launch};
use super::{Script, ScriptChoices, ScriptRun, Shell, Slurm};
use base::Problems;
use manifest::dialects::Dialect;
use std::collections::BTreeMap;
use std::path::PathBuf;

const BEGIN: &str = " arguments ---";
const END: &str = "end of arguments";
/// Message about the tokenizer: `> padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)`.
const VOCAB: &str = "padded vocab (size: ";

/// Manifest of the run whose arguments are in a log; the last ones, if it was started again. None without
/// arguments.
pub fn read_log(
    text: &str,
    name: &str,
    choices: &ScriptChoices,
) -> anyhow::Result<Option<ScriptRun>> {
    let mut arguments: Vec<Given> = Vec::new();
    let mut within = false;
    let mut variables = BTreeMap::new();
    for line in text.lines() {
        if line.contains(END) {
            within = false;
        } else if line.contains(BEGIN) {
            within = true;
            arguments.clear();
        } else if within {
            arguments.extend(argument(line));
        } else if let Some((_, rest)) = line.split_once(VOCAB) {
            let size = rest.split(')').next().unwrap_or_default();
            variables.insert("VOCAB_SIZE".to_string(), size.to_string());
        }
    }
    if arguments.is_empty() {
        return Ok(None);
    }
    let place = name.to_string();
    let launch = Launch::new(arguments, Vec::new());
    let layers = Dialect::Megatron.name("model.layers");
    if launch.get(layers).is_none() {
        let what =
            format!("its arguments have no {layers}: they are not those of a GPT of Megatron");
        return Err(Problems::one(place, what, "give the run's manifest").into());
    }
    let shell = Shell::new(place.clone(), PathBuf::from("."), variables);
    let text = String::new();
    Script { place, text, slurm: Slurm::default(), shell, launch, choices }
        .run()
        .map(Some)
}

/// Name and value of a line; None if it is another message, or the value is None.
fn argument(line: &str) -> Option<Given> {
    let (before, rest) = line.split_once(" ...")?;
    let value = rest.trim_start_matches('.').trim();
    let name = before.rsplit([' ', ':']).next()?;
    // Lists of lists: the datasets are not those of a plan.
    if name.contains("_weighted_split_") {
        return None;
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) || matches!(value, "None" | "[]" | "") {
        return None;
    }
    let items = value
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let words = match items {
        Some(items) => items
            .split(',')
            .map(|item| item.trim().trim_matches(['\'', '"']).to_string())
            .filter(|item| !item.is_empty())
            .collect(),
        None => vec![value.to_string()],
    };
    Some(Given { flag: name.to_string(), name: name.to_string(), words })
}

#[cfg(test)]
mod tests;
