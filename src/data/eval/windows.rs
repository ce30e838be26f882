//! Stream of tokens in windows without overlap: window k predicts tokens k·S+1 to (k+1)·S, each
//! from the previous tokens of the window. Every token except the first is scored once. The last
//! window may be shorter.

use super::{Samples, write_sequence};
use crate::batch::Sample;
use crate::indexed::{Indexed, index_path};
use crate::tokenizer::{Encoder, Tokenizer};
use anyhow::{Context, Result};
use base::json::BYTE_ORDER_MARK;
use base::{Count, Problems, input};
use std::path::Path;

/// Stream of tokens.
pub enum Tokens {
    /// Tokens of a text, with its length in bytes.
    Text { ids: Vec<u32>, bytes: u64 },
    /// Tokens of a dataset, document after document.
    Dataset(Indexed),
}

/// Endings of files that are not plain text.
const BINARY_ENDINGS: [&str; 6] = ["json", "jsonl", "gz", "zst", "parquet", "safetensors"];

impl Tokens {
    /// Opens the dataset PREFIX.bin and PREFIX.idx, or tokenizes a file of UTF-8 text.
    pub fn open(path: &Path, tokenizer: Option<&Tokenizer>) -> Result<Tokens> {
        let place = || path.display().to_string();
        let refuse = |what: &str, remedy: String| Err(Problems::one(place(), what, remedy).into());
        if !path.is_file() {
            if index_path(path).exists() {
                return Ok(Tokens::Dataset(Indexed::open(path)?));
            }
            let remedy = "give a file of text, or PREFIX of PREFIX.bin and PREFIX.idx";
            return refuse("there is no such file or dataset", remedy.into());
        }
        let ending = path
            .extension()
            .and_then(|ending| ending.to_str())
            .unwrap_or_default();
        if matches!(ending, "bin" | "idx") {
            return refuse(
                "this is one of a dataset's two files",
                format!("write {}", path.with_extension("").display()),
            );
        }
        if BINARY_ENDINGS.contains(&ending) {
            let remedy = "make a dataset of it: gptrain data build".to_string();
            return refuse(&format!("a .{ending} file is not plain text"), remedy);
        }
        let Some(tokenizer) = tokenizer else {
            let remedy = "pass --tokenizer tokenizer.json".to_string();
            return refuse("the model names no tokenizer for text", remedy);
        };
        let file = input::read_named(path, input::LARGE)
            .with_context(|| format!("cannot read {}", place()))?;
        let bytes = file.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&file);
        let text = str::from_utf8(bytes).map_err(|error| {
            let line = 1 + bytes[..error.valid_up_to()]
                .iter()
                .filter(|b| **b == b'\n')
                .count();
            let at = format!("{}:{line}", place());
            Problems::one(at, "not UTF-8 text from here on", "save the file as UTF-8")
        })?;
        let mut ids = Vec::new();
        Encoder::new(tokenizer).encode(text, &mut ids)?;
        Ok(Tokens::Text { ids, bytes: bytes.len() as u64 })
    }

    /// Number of tokens.
    pub fn count(&self) -> u64 {
        match self {
            Tokens::Text { ids, .. } => ids.len() as u64,
            Tokens::Dataset(dataset) => dataset.tokens(),
        }
    }

    fn read(&self, first: u64, out: &mut [i32]) -> Result<()> {
        match self {
            Tokens::Dataset(dataset) => dataset.read_across(first, out),
            Tokens::Text { ids, .. } => {
                let ids = &ids[first as usize..first as usize + out.len()];
                out.iter_mut()
                    .zip(ids)
                    .for_each(|(to, id)| *to = *id as i32);
                Ok(())
            }
        }
    }
}

/// Windows of a stream, one sample each.
pub struct Windows {
    pub tokens: Tokens,
    place: String,
    seq_len: usize,
    vocab: usize,
    /// Maximum number of windows; None for all.
    limit: Option<u64>,
    /// Whether to keep the loss of every token; otherwise only their sum.
    pub keeps_tokens: bool,
}

impl Windows {
    /// Creates windows of `seq_len` tokens of the stream in `path`, for a model of `vocab` ids.
    pub fn new(
        path: &Path,
        tokens: Tokens,
        seq_len: usize,
        vocab: usize,
        limit: Option<u64>,
        keeps_tokens: bool,
    ) -> Result<Windows> {
        let place = path.display().to_string();
        if tokens.count() < 2 {
            return Err(Problems::one(
                place,
                format!("holds {} tokens; a score needs two", tokens.count()),
                "give a longer text",
            )
            .into());
        }
        Ok(Windows { tokens, place, seq_len, vocab, limit, keeps_tokens })
    }

    /// Number of scored tokens.
    pub fn scored_tokens(&self) -> u64 {
        let most = self
            .limit
            .map_or(u64::MAX, |limit| limit.saturating_mul(self.seq_len as u64));
        most.min(self.tokens.count() - 1)
    }

    /// Whether the limit leaves out a part of the stream.
    pub fn is_cut(&self) -> bool {
        self.scored_tokens() < self.tokens.count() - 1
    }

    /// Number of targets of a window.
    fn targets(&self, number: u64) -> usize {
        (self.scored_tokens() - number * self.seq_len as u64).min(self.seq_len as u64) as usize
    }
}

impl Samples for Windows {
    fn count(&self) -> u64 {
        self.scored_tokens().div_ceil(self.seq_len as u64)
    }

    fn fill(&self, number: u64, sample: &mut Sample<'_>) -> Result<()> {
        let targets = self.targets(number);
        let mut tokens = vec![0; targets + 1];
        self.tokens
            .read(number * self.seq_len as u64, &mut tokens)?;
        let is_id = |id: i32| id >= 0 && (id as usize) < self.vocab;
        if let Some(id) = tokens.iter().find(|id| !is_id(**id)) {
            let vocab = Count(self.vocab as u64);
            return Err(Problems::one(
                self.place.as_str(),
                format!("holds token id {id}; the model's vocabulary has {vocab} ids"),
                "use the model's own tokenizer",
            )
            .into());
        }
        write_sequence(sample, 0, tokens.into_iter(), targets);
        sample.clear_from(targets);
        Ok(())
    }

    fn values(&self, number: u64, losses: &[f32]) -> Vec<f64> {
        let losses = losses[..self.targets(number)]
            .iter()
            .map(|loss| f64::from(*loss));
        if self.keeps_tokens { losses.collect() } else { vec![losses.sum()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::BYTES;

    /// As `data build` reads it.
    #[test]
    fn a_byte_order_mark_is_not_scored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "\u{feff}ab").unwrap();
        let tokenizer = Tokenizer::load(Path::new(BYTES)).unwrap();
        let Tokens::Text { ids, bytes } = Tokens::open(&path, Some(&tokenizer)).unwrap() else {
            panic!("a text is not a dataset");
        };
        assert_eq!((ids, bytes), (vec![97, 98], 2));
    }
}
