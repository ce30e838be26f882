//! Byte-level BPE in a tokenizer.json, as far as gptrain's own encoder implements it. The types here list
//! every field, with the values that are implemented: an unknown field or value is the reason why
//! Hugging Face's crate encodes instead.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::added::{AddedToken, AddedTokens};
use super::byte_alphabet::spell;
use super::pre_tokenizer::{self, PreTokenizer};

/// Parts of a file that determine ids.
pub struct ByteLevelFile {
    pub added: AddedTokens,
    pub pre_tokenizer: PreTokenizer,
    /// Whether a space is put before text that does not start with one.
    pub prefix_space: bool,
    pub vocab: HashMap<String, u32>,
    pub merges: Vec<Pair>,
    pub ignore_merges: bool,
}

/// Merge: `"a b"` in old files, `["a", "b"]` in new ones.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Pair {
    Spaced(String),
    Two(String, String),
}

impl Pair {
    pub fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Pair::Spaced(text) => text.split_once(' '),
            Pair::Two(left, right) => Some((left, right)),
        }
    }
}

#[derive(Deserialize)]
enum Version {
    #[serde(rename = "1.0")]
    One,
}

#[derive(Deserialize)]
enum ModelType {
    #[serde(rename = "BPE")]
    Bpe,
}

/// Prefix or suffix of a token: none.
#[derive(Deserialize)]
enum NoAffix {
    #[serde(rename = "")]
    Empty,
}

/// Normalizer without effect.
#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum NoNormalizer {
    Sequence {
        #[serde(rename = "normalizers")]
        _none: Vec<NoNormalizer>,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum Cut {
    ByteLevel {
        add_prefix_space: bool,
        #[serde(rename = "trim_offsets")]
        _offsets: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Split {
        pattern: Pattern,
        #[serde(rename = "behavior")]
        _isolated: Isolated,
        invert: bool,
    },
    Sequence {
        pretokenizers: Vec<Cut>,
    },
}

#[derive(Deserialize)]
enum Pattern {
    Regex(String),
}

#[derive(Deserialize)]
enum Isolated {
    Isolated,
}

/// Post-processor that adds no token to a text.
#[derive(Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum NoTemplate {
    ByteLevel {
        #[serde(rename = "add_prefix_space")]
        _space: bool,
        #[serde(rename = "trim_offsets")]
        _offsets: bool,
        #[serde(rename = "use_regex")]
        _regex: Option<bool>,
    },
    TemplateProcessing {
        single: Vec<TemplatePiece>,
        #[serde(rename = "pair")]
        _pair: IgnoredAny,
        #[serde(rename = "special_tokens")]
        _tokens: IgnoredAny,
    },
    Sequence {
        processors: Vec<NoTemplate>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
enum TemplatePiece {
    Sequence {
        #[serde(rename = "id")]
        _text: TemplateText,
        #[serde(rename = "type_id")]
        _type: u32,
    },
}

#[derive(Deserialize)]
enum TemplateText {
    A,
}

/// Decoder: ids have exact bytes here.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum ByteDecoder {
    ByteLevel,
}

fn yes() -> bool {
    true
}

/// Fields of an object, each taken once.
struct Fields<'a> {
    /// Name of the object, with a point: `model.`
    place: &'static str,
    object: &'a Map<String, Value>,
    taken: HashSet<&'static str>,
}

impl<'a> Fields<'a> {
    fn new(place: &'static str, object: &'a Map<String, Value>) -> Fields<'a> {
        Fields { place, object, taken: HashSet::new() }
    }

    /// Value of a field (null if it is missing), or its name and text if the value is not implemented.
    fn take<T: Deserialize<'a>>(&mut self, key: &'static str) -> Result<T, String> {
        self.taken.insert(key);
        let value = self.object.get(key).unwrap_or(&Value::Null);
        T::deserialize(value).map_err(|_| format!("{}{key} is {}", self.place, shorten(value)))
    }

    /// Fails if a field was not taken.
    fn end(self) -> Result<(), String> {
        for (key, value) in self.object {
            if !self.taken.contains(key.as_str()) {
                return Err(format!("{}{key} is {}", self.place, shorten(value)));
            }
        }
        Ok(())
    }
}

/// Beginning of a value's text.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Reads the fields of a tokenizer.json, or returns the first that is not implemented.
pub fn read(file: &Map<String, Value>) -> Result<ByteLevelFile, String> {
    let mut fields = Fields::new("", file);
    let Some(Value::Object(object)) = file.get("model") else {
        return Err("model is missing".into());
    };
    let mut model = Fields::new("model.", object);
    fields.taken.insert("model");
    let _: Option<ModelType> = model.take("type")?;
    let _: Option<Version> = fields.take("version")?;
    // A dataset holds whole documents, so the file's truncation and padding are ignored.
    let _: IgnoredAny = fields.take("truncation")?;
    let _: IgnoredAny = fields.take("padding")?;
    let _: Option<NoNormalizer> = fields.take("normalizer")?;
    let cut: Cut = fields.take("pre_tokenizer")?;
    let Some((pre_tokenizer, prefix_space)) = find_pattern(&cut) else {
        return Err(format!("pre_tokenizer is {}", shorten(&file["pre_tokenizer"])));
    };
    let template: Option<NoTemplate> = fields.take("post_processor")?;
    if template.is_some_and(|template| !template.adds_nothing()) {
        return Err(format!("post_processor is {}", shorten(&file["post_processor"])));
    }
    let _: Option<ByteDecoder> = fields.take("decoder")?;
    // Dropout is switched off.
    let _: Option<f64> = model.take("dropout")?;
    let _: Option<NoAffix> = model.take("continuing_subword_prefix")?;
    let _: Option<NoAffix> = model.take("end_of_word_suffix")?;
    // Every byte has a token, so none is unknown.
    let _: Option<String> = model.take("unk_token")?;
    let _: Option<bool> = model.take("fuse_unk")?;
    if model.take::<Option<bool>>("byte_fallback")? == Some(true) {
        return Err("model.byte_fallback is true".into());
    }
    let ignore_merges = model
        .take::<Option<bool>>("ignore_merges")?
        .unwrap_or(false);
    let vocab: HashMap<String, u32> = model.take("vocab")?;
    let merges = model.take("merges")?;
    check_bytes(&vocab)?;
    let added = added_tokens(fields.take::<Option<Vec<Value>>>("added_tokens")?, &vocab)?;
    model.end()?;
    fields.end()?;
    Ok(ByteLevelFile { added, pre_tokenizer, prefix_space, vocab, merges, ignore_merges })
}

/// Beginning of the reason that bytes have no token.
pub const MISSING_BYTES: &str = "model.vocab has no token for";

/// Fails if a byte that UTF-8 text can contain has no token.
fn check_bytes(vocab: &HashMap<String, u32>) -> Result<(), String> {
    let missing: Vec<String> = (0..=255)
        .filter(|byte| !matches!(byte, 0xc0 | 0xc1 | 0xf5..=0xff))
        .filter(|byte| !vocab.contains_key(&spell(*byte).to_string()))
        .map(|byte| format!("0x{byte:02x}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let count = missing.len();
    let some = missing[..missing.len().min(8)].join(" ");
    let more = if count > 8 { " …" } else { "" };
    Err(format!("{MISSING_BYTES} {count} of the bytes text is made of: {some}{more}"))
}

/// Reads the added tokens. The crate ignores their ids: a token has the id of the vocabulary, or the
/// next one after it.
fn added_tokens(
    list: Option<Vec<Value>>,
    vocab: &HashMap<String, u32>,
) -> Result<AddedTokens, String> {
    let mut tokens = Vec::new();
    let mut contents = HashSet::new();
    let mut next = vocab.len() as u32;
    for value in list.unwrap_or_default() {
        let differs = || format!("added_tokens holds {}", shorten(&value));
        let token = AddedToken::deserialize(&value).map_err(|_| differs())?;
        let id = vocab.get(&token.content).copied().unwrap_or(next);
        if token.id != id || token.content.is_empty() || !contents.insert(token.content.clone()) {
            return Err(differs());
        }
        next += u32::from(id == next && !vocab.contains_key(&token.content));
        tokens.push(token);
    }
    AddedTokens::new(tokens).map_err(|tokens| format!("added_tokens holds {tokens}"))
}

/// Pattern that cuts text, and whether a space is put before it.
fn find_pattern(cut: &Cut) -> Option<(PreTokenizer, bool)> {
    match cut {
        Cut::ByteLevel { add_prefix_space, use_regex, .. } => {
            let cut = if *use_regex { PreTokenizer::Gpt2 } else { PreTokenizer::Whole };
            Some((cut, *add_prefix_space))
        }
        Cut::Split { .. } => None,
        Cut::Sequence { pretokenizers } => {
            let [Cut::Split { pattern: Pattern::Regex(pattern), invert: false, .. }, bytes] =
                &pretokenizers[..]
            else {
                return None;
            };
            let (PreTokenizer::Whole, false) = find_pattern(bytes)? else { return None };
            match pattern.as_str() {
                pre_tokenizer::BLOOM => Some((PreTokenizer::Bloom, false)),
                pre_tokenizer::GPT2 => Some((PreTokenizer::Gpt2, false)),
                _ => None,
            }
        }
    }
}

impl NoTemplate {
    fn adds_nothing(&self) -> bool {
        match self {
            NoTemplate::ByteLevel { .. } => true,
            NoTemplate::TemplateProcessing { single, .. } => single.len() == 1,
            NoTemplate::Sequence { processors } => processors.iter().all(NoTemplate::adds_nothing),
        }
    }
}
