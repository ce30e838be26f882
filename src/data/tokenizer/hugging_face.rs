//! Tokenizers that are not byte-level BPE with a pattern known here, through Hugging Face's crate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};

use super::Rules;
use super::Tokenizer;
use super::end_of_document::end_of_document;
use base::Problems;

/// Hugging Face's tokenizer, twice: the first reads special tokens in text as ordinary text.
#[derive(Clone, Debug)]
pub struct HfTokenizer {
    ordinary: Arc<tokenizers::Tokenizer>,
    parsing: Arc<tokenizers::Tokenizer>,
}

/// Reads a tokenizer.json. `why` names the feature that gptrain's own code lacks.
pub fn load(path: &Path, why: &str) -> Result<Tokenizer> {
    // The crate panics on some damaged files.
    let read = catch_unwind(|| tokenizers::Tokenizer::from_file(path));
    let read = read.unwrap_or_else(|_| Err("it cannot make sense of the file".into()));
    let mut parsing = read.map_err(|error| {
        let what = format!("{why}, and Hugging Face's tokenizers says: {error}");
        Problems::one(path.display().to_string(), what, "give another tokenizer.json")
    })?;
    // A dataset holds whole documents, so the file's truncation and padding are ignored.
    let _ = parsing.with_truncation(None);
    parsing.with_padding(None);
    let mut ordinary = parsing.clone();
    ordinary.set_encode_special_tokens(true);
    let mut special: Vec<(String, u32)> = parsing
        .get_added_tokens_decoder()
        .iter()
        .filter(|(_, token)| !token.content.is_empty())
        .map(|(id, token)| (token.content.clone(), *id))
        .collect();
    special.sort_by_key(|(_, id)| *id);
    let most = parsing.get_vocab(true).values().copied().max();
    let vocab = most.map_or(0, |most| most as usize + 1);
    let hf = HfTokenizer { ordinary: Arc::new(ordinary), parsing: Arc::new(parsing) };
    let mut tokenizer = Tokenizer { vocab, special, eod: None, rules: Rules::HuggingFace(hf) };
    tokenizer.eod = end_of_document(&tokenizer, path);
    Ok(tokenizer)
}

impl HfTokenizer {
    /// Appends the ids of a text, with those that the file's template adds (such as a first token), as
    /// Megatron's preprocessing does. Fails if the vocabulary has no token for a word.
    pub fn encode(&self, text: &str, parse_special: bool, ids: &mut Vec<u32>) -> Result<()> {
        let tokenizer = if parse_special { &self.parsing } else { &self.ordinary };
        let encoding = catch_unwind(AssertUnwindSafe(|| tokenizer.encode_fast(text, true)));
        let encoding = encoding.unwrap_or_else(|_| Err("it cannot make sense of the text".into()));
        let encoding = encoding.map_err(|error| {
            let text: String = text.chars().take(40).collect();
            anyhow!("Hugging Face's tokenizers cannot encode \"{text}…\": {error}")
        })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        let decoded = catch_unwind(AssertUnwindSafe(|| self.parsing.decode(ids, false)));
        decoded.ok().and_then(Result::ok).unwrap_or_else(|| "\u{fffd}".into())
    }
}
