//! `gptrain data merge`: joins datasets into one.

use super::dataset::prefix;
use crate::options::{Json, Overwrite};
use anyhow::Result;
use base::Count;
use data::Record;
use data::indexed::Indexed;
use serde::Serialize;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub struct Merge {
    /// Datasets to join, in this order (PREFIX of .bin and .idx)
    #[arg(required = true, num_args = 2.., value_name = "PREFIX")]
    datasets: Vec<PathBuf>,
    /// Write PREFIX.bin and PREFIX.idx
    #[arg(short, long, value_name = "PREFIX")]
    output: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    #[command(flatten)]
    json: Json,
}

impl Merge {
    pub fn run(self) -> Result<()> {
        let merged = self.merge()?;
        self.json.say(|| merged.say(), &merged);
        Ok(())
    }

    /// Joins datasets into one.
    fn merge(&self) -> Result<MergedDataset> {
        let datasets = self
            .datasets
            .iter()
            .map(|named| Indexed::open(&prefix(named)))
            .collect::<Result<Vec<_>>>()?;
        let tokenizer = data::build::merge(&datasets, &self.output, self.overwrite.existing())?;
        Ok(MergedDataset {
            dataset: self.output.clone(),
            documents: datasets
                .iter()
                .map(|dataset| dataset.documents() as u64)
                .sum(),
            tokens: datasets.iter().map(Indexed::tokens).sum(),
            tokenizer,
        })
    }
}

/// Dataset that was joined from others.
#[derive(Serialize)]
pub struct MergedDataset {
    dataset: PathBuf,
    documents: u64,
    tokens: u64,
    /// Record of the tokenizer; None if some of the datasets have none.
    tokenizer: Option<Record>,
}

impl MergedDataset {
    pub fn say(&self) {
        let documents = Count(self.documents);
        let tokens = Count(self.tokens);
        let place = self.dataset.display();
        base::say!("{place}: {}, {}", documents.with_noun("document"), tokens.with_noun("token"));
        if self.tokenizer.is_none() {
            base::say!("wrote no tokenizer record: some of these datasets have none");
        }
    }
}
