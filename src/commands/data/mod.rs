//! `gptrain data …`: builds, merges and inspects datasets.

use anyhow::Result;
use clap::Subcommand;

mod check;
mod check_options;
pub mod dataset;
mod inspect;
mod inspect_options;
pub mod make;
mod make_options;
mod samples;
mod samples_options;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tokenize text into a dataset (PREFIX.bin and PREFIX.idx)
    Build(make_options::BuildArgs),
    /// Learn a tokenizer.json from text: byte-level BPE
    TrainTokenizer(make_options::TrainArgs),
    /// Show what a dataset holds: documents, tokens, lengths, text
    Inspect(inspect_options::Args),
    /// Read every byte of datasets and report damage
    Check(check_options::Args),
    /// Join datasets into one
    Merge(make_options::MergeArgs),
    /// Print training samples in the order that a run reads them
    Samples(samples_options::Args),
}

impl Command {
    pub fn prints_json(&self) -> bool {
        match self {
            Command::Build(args) => args.json.json,
            Command::TrainTokenizer(args) => args.json.json,
            Command::Inspect(args) => args.json.json,
            Command::Check(args) => args.json.json,
            Command::Merge(args) => args.json.json,
            Command::Samples(args) => args.json,
        }
    }
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Build(args) => make_options::build(args),
        Command::TrainTokenizer(args) => make_options::train_tokenizer(args),
        Command::Inspect(args) => inspect_options::run(args),
        Command::Check(args) => check_options::run(args),
        Command::Merge(args) => make_options::merge(args),
        Command::Samples(args) => samples_options::run(args),
    }
}

/// Result of printing; a closed pipe (`| head`) is not an error.
fn until_closed(printed: Result<()>) -> Result<()> {
    printed.or_else(|error| {
        let io = error.downcast_ref::<std::io::Error>();
        let closed = io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
        if closed { Ok(()) } else { Err(error) }
    })
}
