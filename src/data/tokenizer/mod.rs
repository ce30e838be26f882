//! Text to token ids and back: byte-level byte-pair encoding (GPT-2, BLOOM), read from a Hugging
//! Face `tokenizer.json`, and trained here. Other tokenizers go through Hugging Face's crate.
//!
//! Text is first cut into pieces (`pre_tokenizer`), the bytes of each piece are then merged pair by pair
//! in the order the merges were learned (`merges`). Most pieces have been seen before: an `Encoder`
//! remembers them.
//!
//! Independent of datasets and files of text.

// A build without Hugging Face's crate has one kind of rules.
#![cfg_attr(not(feature = "tokenizers"), allow(clippy::infallible_destructuring_match))]

mod digest;
mod encoder;
mod end_of_document;
#[cfg(feature = "tokenizers")]
mod hugging_face;
mod json;
mod merges;
mod pre_tokenizer;
mod byte_alphabet;
mod train;

pub use digest::digest;
pub use encoder::Encoder;
pub use json::files;
pub use train::{Trainer, Training};

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;

#[cfg(feature = "tokenizers")]
use hugging_face::HfTokenizer;
use merges::Merges;
use pre_tokenizer::PreTokenizer;

/// Vocabulary with its rules. Immutable; threads share it and have an `Encoder` each.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Ids are below this.
    vocab: usize,
    /// Special tokens, such as `<|endoftext|>`, by content.
    special: Vec<(String, u32)>,
    eod: Option<u32>,
    rules: Rules,
}

#[derive(Clone, Debug)]
enum Rules {
    Bpe(Box<Bpe>),
    /// All others, by Hugging Face's crate.
    #[cfg(feature = "tokenizers")]
    HuggingFace(HfTokenizer),
}

/// Byte-level BPE.
#[derive(Clone, Debug)]
struct Bpe {
    /// Bytes of every id; None for unused ids.
    bytes: Vec<Option<Box<[u8]>>>,
    /// Id of each single byte.
    byte_ids: [u32; 256],
    merges: Merges,
    pre_tokenizer: PreTokenizer,
    /// Whether a space is put before text that does not start with one.
    prefix_space: bool,
    /// Ids of whole tokens, if a piece that is a token is not merged byte by byte (`ignore_merges`).
    whole_pieces: Option<HashMap<Box<[u8]>, u32>>,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json`, or a folder with one, or with GPT-2's `vocab.json`
    /// and `merges.txt`. Hugging Face's crate reads all but byte-level BPE with a known pattern.
    /// Mistakes in the files are `Problems`.
    pub fn load(path: &Path) -> Result<Tokenizer> {
        json::load(path)
    }

    /// Tokenizer that a user names: a path, or `bytes`.
    pub fn named(path: &Path) -> Result<Tokenizer> {
        if path == Path::new(BYTES) { Ok(Tokenizer::byte_level()) } else { Tokenizer::load(path) }
    }

    /// Tokenizer whose tokens are the bytes; 256 ends a document.
    pub fn byte_level() -> Tokenizer {
        let mut bytes: Vec<_> = (0..=255).map(|byte: u8| Some([byte].into())).collect();
        bytes.push(Some(END_OF_TEXT.as_bytes().into()));
        let rules = Rules::Bpe(Box::new(Bpe {
            bytes,
            byte_ids: std::array::from_fn(|byte| byte as u32),
            merges: Merges::new(&[]),
            pre_tokenizer: PreTokenizer::Whole,
            prefix_space: false,
            whole_pieces: None,
        }));
        let special = vec![(END_OF_TEXT.into(), 256)];
        Tokenizer { vocab: 257, special, eod: Some(256), rules }
    }

    /// Ids are below this.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether gptrain's own code encodes; Hugging Face's is ten times slower.
    pub fn is_fast(&self) -> bool {
        matches!(self.rules, Rules::Bpe(_))
    }

    /// Whether text may be cut between two lines that end and start with a plain letter or digit,
    /// and encoded in parts, with the same ids.
    pub fn cuts_at_lines(&self) -> bool {
        match &self.rules {
            Rules::Bpe(bpe) => bpe.pre_tokenizer != PreTokenizer::Whole || bpe.merges.is_empty(),
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(_) => false,
        }
    }

    /// Token that ends a document.
    pub fn eod(&self) -> Option<u32> {
        self.eod
    }

    /// Id of a special token by its content.
    pub fn special(&self, content: &str) -> Option<u32> {
        self.special.iter().find(|(name, _)| name == content).map(|(_, id)| *id)
    }

    /// Special tokens, content and id.
    pub fn specials(&self) -> &[(String, u32)] {
        &self.special
    }

    /// Ids of a text. Special tokens spelled out in it are ordinary text. Empty if a Hugging
    /// Face tokenizer cannot encode the text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        Encoder::small(self).encode(text, &mut ids).ok();
        ids
    }

    /// Text of some ids; bytes that are not UTF-8 become U+FFFD, as do unused ids.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.rules {
            Rules::Bpe(_) => String::from_utf8_lossy(&self.decode_bytes(ids)).into_owned(),
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => hf.decode(ids),
        }
    }

    /// Exact bytes of ids (of a Hugging Face tokenizer: those of the decoded text).
    pub fn decode_bytes(&self, ids: &[u32]) -> Vec<u8> {
        let bpe = match &self.rules {
            Rules::Bpe(bpe) => bpe,
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => return hf.decode(ids).into_bytes(),
        };
        let mut bytes = Vec::new();
        for id in ids {
            match bpe.bytes.get(*id as usize) {
                Some(Some(some)) => bytes.extend_from_slice(some),
                _ => bytes.extend_from_slice("\u{fffd}".as_bytes()),
            }
        }
        bytes
    }
}

/// Name of the tokenizer that needs no file.
pub const BYTES: &str = "bytes";

/// GPT-2's name for the end of a document.
const END_OF_TEXT: &str = "<|endoftext|>";
