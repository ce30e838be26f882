//! `gptrain export`: writes a checkpoint for Hugging Face's library.

use base::{Bytes, DType};
use checkpoint::{self, hf};
use serde_json::json;
use std::path::PathBuf;

/// Write a checkpoint as a Hugging Face folder
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Checkpoint, or run folder (its newest checkpoint)
    checkpoint: PathBuf,
    /// Folder to write: config.json, safetensors, tokenizer and generation settings
    #[arg(short, long, visible_alias = "hf", value_name = "DIR")]
    output: PathBuf,
    /// Type of the written weights [default: that in which the run computes]; f32 writes the master
    /// weights
    #[arg(long, value_enum)]
    dtype: Option<Choice>,
    /// Largest size of a weights file; larger weights are split into several
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    shard_size: Bytes,
    /// File tokenizer.json, if the run's own is missing
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    overwrite: super::Overwrite,
    #[command(flatten)]
    pub json: super::Json,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Choice {
    #[value(alias = "fp32")]
    F32,
    Bf16,
    #[value(alias = "fp16")]
    F16,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let dtype = args.dtype.map(|choice| match choice {
        Choice::F32 => DType::F32,
        Choice::Bf16 => DType::BF16,
        Choice::F16 => DType::F16,
    });
    let from = checkpoint::find(&args.checkpoint)?;
    let (tokenizer, existing) = (args.tokenizer, args.overwrite.existing());
    let options = hf::Options { dtype, shard: args.shard_size, tokenizer, existing };
    let done = hf::export(&from, &args.output, options)?;
    let (folder, family) = (args.output.display(), done.family.name());
    let dtype = checkpoint::precision(done.dtype);
    let files = if done.files == 1 { "one file".into() } else { format!("{} files", done.files) };
    let bytes = done.bytes;
    let lines = || {
        let from = from.display();
        base::say!("wrote {bytes} of {family} in {dtype}, {files}, to {folder}, from {from}");
        if !done.tokenizer {
            base::say!(
                "without a tokenizer: the run's manifest names none, or its file no longer exists"
            );
        }
    };
    let object = json!({
        "folder": args.output, "from": from, "family": family, "dtype": dtype,
        "files": done.files, "bytes": bytes.0, "tokenizer": done.tokenizer,
    });
    args.json.say(lines, object);
    Ok(())
}
