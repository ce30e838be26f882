//! `gptrain data …`: builds, merges and inspects datasets.

mod build;
mod check;
pub mod dataset;
mod inspect;
mod merge;
mod samples;
mod text;
mod train_tokenizer;

pub use build::Build;
pub use train_tokenizer::TrainTokenizer;

use anyhow::Result;
use check::Check;
use clap::Subcommand;
use inspect::Inspect;
use merge::Merge;
use samples::Samples;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tokenize text into a dataset (PREFIX.bin and PREFIX.idx)
    Build(Build),
    /// Learn a tokenizer.json from text: byte-level BPE
    TrainTokenizer(TrainTokenizer),
    /// Show what a dataset holds: documents, tokens, lengths, text
    Inspect(Inspect),
    /// Read every byte of datasets and report damage
    Check(Check),
    /// Join datasets into one
    Merge(Merge),
    /// Print training samples in the order that a run reads them
    Samples(Samples),
}

impl Command {
    pub fn run(self) -> Result<()> {
        match self {
            Command::Build(build) => build.run(),
            Command::TrainTokenizer(train) => train.run(),
            Command::Inspect(inspect) => inspect.run(),
            Command::Check(check) => check.run(),
            Command::Merge(merge) => merge.run(),
            Command::Samples(samples) => samples.run(),
        }
    }
}
