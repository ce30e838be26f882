//! `data check`: reads every byte of datasets.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use super::check::{CheckedDataset, check};
use super::dataset::prefix;
use base::{Problems, number};

use crate::options::Json;

#[derive(clap::Args, Debug)]
pub struct Args {
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
    pub json: Json,
}

pub fn run(args: Args) -> Result<()> {
    let mut problems = Problems::default();
    let mut sound = Vec::new();
    for named in &args.datasets {
        let prefix = prefix(named);
        let tokenizer = args.tokenizer.as_deref();
        let found = problems.collect(check(&prefix, args.vocab, tokenizer, args.digest))?;
        if let Some(found) = &found {
            args.json.lines(|| found.say());
        }
        sound.extend(found);
    }
    let sound: Vec<Value> = sound.iter().map(CheckedDataset::object).collect();
    args.json
        .object(json!({ "sound": sound, "mistakes": problems.list }));
    problems.or(()).map_err(Into::into)
}
