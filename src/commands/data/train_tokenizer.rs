//! `gptrain data train-tokenizer`: learns a tokenizer.json from text.

use super::text::Text;
use crate::options::{Json, Overwrite};
use anyhow::{Context, Result};
use base::output::Output;
use base::progress::{Progress, Unit};
use base::{Bytes, Count, Seconds, number};
use data::build::{Train, Trained};
use data::tokenizer::Training;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub struct TrainTokenizer {
    #[command(flatten)]
    text: Text,
    /// File tokenizer.json to write
    #[arg(short, long)]
    output: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Number of ids: special tokens, 256 bytes, and one per merge
    #[arg(long, value_parser = number::whole::<usize>)]
    vocab: usize,
    /// Number of occurrences below which a pair does not become a token
    #[arg(long, default_value_t = 2, value_parser = number::whole::<u64>)]
    min_frequency: u64,
    /// Special tokens; the first one ends documents
    #[arg(long, value_name = "TOKEN", default_value = "<|endoftext|>")]
    special: Vec<String>,
    #[command(flatten)]
    json: Json,
}

impl TrainTokenizer {
    pub fn run(self) -> Result<()> {
        let learned = self.train()?;
        self.json.say(|| learned.say(), &learned);
        Ok(())
    }

    /// Learns a tokenizer and writes it.
    pub fn train(&self) -> Result<LearnedTokenizer> {
        let mut file = Output::create(&self.output, self.overwrite.existing())?;
        let inputs = self.text.find_files()?;
        let total = inputs.iter().map(|input| input.size).sum();
        let Self { vocab, min_frequency, .. } = *self;
        let special = self.special.clone();
        let training = Training { vocab, min_frequency, special };
        let train = Train {
            inputs: &inputs,
            rules: self.text.rules(),
            training,
            threads: self.text.threads(),
        };
        let progress = Progress::new("counting", total, Unit::Bytes);
        let mut learning = None;
        let trained = train.run(
            |report| progress.show(report.read, || format!("{} read", Bytes(report.text))),
            |ids| {
                learning
                    .get_or_insert_with(|| {
                        Progress::new("learning", vocab as u64, Unit::Items("ids"))
                    })
                    .show(ids as u64, String::new);
            },
        )?;
        drop(learning);
        let seconds = progress.finish();
        file.write_all(trained.json.as_bytes())
            .with_context(|| format!("cannot write {}", self.output.display()))?;
        file.finish()?;
        let Trained { vocab: learned, text: text_bytes, pieces, .. } = trained;
        Ok(LearnedTokenizer {
            tokenizer: self.output.clone(),
            vocab: learned,
            text_bytes,
            pieces,
            seconds: seconds.0,
            exhausted_at: (learned < vocab).then_some(min_frequency),
        })
    }
}

/// Tokenizer that was learned.
#[derive(Serialize)]
pub struct LearnedTokenizer {
    tokenizer: PathBuf,
    vocab: usize,
    text_bytes: u64,
    pieces: usize,
    seconds: f64,
    /// Minimum number of occurrences of a pair, if the text had too few pairs.
    #[serde(skip)]
    exhausted_at: Option<u64>,
}

impl LearnedTokenizer {
    pub fn say(&self) {
        base::say!(
            "{}: {} ids learned from {} ({} different pieces) in {}",
            self.tokenizer.display(),
            Count(self.vocab as u64),
            Bytes(self.text_bytes),
            Count(self.pieces as u64),
            Seconds(self.seconds),
        );
        if let Some(times) = self.exhausted_at {
            base::say!("the text has no more pairs that occur {times} times");
        }
    }
}
