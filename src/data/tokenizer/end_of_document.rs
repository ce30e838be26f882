//! Finds the token of a tokenizer that ends documents.

use super::{END_OF_TEXT, Tokenizer};
use serde_json::Value;
use std::path::Path;

/// Token that ends documents: the one in `tokenizer_config.json` in the same folder, otherwise one of
/// the common names. If the file does not have the name that transformers gives it, that
/// configuration may belong to another tokenizer and is not read.
pub fn end_of_document(tokenizer: &Tokenizer, path: &Path) -> Option<u32> {
    let usual = ["tokenizer.json", "vocab.json"].into_iter().any(|name| path.ends_with(name));
    let config = usual.then(|| path.with_file_name("tokenizer_config.json"));
    let config = config.and_then(|path| std::fs::read_to_string(path).ok());
    let config: Option<Value> =
        config.and_then(|text| base::json::from_python(text.as_bytes()).ok());
    let named = config.and_then(|config| {
        let name = &config["eos_token"];
        name["content"].as_str().or(name.as_str()).and_then(|name| tokenizer.special(name))
    });
    let known = [END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<eod>"];
    named.or_else(|| known.iter().find_map(|name| tokenizer.special(name)))
}
