//! `data check`: reads every byte of datasets.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use base::progress::{Progress, Unit};
use base::{Count, Problems};
use data::indexed::digest::whole_digest;
use data::indexed::{Indexed, TokenType, index_path, tokens_path};

/// Contents of an undamaged dataset.
pub struct CheckedDataset {
    dataset: String,
    documents: u64,
    tokens: u64,
    dtype: TokenType,
    highest_id: u64,
    vocab: Option<usize>,
    /// Digest of each file; empty without `--digest`.
    digests: Vec<(PathBuf, u64)>,
}

impl CheckedDataset {
    pub fn say(&self) {
        let against = match self.vocab {
            Some(vocab) => format!("all below the vocabulary's {}", Count(vocab as u64)),
            None => "no vocabulary to compare with: give --vocab or --tokenizer".into(),
        };
        base::say!(
            "{}: sound. {}, {} of {}, the highest id is {}, {against}",
            self.dataset,
            Count(self.documents).with_noun("document"),
            Count(self.tokens).with_noun("token"),
            self.dtype,
            Count(self.highest_id)
        );
        for (path, digest) in &self.digests {
            base::say!("{}  {digest:016x}", path.display());
        }
    }

    pub fn object(&self) -> Value {
        let digests: serde_json::Map<String, Value> = self
            .digests
            .iter()
            .map(|(path, digest)| (path.display().to_string(), format!("{digest:016x}").into()))
            .collect();
        json!({
            "dataset": self.dataset, "documents": self.documents, "tokens": self.tokens,
            "dtype": self.dtype.to_string(), "highest_id": self.highest_id, "vocab": self.vocab,
            "digests": digests,
        })
    }
}

/// Reads a dataset. Compares its ids with `vocab`, or with the vocabulary of its tokenizer.
pub fn check(
    prefix: &Path,
    vocab: Option<usize>,
    tokenizer: Option<&Path>,
    digest: bool,
) -> Result<CheckedDataset> {
    let dataset = Indexed::open(prefix)?;
    let found = super::dataset::tokenizer(tokenizer, &dataset)?;
    let vocab = match (vocab, &found.record) {
        (Some(vocab), _) => Some(vocab),
        (None, Some(record)) => Some(record.vocab),
        (None, None) => found.load()?.map(|tokenizer| tokenizer.vocab()),
    };
    let size = dataset.token_type().size() as u64;
    let progress = Progress::new("checking", dataset.tokens() * size, Unit::Bytes);
    let highest = dataset.highest(|tokens| {
        progress.show(tokens * size, || format!("{} tokens", Count(tokens)));
    })?;
    progress.finish();
    let place = prefix.display().to_string();
    let Some((id, sequence)) = highest else {
        return Err(Problems::one(
            place,
            "holds no tokens: it cannot be used for training",
            "build it again",
        )
        .into());
    };
    if let Some(vocab) = vocab.filter(|vocab| id >= *vocab as u64) {
        return Err(Problems::one(
            place,
            format!("sequence {sequence} holds id {id}; the vocabulary has {vocab} ids"),
            "it was built with another tokenizer, or is damaged",
        )
        .into());
    }
    let mut digests = Vec::new();
    for path in [index_path(prefix), tokens_path(prefix)]
        .into_iter()
        .filter(|_| digest)
    {
        let total = path.metadata().map_or(0, |about| about.len());
        let progress = Progress::new("hashing", total, Unit::Bytes);
        let digest = whole_digest(&path, |bytes| progress.add(bytes));
        let (_, digest) = digest.with_context(|| format!("cannot read {}", path.display()))?;
        digests.push((path, digest));
    }
    Ok(CheckedDataset {
        dataset: place,
        documents: dataset.documents() as u64,
        tokens: dataset.tokens(),
        dtype: dataset.token_type(),
        highest_id: id,
        vocab,
        digests,
    })
}
