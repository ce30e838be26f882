//! Text to token ids and back: byte-level byte-pair encoding (GPT-2, BLOOM), read from a Hugging
//! Face `tokenizer.json`, and trained here. A file with a field that is not implemented here
//! (`byte_level` lists them) goes through Hugging Face's crate.
//!
//! Added tokens are found first (`added`). The remaining text is cut into pieces (`pre_tokenizer`), and
//! the bytes of each piece are merged pair by pair in the order the merges were learned (`merges`).
//! Most pieces have been seen before: an `Encoder` remembers them.
//!
//! Independent of datasets and files of text.

// A build without Hugging Face's crate has one kind of rules.
#![cfg_attr(not(feature = "tokenizers"), allow(clippy::infallible_destructuring_match))]

mod added;
#[cfg(all(test, feature = "tokenizers"))]
mod against_crate;
mod byte_alphabet;
mod byte_level;
mod digest;
mod encoder;
mod end_of_document;
mod files;
#[cfg(feature = "tokenizers")]
mod hugging_face;
mod json;
mod merges;
mod pair;
mod pre_tokenizer;
mod train;

pub use digest::digest;
pub use encoder::Encoder;
pub use files::{MERGES, NamedFile, TOKENIZER, VOCAB, files, settings, settings_folder};
pub use train::{Trainer, Training};

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;

use added::{AddedToken, AddedTokens};
use byte_alphabet::ByteDecoder;
#[cfg(feature = "tokenizers")]
use hugging_face::HfTokenizer;
use merges::Merges;
use pre_tokenizer::PreTokenizer;

/// Vocabulary with its rules. Immutable; threads share it and have an `Encoder` each.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Ids are below this.
    vocab: usize,
    /// Added tokens, such as `<|endoftext|>`, by content.
    added_tokens: Vec<(String, u32)>,
    eod: Option<u32>,
    rules: Rules,
    /// Notes for the user on how the file is read.
    notes: Vec<String>,
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
    added: AddedTokens,
}

impl Tokenizer {
    /// Tokenizer that a user or a file names: `bytes`, a Hugging Face `tokenizer.json` of any name, GPT-2's
    /// vocab.json with merges.txt, or a folder that holds them. Mistakes in the files are `Problems`.
    pub fn load(path: &Path) -> Result<Tokenizer> {
        if path == Path::new(BYTES) { Ok(Tokenizer::byte_level()) } else { json::load(path) }
    }

    /// Tokenizer whose tokens are the bytes; 256 ends a document.
    pub fn byte_level() -> Tokenizer {
        let mut bytes: Vec<_> = (0..=255).map(|byte| Some([byte].into())).collect();
        bytes.push(Some(END_OF_TEXT.as_bytes().into()));
        let rules = Rules::Bpe(Box::new(Bpe {
            bytes,
            byte_ids: std::array::from_fn(|byte| byte as u32),
            merges: Merges::new(&[]),
            pre_tokenizer: PreTokenizer::Whole,
            prefix_space: false,
            whole_pieces: None,
            added: AddedTokens::new(vec![AddedToken::special(256, END_OF_TEXT)])
                .unwrap_or_default(),
        }));
        let added_tokens = vec![(END_OF_TEXT.into(), 256)];
        Tokenizer { vocab: 257, added_tokens, eod: Some(256), rules, notes: Vec::new() }
    }

    /// Ids are below this.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether gptrain's own code encodes; Hugging Face's is ten times slower.
    pub fn is_fast(&self) -> bool {
        matches!(self.rules, Rules::Bpe(_))
    }

    /// Name of the code that encodes, and the reason if it is Hugging Face's.
    pub fn encoder(&self) -> String {
        self.unsupported_field()
            .map_or("gptrain".into(), |why| format!("Hugging Face's tokenizers, as its {why}"))
    }

    /// Field of the file that only Hugging Face's crate supports.
    fn unsupported_field(&self) -> Option<&str> {
        match &self.rules {
            Rules::Bpe(_) => None,
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => Some(&hf.why),
        }
    }

    /// Notes for the user on how the file is read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Tokens that the file's template puts before each text.
    pub fn head(&self) -> &[u32] {
        match &self.rules {
            Rules::Bpe(_) => &[],
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => &hf.head,
        }
    }

    /// Tokens that the file's template puts after each text.
    pub fn tail(&self) -> &[u32] {
        match &self.rules {
            Rules::Bpe(_) => &[],
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => &hf.tail,
        }
    }

    /// Whether text may be cut between two lines that end and start with a plain letter or digit,
    /// and encoded in parts, with the same ids.
    pub fn cuts_at_lines(&self) -> bool {
        match &self.rules {
            Rules::Bpe(bpe) => {
                let pieces = bpe.pre_tokenizer != PreTokenizer::Whole || bpe.merges.is_empty();
                pieces && bpe.added.cuts_at_lines()
            }
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(_) => false,
        }
    }

    /// Token that ends a document.
    pub fn eod(&self) -> Option<u32> {
        self.eod
    }

    /// Id of an added token by its content.
    pub fn added_token(&self, content: &str) -> Option<u32> {
        self.added_tokens
            .iter()
            .find(|(name, _)| name == content)
            .map(|(_, id)| *id)
    }

    /// Id of any token: by its content if it is an added one, else by its spelling in the file or by
    /// its text.
    pub fn token(&self, name: &str) -> Option<u32> {
        self.added_token(name).or_else(|| match &self.rules {
            Rules::Bpe(bpe) => {
                let find = |text: &[u8]| bpe.bytes.iter().position(|b| b.as_deref() == Some(text));
                let by_spelling = match ByteDecoder::new().decode(name) {
                    Ok(bytes) => find(&bytes),
                    Err(_) => None,
                };
                by_spelling
                    .or_else(|| find(name.as_bytes()))
                    .map(|id| id as u32)
            }
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => hf.token(name),
        })
    }

    /// Spelling of a token for a message.
    pub fn name(&self, id: u32) -> String {
        let added = self.added_tokens.iter().find(|(_, other)| *other == id);
        added.map_or_else(|| self.decode(&[id]), |(name, _)| name.clone())
    }

    /// Added tokens, content and id.
    pub fn added_tokens(&self) -> &[(String, u32)] {
        &self.added_tokens
    }

    /// Ids of a document. Special tokens spelled out in it are ordinary text. Empty if a Hugging
    /// Face tokenizer cannot encode the text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        Encoder::small(self).encode(text, &mut ids).ok();
        ids
    }

    /// Ids of a text that is to be continued: with the tokens that the template puts before it, without
    /// those that it puts after it.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.head().to_vec();
        Encoder::small(self).encode_text(text, &mut ids)?;
        Ok(ids)
    }

    /// Text of some ids; bytes that are not UTF-8 become U+FFFD, as do unused ids.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.rules {
            Rules::Bpe(_) => String::from_utf8_lossy(&self.decode_bytes(ids)).into_owned(),
            #[cfg(feature = "tokenizers")]
            Rules::HuggingFace(hf) => hf.decode(ids),
        }
    }

    /// Exact bytes of ids (with a Hugging Face tokenizer, the bytes of the decoded text).
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
