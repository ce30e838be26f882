//! `gptrain sample`

use std::path::PathBuf;
use train::generate::{self, Options};

#[derive(clap::Args)]
pub struct Args {
    /// A run's folder (its newest checkpoint) or one checkpoint
    checkpoint: PathBuf,
    /// Text to continue
    #[arg(long, default_value = "")]
    prompt: String,
    /// Tokens to generate
    #[arg(long, default_value_t = 120)]
    tokens: usize,
    /// 0 takes the likeliest token each time; 1 samples as the model says
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Choose among this many likeliest tokens; 0 is all
    #[arg(long, default_value_t = 40)]
    top_k: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A tokenizer.json, if not the manifest's
    #[arg(long)]
    tokenizer: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    generate::generate(&Options {
        checkpoint: args.checkpoint,
        prompt: args.prompt,
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
        tokenizer: args.tokenizer,
    })
}
