//! Finds the token of a tokenizer that ends documents.

use super::files::settings;
use super::{END_OF_TEXT, Tokenizer};
use std::path::Path;

/// Token that ends documents: the one in `tokenizer_config.json` in the same folder, otherwise one of
/// the common names. If the file does not have the name that transformers gives it, that
/// configuration may belong to another tokenizer and is not read.
pub fn find_end_of_document(tokenizer: &Tokenizer, path: &Path) -> Option<u32> {
    let named = settings(path, "tokenizer_config.json").and_then(|config| {
        let name = config.get("eos_token")?;
        tokenizer.token(name["content"].as_str().or(name.as_str())?)
    });
    let known = [END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<eod>"];
    named.or_else(|| known.iter().find_map(|name| tokenizer.added_token(name)))
}
