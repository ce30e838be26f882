//! `gptrain sample`

mod generate;

use base::number;
use clap::builder::NonEmptyStringValueParser;
use generate::{SampleOptions, Sampling};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// Run folder (its newest checkpoint), checkpoint, Hugging Face folder, or s3://BUCKET/PREFIX
    checkpoint: PathBuf,
    /// Text to continue
    #[arg(long, default_value = "")]
    prompt: String,
    /// Tokens to generate
    #[arg(long, default_value_t = 120, value_parser = number::whole::<usize>)]
    tokens: usize,
    /// Texts to generate
    #[arg(long, default_value_t = 1, value_parser = number::whole::<usize>)]
    samples: usize,
    /// End a text before this string; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Temperature: 0 always takes the likeliest token; 1 samples from the model's distribution
    #[arg(long, default_value_t = 0.8, value_parser = number::real)]
    temperature: f64,
    /// Choose among this many likeliest tokens (top-k); 0 means all
    #[arg(long, default_value_t = 40, value_parser = number::whole::<usize>)]
    top_k: usize,
    /// Choose among the fewest likeliest tokens whose probabilities add up to this (top-p); 1 means all
    #[arg(long, default_value_t = 1.0, value_parser = number::real)]
    top_p: f64,
    #[arg(long, default_value_t = 1, value_parser = number::whole::<u64>)]
    seed: u64,
    /// Tokenizer to use instead of the manifest's: tokenizer.json, a folder with it, or `bytes`
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// Print one JSON line for each text
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { temperature, top_k, top_p, .. } = args;
    generate::generate(&SampleOptions {
        checkpoint: args.checkpoint,
        prompt: args.prompt,
        tokens: args.tokens,
        samples: args.samples,
        stop: args.stop,
        sampling: Sampling { temperature, top_k, top_p },
        seed: args.seed,
        tokenizer: args.tokenizer,
        json: args.json,
    })
}
