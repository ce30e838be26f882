//! Options that several commands have, and parsers of their values.

use base::output::Existing;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;

/// Output format: text for people, or one JSON object for scripts, alone on standard output. Errors
/// are lines on standard error, with the exit code, in both formats.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Json {
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

impl Json {
    pub fn say(self, lines: impl FnOnce(), object: impl Serialize) {
        self.lines(lines);
        self.object(object);
    }

    pub fn lines(self, lines: impl FnOnce()) {
        if !self.json {
            lines();
        }
    }

    pub fn object(self, object: impl Serialize) {
        if self.json {
            base::say!("{:#}", serde_json::to_value(object).expect("numbers and names"));
        }
    }
}

/// Permission to replace existing files.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Overwrite {
    /// Replace files that exist already
    #[arg(long)]
    pub overwrite: bool,
}

impl Overwrite {
    pub fn existing(self) -> Existing {
        if self.overwrite { Existing::Replaced } else { Existing::Refused }
    }
}

/// Word of an option, with its value. Other spellings follow the word after `|`.
pub struct Choice<T>(pub &'static str, pub T, pub &'static str);

/// Parser of an option that takes one of some words.
pub fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let words = choices.iter().map(|Choice(words, _, help)| {
        let mut words = words.split('|');
        let word = PossibleValue::new(words.next().unwrap_or_default()).aliases(words);
        if help.is_empty() { word } else { word.help(*help) }
    });
    PossibleValuesParser::new(words).map(|typed| {
        let choice = choices
            .iter()
            .find(|choice| choice.0.split('|').any(|word| word == typed));
        choice.expect("the parser takes no other word").1
    })
}
