//! Options that do not exist but name a setting: `run --lr 3e-4`, `run --train-iters=100`.

use base::Problems;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use manifest::Suggestion;
use manifest::dialects::Meaning;

/// Message for an unknown option of a command with `--set`, if a setting, or another trainer's name of
/// one, has its name. `words` are the command line without the program's name.
pub fn explain(error: &clap::Error, root: &clap::Command, words: &[String]) -> Option<Problems> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let name = option
        .split('=')
        .next()
        .filter(|name| name.starts_with("--"))?;
    let command = command(root, words);
    if !command
        .get_arguments()
        .any(|arg| arg.get_long() == Some("set"))
    {
        return None;
    }
    let remedy = match manifest::suggest_setting(name)? {
        Suggestion::Key(key) => setting(&key, value(name, words)),
        Suggestion::Row(row) => match row.meaning {
            Meaning::Setting { key, value: Some(value) } => setting(key, value),
            Meaning::Setting { key, value: None } => {
                let note = if row.unit.is_empty() { "" } else { "; its value is " };
                format!("{}{note}{}", setting(key, value(name, words)), row.unit)
            }
            Meaning::Unneeded(why) | Meaning::Lacking(why) | Meaning::Only { why, .. } => {
                format!("leave it out: {why}")
            }
        },
    };
    Some(Problems::one(
        name,
        format!("is not an option of `gptrain {}`", command.get_name()),
        remedy,
    ))
}

fn setting(key: &str, value: &str) -> String {
    format!("settings are given by --set: `--set {key}={value}`")
}

/// The subcommand that the words name.
fn command<'c>(root: &'c clap::Command, words: &[String]) -> &'c clap::Command {
    let mut command = root;
    for word in words {
        match command.find_subcommand(word) {
            Some(below) => command = below,
            None if word.starts_with('-') => {}
            None => break,
        }
    }
    command
}

/// Value that the command line gives to an option, in either form; VALUE if there is none.
fn value<'w>(name: &str, words: &'w [String]) -> &'w str {
    let attached = words
        .iter()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    attached
        .or_else(|| {
            let at = words.iter().position(|word| word == name)?;
            words
                .get(at + 1)
                .map(String::as_str)
                .filter(|next| !next.starts_with("--"))
        })
        .filter(|value| !value.is_empty())
        .unwrap_or("VALUE")
}
