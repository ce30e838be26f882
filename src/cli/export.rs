//! `gptrain export`: a checkpoint for Hugging Face's library.

use super::inspect::find;
use crate::base::DType;
use crate::checkpoint::hf;
use std::path::PathBuf;

/// Write a checkpoint as a Hugging Face folder (GPT-2 or BLOOM)
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A checkpoint, or a run's folder: its newest
    checkpoint: PathBuf,
    /// The folder to write: config.json, model.safetensors, tokenizer.json
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// What the weights are written as
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Choice,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Choice {
    F32,
    Bf16,
    F16,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let dtype = match args.dtype {
        Choice::F32 => DType::F32,
        Choice::Bf16 => DType::BF16,
        Choice::F16 => DType::F16,
    };
    let from = find(&args.checkpoint)?;
    let done = hf::export(&from, &args.hf, dtype)?;
    let (folder, family) = (args.hf.display(), done.family.name());
    println!("wrote {} of {family} to {folder}, from {}", done.bytes, from.display());
    if !done.tokenizer {
        println!("without a tokenizer: the run's manifest names none, or it is not there any more");
    }
    Ok(())
}
