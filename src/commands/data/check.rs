//! `gptrain data check`: reads every byte of datasets.

use super::dataset::{find_tokenizer, prefix};
use crate::options::Json;
use anyhow::{Context, Result};
use base::progress::{Progress, Unit};
use base::{Count, Problems, number};
use data::indexed::digest::whole_digest;
use data::indexed::{Indexed, TokenType, index_path, tokens_path};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub struct Check {
    /// PREFIX of each dataset's .bin and .idx
    #[arg(required = true, value_name = "PREFIX")]
    datasets: Vec<PathBuf>,
    /// Limit that every id must be below [default: the tokenizer's vocabulary]
    #[arg(long, value_parser = number::whole::<usize>)]
    vocab: Option<usize>,
    /// Tokenizer of the dataset, which is compared with its record [default: the recorded one, else
    /// tokenizer.json beside the dataset]
    #[arg(short, long)]
    tokenizer: Option<PathBuf>,
    /// Also print the digest of each file's bytes (XXH3), to compare copies
    #[arg(long)]
    digest: bool,
    #[command(flatten)]
    json: Json,
}

impl Check {
    pub fn run(self) -> Result<()> {
        let mut problems = Problems::default();
        let mut sound = Vec::new();
        for named in &self.datasets {
            let prefix = prefix(named);
            let found = problems.collect(self.check(&prefix))?;
            if let Some(found) = &found {
                self.json.lines(|| found.say());
            }
            sound.extend(found);
        }
        let sound: Vec<Value> = sound.iter().map(CheckedDataset::object).collect();
        self.json
            .object(json!({ "sound": sound, "mistakes": problems.list }));
        problems.or(()).map_err(Into::into)
    }

    /// Reads a dataset. Compares its ids with --vocab, or with the vocabulary of its tokenizer.
    fn check(&self, prefix: &Path) -> Result<CheckedDataset> {
        let dataset = Indexed::open(prefix)?;
        let found = find_tokenizer(self.tokenizer.as_deref(), &dataset)?;
        let vocab = match (self.vocab, &found.record) {
            (Some(vocab), _) => Some(vocab),
            (None, Some(record)) => Some(record.vocab),
            (None, None) => found.load()?.map(|tokenizer| tokenizer.vocab()),
        };
        let size = dataset.token_type().size() as u64;
        let progress = Progress::new("checking", dataset.tokens() * size, Unit::Bytes);
        let highest = dataset.find_highest_id(|tokens| {
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
            .filter(|_| self.digest)
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
}

/// Contents of an undamaged dataset.
struct CheckedDataset {
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
    fn say(&self) {
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

    fn object(&self) -> Value {
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
