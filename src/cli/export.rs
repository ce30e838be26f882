//! `gptrain export`: a checkpoint for Hugging Face's library, or for Megatron-LM.

use base::{Bytes, DType};
use checkpoint::{self, foreign, hf};
use serde_json::json;
use std::path::PathBuf;

/// Write a checkpoint as a Hugging Face folder, or as Megatron-LM's
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// A checkpoint, or a run's folder: its newest
    checkpoint: PathBuf,
    /// The folder to write: config.json, safetensors, tokenizer and generation settings; with --to
    /// megatron iter_N/mp_rank_TT_PPP
    #[arg(short, long, visible_alias = "hf", value_name = "DIR")]
    output: PathBuf,
    /// Megatron-LM's layout (--ckpt-format torch), with the optimizer's states
    #[arg(long, value_enum, conflicts_with_all = ["dtype", "tokenizer"])]
    to: Option<Target>,
    /// Tensor ranks of --to megatron
    #[arg(long, value_name = "RANKS", default_value_t = 1, requires = "to")]
    tensor: usize,
    /// Pipeline stages of --to megatron
    #[arg(long, value_name = "STAGES", default_value_t = 1, requires = "to")]
    pipeline: usize,
    /// What the weights are written as [default: what the run computes with]; f32 is the master
    /// weights
    #[arg(long, value_enum)]
    dtype: Option<Choice>,
    /// Size from which on the weights are several files
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    shard_size: Bytes,
    /// A tokenizer.json, if the run's own is not there
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

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Target {
    Megatron,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if let Some(Target::Megatron) = args.to {
        return to_megatron(args);
    }
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
                "without a tokenizer: the run's manifest names none, or it is not there any more"
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

fn to_megatron(args: Args) -> anyhow::Result<()> {
    let from = checkpoint::find(&args.checkpoint)?;
    let grid = [args.tensor, args.pipeline];
    let done = foreign::export(&from, &args.output, grid, args.overwrite.existing())?;
    let foreign::Written { step, files, bytes, states, padding, notes } = &done;
    let lines = || {
        let what = if *states { "weights and AdamW's states" } else { "weights" };
        let (folder, from) = (args.output.display(), from.display());
        let [tensor, pipeline] = grid;
        base::say!(
            "wrote {bytes} of step {step}, {what}, for tensor {tensor} × pipeline {pipeline} to {folder}, \
             from {from}"
        );
        if *padding > 0 {
            base::say!(
                "note: {padding} rows of zeros pad the vocabulary, and Megatron-LM's softmax counts them"
            );
        }
        for note in notes {
            base::say!("note: {note}");
        }
        base::say!("next: --load {folder} --ckpt-format torch, with the model's own arguments");
    };
    let object = json!({
        "folder": args.output, "from": from, "step": step, "files": files, "bytes": bytes.0,
        "states": states, "padding": padding, "notes": notes, "tensor": args.tensor,
        "pipeline": args.pipeline,
    });
    args.json.say(lines, object);
    Ok(())
}
