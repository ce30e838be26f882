//! The file of `--names`: lines `NAME -> PARAMETER` for the tensors of a distributed checkpoint whose names no
//! reader has.
//!
//! ```text
//! # in NAME, {layer} is a block's number and {name} the name of a weight
//! tok.weight                           -> embed.token
//! blocks.{layer}.attn.q.weight         -> block.{layer}.attn.qkv.weight [queries]
//! optim.state.{name}.exp_avg           -> first moment
//! rope.*                               -> -
//! pairs: neighbours
//! ```

use super::super::AdamState;
use super::super::run::Piece;
use crate::tensor_part::{Pairs, ParamKey};
use anyhow::Context;
use base::{Problems, input};
use manifest::{Family, Model, Sizes};
use model::{Module, Weight};
use std::path::Path;

const LAYER: &str = "{layer}";
const NAME: &str = "{name}";
/// Words in brackets: parts of a fused matrix.
const PIECES: [(&str, Piece); 7] = [
    ("queries", Piece::Kind(0)),
    ("keys", Piece::Kind(1)),
    ("values", Piece::Kind(2)),
    ("queries keys values", Piece::Kinds),
    ("gates", Piece::Half(0)),
    ("up", Piece::Half(1)),
    ("gates up", Piece::Halves),
];

/// Meaning of a tensor of the folder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Param(Weight, Piece),
    /// A moment of the parameter whose name takes the place of `{name}`.
    Moment(AdamState),
    /// Adam's count of updates.
    Updates,
    Step,
    LeftOut,
}

/// A line of the file.
#[derive(Debug)]
pub struct Rule {
    /// Number of the line, from 1.
    pub line: usize,
    /// Text of the name before and after `{layer}`, `{name}` or `*`.
    before: String,
    after: Option<String>,
    pub target: Target,
}

impl Rule {
    /// Text in place of the line's placeholder in a name; empty if the line has none. None if the
    /// name is not the line's.
    pub fn placeholder<'n>(&self, name: &'n str) -> Option<&'n str> {
        let rest = name.strip_prefix(&self.before)?;
        match &self.after {
            None => rest.is_empty().then_some(""),
            Some(after) => rest.strip_suffix(after.as_str()),
        }
    }

    /// Whether the line is of several names.
    pub fn has_placeholder(&self) -> bool {
        self.after.is_some()
    }

    /// Name of the line with this text in place of the placeholder.
    pub fn fill(&self, text: &str) -> String {
        format!("{}{text}{}", self.before, self.after.as_deref().unwrap_or_default())
    }

    /// The parameter of a name, and the part of it.
    pub fn param(&self, name: &str) -> Option<(ParamKey, Piece)> {
        let Target::Param(weight, piece) = self.target else { return None };
        let text = self.placeholder(name)?;
        let layer = match self.after {
            None => None,
            Some(_) => Some(text.parse::<usize>().ok()?),
        };
        Some(((weight, layer), piece))
    }
}

/// The lines of a file.
#[derive(Debug)]
pub struct NamesFile {
    pub place: String,
    pub rules: Vec<Rule>,
    pub pairs: Pairs,
}

impl NamesFile {
    pub fn read(path: &Path) -> anyhow::Result<NamesFile> {
        let place = path.display().to_string();
        let bytes =
            input::read(path, input::SMALL).with_context(|| format!("cannot read {place}"))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Problems::one(place.clone(), "is not text", EXAMPLE))?;
        Ok(NamesFile::parse(place, &text)?)
    }

    fn parse(place: String, text: &str) -> Result<NamesFile, Problems> {
        let mut problems = Problems::default();
        let mut names = NamesFile { place, rules: Vec::new(), pairs: Pairs::Halves };
        let weights = weights();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            let number = index + 1;
            let read = match line
                .split_once(':')
                .map(|(key, value)| (key.trim(), value.trim()))
            {
                _ if line.is_empty() => continue,
                Some(("pairs", word)) => pairs(word).map(|pairs| names.pairs = pairs),
                _ => rule(number, line, &weights).map(|rule| names.rules.push(rule)),
            };
            if let Err(what) = read {
                problems.add(format!("{}:{number}", names.place), what, EXAMPLE);
            }
        }
        if problems.list.is_empty() && names.rules.is_empty() {
            problems.add(names.place.clone(), "has no lines", EXAMPLE);
        }
        problems.list.truncate(8);
        problems.or(names)
    }

    /// Lines of a kind.
    pub fn rules(&self, target: Target) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.target == target)
    }

    /// Problem of a line.
    pub fn problem(&self, line: usize, what: String, remedy: &str) -> anyhow::Error {
        Problems::one(format!("{}:{line}", self.place), what, remedy).into()
    }
}

const EXAMPLE: &str = "write lines such as `layers.{layer}.wo.weight -> block.{layer}.attn.proj.weight` \
                       (docs/import.md)";

fn pairs(word: &str) -> Result<Pairs, String> {
    match word {
        "halves" => Ok(Pairs::Halves),
        "neighbours" => Ok(Pairs::Neighbours),
        _ => Err(format!("pairs is {word}, not halves or neighbours")),
    }
}

/// Reads a line, or says what is wrong with it.
fn rule(line: usize, text: &str, weights: &[(String, Weight)]) -> Result<Rule, String> {
    let (name, to) = text
        .split_once("->")
        .or_else(|| text.split_once('→'))
        .ok_or_else(|| format!("{text:?} has no arrow (->)"))?;
    let name = name.trim();
    let target = target(to.trim(), weights)?;
    let needed = match target {
        Target::Param(weight, _) => {
            let full = weights.iter().find(|(_, known)| *known == weight);
            full.is_some_and(|(full, _)| full.contains(LAYER))
                .then_some(LAYER)
        }
        Target::Moment(_) => Some(NAME),
        Target::Updates if name.contains(NAME) => Some(NAME),
        Target::LeftOut => [LAYER, "*"].into_iter().find(|mark| name.contains(mark)),
        Target::Updates | Target::Step => None,
    };
    let marks = [LAYER, NAME, "*"].map(|mark| name.matches(mark).count());
    if name.is_empty() || marks.iter().sum::<usize>() != usize::from(needed.is_some()) {
        return Err(match needed {
            Some(mark) => format!("{name:?} does not have {mark} once, and nothing else in braces"),
            None => format!("{name:?} is empty or has a placeholder"),
        });
    }
    let (before, after) = match needed {
        None => (name, None),
        Some(mark) => {
            let (before, after) = name.split_once(mark).unwrap_or((name, ""));
            (before, Some(after.to_string()))
        }
    };
    Ok(Rule { line, before: before.to_string(), after, target })
}

/// Reads the right side of an arrow.
fn target(to: &str, weights: &[(String, Weight)]) -> Result<Target, String> {
    match to {
        "-" => return Ok(Target::LeftOut),
        "first moment" => return Ok(Target::Moment(AdamState::FirstMoment)),
        "second moment" => return Ok(Target::Moment(AdamState::SecondMoment)),
        "updates" => return Ok(Target::Updates),
        "step" => return Ok(Target::Step),
        _ => {}
    }
    let (param, piece) = match to.split_once('[') {
        None => (to, Piece::All),
        Some((param, word)) => {
            let word = word.trim().trim_end_matches(']').trim();
            let known = PIECES.iter().find(|(name, _)| *name == word);
            let words: Vec<&str> = PIECES.iter().map(|(name, _)| *name).collect();
            let piece = known
                .ok_or_else(|| format!("[{word}] is not one of {}", words.join(", ")))?
                .1;
            (param.trim(), piece)
        }
    };
    let Some((_, weight)) = weights.iter().find(|(name, _)| name == param) else {
        let names: Vec<&str> = weights.iter().map(|(name, _)| name.as_str()).collect();
        return Err(format!(
            "{param:?} is not a parameter of gptrain, nor `first moment`, `second moment`, `updates`, `step` \
             or `-`: {}",
            names.join(", ")
        ));
    };
    let fits = match piece {
        Piece::All => true,
        Piece::Kind(_) | Piece::Kinds => matches!(weight, Weight::QkvW | Weight::QkvB),
        Piece::Half(_) | Piece::Halves => matches!(weight, Weight::Fc1W | Weight::Fc1B),
    };
    if fits {
        return Ok(Target::Param(*weight, piece));
    }
    Err(format!("{param} has no parts"))
}

/// Every parameter that a model may have, with `{layer}` in the names of blocks.
fn weights() -> Vec<(String, Weight)> {
    let mut weights: Vec<(String, Weight)> = Vec::new();
    let sizes = Sizes { layers: 1, hidden: 64, heads: 1, vocab: 64, seq_len: 64 };
    for family in Family::ALL.iter().copied() {
        for spec in model::table(&Model::with_defaults(family, sizes, 1)) {
            let before = if spec.module == Module::Block { "block.{layer}." } else { "" };
            let name = format!("{before}{}", spec.name);
            if !weights.iter().any(|(known, _)| *known == name) {
                weights.push((name, spec.weight));
            }
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NamesFile, String> {
        NamesFile::parse("names".into(), text).map_err(|problems| problems.to_string())
    }

    #[test]
    fn lines_are_names_and_what_they_hold() {
        let names = parse(
            "# a comment\n\ntok -> embed.token # another\n\
             b.{layer}.q→block.{layer}.attn.qkv.weight [ queries ]\n\
             o.{name}.m -> first moment\no.{name}.t -> updates\nrope.* -> -\n\
             step -> step\npairs: neighbours\n",
        )
        .unwrap();
        assert_eq!(names.rules.len(), 6);
        assert_eq!(names.pairs, Pairs::Neighbours);
        let [token, queries, moment, _, rope, _] = &names.rules[..] else { panic!() };
        assert_eq!(token.param("tok"), Some(((Weight::TokenEmbed, None), Piece::All)));
        assert_eq!(token.param("tok2"), None);
        assert_eq!(queries.line, 4);
        assert_eq!(queries.param("b.12.q"), Some(((Weight::QkvW, Some(12)), Piece::Kind(0))));
        assert_eq!(queries.param("b.x.q"), None);
        assert_eq!(moment.placeholder("o.b.0.q.m"), Some("b.0.q"));
        assert_eq!(moment.fill("tok"), "o.tok.m");
        assert_eq!(rope.placeholder("rope.inv"), Some("inv"));
    }

    #[test]
    fn wrong_lines_are_refused_with_their_numbers() {
        let cases = [
            ("tok embed.token", "names:1: \"tok embed.token\" has no arrow (->)"),
            ("\ntok -> embed.tokens", "names:2: \"embed.tokens\" is not a parameter of gptrain"),
            ("b.q -> block.{layer}.attn.qkv.weight", "names:1: \"b.q\" does not have {layer} once"),
            ("a.{layer}.b.{layer} -> block.{layer}.ln1.scale", "does not have {layer} once"),
            ("{layer} -> embed.token", "is empty or has a placeholder"),
            ("m -> first moment", "does not have {name} once"),
            ("a -> embed.token [gates]", "embed.token has no parts"),
            ("a.{layer} -> block.{layer}.mlp.fc1.weight [gate]", "[gate] is not one of queries"),
            ("pairs: both", "pairs is both, not halves or neighbours"),
            ("# nothing", "names: has no lines"),
        ];
        for (text, what) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(what), "{text:?}: {error}");
        }
    }
}
