//! Tokenizers that gptrain's own encoder does not implement, through Hugging Face's crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use serde_json::{Map, Value};
use tokenizers::ModelWrapper;

use super::Rules;
use super::Tokenizer;
use base::{Count, Problems};

/// Hugging Face's tokenizer, twice: the first reads special tokens in text as ordinary text.
#[derive(Clone, Debug)]
pub struct HfTokenizer {
    ordinary: Arc<tokenizers::Tokenizer>,
    parsing: Arc<tokenizers::Tokenizer>,
    /// Field of the file that only the crate supports.
    pub why: String,
    /// Tokens that the template puts before and after a text.
    pub head: Vec<u32>,
    pub tail: Vec<u32>,
}

/// Maximum number of times that rules of a file may lengthen a text. Published files stay below 3,000
/// (ALBERT's: NFKD, a table of characters, and replacements).
const MOST_GROWTH: f64 = 16384.0;
/// Maximum number of tokens that a template may add to a text.
const MOST_ADDED: usize = 4096;

/// Reads a tokenizer.json. `why` names the field that gptrain's own encoder lacks.
pub fn load(path: &Path, json: &Map<String, Value>, why: String) -> Result<Tokenizer> {
    let place = path.display().to_string();
    check_growth(json, &place)?;
    let text = serde_json::to_string(json)?;
    // The crate panics on some damaged files.
    let read = catch_unwind(|| tokenizers::Tokenizer::from_str(&text))
        .unwrap_or_else(|_| Err("it cannot make sense of the file".into()));
    let mut parsing = read.map_err(|error| {
        Problems::one(
            &place,
            format!("its {why}, and Hugging Face's tokenizers says: {error}"),
            "give another tokenizer.json",
        )
    })?;
    // A dataset holds whole documents, so the file's truncation and padding are ignored.
    let _ = parsing.with_truncation(None);
    parsing.with_padding(None);
    if let ModelWrapper::BPE(model) = parsing.get_model()
        && model.dropout.is_some()
    {
        let mut model = model.clone();
        model.dropout = None;
        parsing.with_model(model);
    }
    let mut ordinary = parsing.clone();
    ordinary.set_encode_special_tokens(true);
    let mut added_tokens: Vec<(String, u32)> = parsing
        .get_added_tokens_decoder()
        .iter()
        .filter(|(_, token)| !token.content.is_empty())
        .map(|(id, token)| (token.content.clone(), *id))
        .collect();
    added_tokens.sort_by_key(|(_, id)| *id);
    let most = parsing.get_vocab(true).values().copied().max();
    let vocab = most.map_or(0, |most| most as usize + 1);
    let (head, tail) = template(&ordinary);
    let ordinary = Arc::new(ordinary);
    let parsing = Arc::new(parsing);
    let rules = Rules::HuggingFace(HfTokenizer { ordinary, parsing, why, head, tail });
    Ok(Tokenizer { vocab, added_tokens, eod: None, rules, notes: Vec::new() })
}

/// Tokens that the template puts before and after a text.
fn template(tokenizer: &tokenizers::Tokenizer) -> (Vec<u32>, Vec<u32>) {
    let encoded = ["a", "the", "1", "."].into_iter().find_map(|text| {
        let encoding = catch_unwind(AssertUnwindSafe(|| tokenizer.encode_fast(text, true)))
            .ok()?
            .ok()?;
        encoding
            .get_special_tokens_mask()
            .contains(&0)
            .then_some(encoding)
    });
    let Some(encoding) = encoded else { return (Vec::new(), Vec::new()) };
    let ids = encoding.get_ids();
    let mask = encoding.get_special_tokens_mask();
    let first = mask.iter().position(|added| *added == 0).unwrap_or(0);
    let last = mask.iter().rposition(|added| *added == 0).unwrap_or(0);
    (ids[..first].to_vec(), ids[last + 1..].to_vec())
}

impl HfTokenizer {
    /// Appends the ids of a text; with `template`, also those that the file's template adds (such as a
    /// first token), as Megatron's preprocessing does. Fails if the vocabulary has no token for a word.
    pub fn encode(
        &self,
        text: &str,
        parse_special: bool,
        template: bool,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let tokenizer = if parse_special { &self.parsing } else { &self.ordinary };
        let encoding = catch_unwind(AssertUnwindSafe(|| tokenizer.encode_fast(text, template)))
            .unwrap_or_else(|_| Err("it cannot make sense of the text".into()))
            .map_err(|error| {
                let text: String = text.chars().take(40).collect();
                anyhow!("Hugging Face's tokenizers cannot encode \"{text}…\": {error}")
            })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        let decoded = catch_unwind(AssertUnwindSafe(|| self.parsing.decode(ids, false)));
        decoded
            .ok()
            .and_then(Result::ok)
            .unwrap_or_else(|| "\u{fffd}".into())
    }

    /// Id of a token by its spelling in the file.
    pub fn token(&self, name: &str) -> Option<u32> {
        self.parsing.token_to_id(name)
    }
}

/// Fails if the file's rules can turn a small text into one that no memory holds.
fn check_growth(json: &Map<String, Value>, place: &str) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let remedy = "it is damaged or hostile: give another tokenizer.json";
    for key in ["normalizer", "decoder"] {
        let factor = growth(json.get(key).unwrap_or(&Value::Null));
        if factor > MOST_GROWTH {
            let what = format!("its {key} can make a text {factor:.0} times as long");
            problems.add(place, format!("{what} (the limit is {MOST_GROWTH})"), remedy);
        }
    }
    let added = count_added(json.get("post_processor").unwrap_or(&Value::Null));
    if added > MOST_ADDED {
        let what = format!("its template adds {} tokens to each text", Count(added as u64));
        problems.add(place, format!("{what} (the limit is {})", Count(MOST_ADDED as u64)), remedy);
    }
    problems.or(())
}

/// Upper bound of a text's growth, in bytes, by a normalizer or decoder.
fn growth(rule: &Value) -> f64 {
    let bytes = |value: &Value| value.as_str().map_or(0, str::len) as f64;
    match rule["type"].as_str() {
        Some("Sequence") => {
            let steps = rule["normalizers"]
                .as_array()
                .or(rule["decoders"].as_array());
            steps.into_iter().flatten().map(growth).product()
        }
        Some("Replace") => match bytes(&rule["pattern"]["String"]) {
            // A regular expression may match one byte, or between two.
            0.0 => 1.0 + bytes(&rule["content"]),
            pattern => (bytes(&rule["content"]) / pattern).max(1.0),
        },
        Some("Prepend") => 1.0 + bytes(&rule["prepend"]),
        // U+FDFA has 3 bytes, and 33 when decomposed.
        Some("NFKC" | "NFKD") => 11.0,
        Some("NFC" | "NFD" | "BertNormalizer") => 3.0,
        Some("Precompiled") => 32.0,
        Some("ByteLevel" | "Lowercase") => 2.0,
        _ => 1.0,
    }
}

/// Number of tokens that a post-processor adds to a text.
fn count_added(rule: &Value) -> usize {
    let own: usize = rule["single"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|piece| {
            let name = piece["SpecialToken"]["id"].as_str().unwrap_or_default();
            rule["special_tokens"][name]["ids"]
                .as_array()
                .map_or(0, Vec::len)
        })
        .sum();
    let parts = rule["processors"]
        .as_array()
        .into_iter()
        .flatten()
        .map(count_added);
    own + parts.sum::<usize>()
}
