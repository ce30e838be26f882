//! "Did you mean" suggestions for misspelt keys and values.

use super::dialects::{self, Meaning, Row};

/// Values, and their names in other programs.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("cuda", "gpu nvidia"),
    ("f32", "float32 fp32 float single"),
    ("bf16", "bfloat16"),
    ("fp16", "float16 f16 half"),
    ("adamw", "adam"),
    ("rope", "rotary"),
];

/// Choice that was probably meant by `typed`.
pub fn choice<'a>(typed: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let plain = typed.to_lowercase();
    let elsewhere = OTHER_WORDS
        .iter()
        .find(|(_, others)| others.split(' ').any(|w| w == plain));
    elsewhere
        .and_then(|(word, _)| known.clone().find(|known| known == word))
        .or_else(|| word(typed, known))
}

/// Probable meaning of a name that is not a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suggestion {
    /// A key, with its full path.
    Key(String),
    /// A row of the table of other programs' names.
    Row(&'static Row),
}

impl Suggestion {
    /// Path of the key that was meant; None if no setting is needed, or none exists.
    pub fn key(&self) -> Option<&str> {
        match self {
            Suggestion::Key(path) => Some(path),
            Suggestion::Row(row) => match row.meaning {
                Meaning::Setting { key, .. } => Some(key),
                _ => None,
            },
        }
    }

    /// Remedy for an unknown key of a manifest.
    pub fn remedy(&self) -> String {
        let Suggestion::Row(row) = self else {
            return format!("did you mean {}?", self.key().unwrap_or_default());
        };
        let unit =
            if row.unit.is_empty() { String::new() } else { format!(" Its value is {}", row.unit) };
        match row.meaning {
            Meaning::Setting { key, value: None } => format!("did you mean {key}?{unit}"),
            Meaning::Setting { key, value: Some(value) } => {
                format!("did you mean {key}: {value}?{unit}")
            }
            Meaning::Unneeded(why)
            | Meaning::Lacking(why)
            | Meaning::Only { why, .. }
            | Meaning::Noted { why, .. } => {
                format!("remove it: {why}")
            }
        }
    }
}

/// Suggestion for `key` in `section`, whose keys are `siblings`. `all` are the paths of all
/// keys. Another trainer's name comes before a sibling with similar letters.
pub fn key<'a>(
    section: &str,
    key: &str,
    siblings: impl Iterator<Item = &'a str>,
    all: &[String],
) -> Option<Suggestion> {
    if let Some(row) = dialects::find(&join(section, key)) {
        return Some(Suggestion::Row(row));
    }
    let plain = dialects::plain(key);
    if let Some(sibling) = word(&plain, siblings) {
        return Some(Suggestion::Key(join(section, sibling)));
    }
    same_name(&plain, all).map(Suggestion::Key)
}

/// Suggestion for an option of the command line, such as `--lr` or `--train-iters`, among the paths
/// `all`.
pub fn option(typed: &str, all: &[String]) -> Option<Suggestion> {
    let plain = dialects::plain(typed);
    let key = all
        .iter()
        .find(|path| **path == plain)
        .cloned()
        .or_else(|| same_name(&plain, all));
    let row = || dialects::find(&plain).map(Suggestion::Row);
    row().or(key.map(Suggestion::Key))
}

/// Path of the key with this name in another section: the default optimizer's first.
fn same_name(name: &str, all: &[String]) -> Option<String> {
    all.iter()
        .filter(|path| path.rsplit('.').next() == Some(name) && !path.contains('*'))
        .min_by_key(|path| !path.contains(".adamw."))
        .cloned()
}

/// Word closest to `typed`; None if none is close enough.
pub fn word<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (typed.chars().count() / 3).clamp(1, 3);
    // Keys are shorter than this, and the typed text may be megabytes.
    let typed: String = typed.chars().take(64).collect();
    known
        .map(|word| (strsim::osa_distance(&typed, word), word))
        .filter(|(distance, word)| *distance <= allowed && *distance < word.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Path of a key: `a.b`, or `b` at the top.
pub fn join(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_string() } else { format!("{section}.{key}") }
}
