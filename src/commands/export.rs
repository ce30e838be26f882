//! `gptrain export`: writes a checkpoint for Hugging Face's library, for Megatron-LM, or for DeepSpeed.

use crate::model_place::find_checkpoint;
use base::{Bytes, DType, Problems, number};
use exchange::{foreign, hf};
use serde_json::json;
use std::path::PathBuf;

/// Write a checkpoint as a Hugging Face folder, as Megatron-LM's, or as DeepSpeed's universal one
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Checkpoint, run folder (its newest checkpoint), Hugging Face folder, or s3://BUCKET/PREFIX
    checkpoint: PathBuf,
    /// Folder to write: config.json, safetensors, tokenizer and generation settings; with --to
    /// megatron iter_N/mp_rank_TT_PPP; with --to deepspeed-universal global_stepN_universal/zero/NAME
    #[arg(short, long, visible_alias = "hf", value_name = "DIR")]
    output: PathBuf,
    /// Another trainer's layout, with the optimizer's states: Megatron-LM's (--ckpt-format torch), or a
    /// universal checkpoint of Megatron-DeepSpeed (--universal-checkpoint)
    #[arg(long, value_enum, conflicts_with_all = ["dtype", "tokenizer"])]
    to: Option<Target>,
    /// Tensor ranks of --to megatron
    #[arg(long, value_name = "RANKS", default_value_t = 1, requires = "to")]
    #[arg(value_parser = number::whole::<usize>)]
    tensor: usize,
    /// Pipeline stages of --to megatron
    #[arg(long, value_name = "STAGES", default_value_t = 1, requires = "to")]
    #[arg(value_parser = number::whole::<usize>)]
    pipeline: usize,
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
    overwrite: crate::options::Overwrite,
    #[command(flatten)]
    pub json: crate::options::Json,
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
    DeepspeedUniversal,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    if let Some(target) = args.to {
        return to_trainer(args, target);
    }
    let dtype = args.dtype.map(|choice| match choice {
        Choice::F32 => DType::F32,
        Choice::Bf16 => DType::BF16,
        Choice::F16 => DType::F16,
    });
    let local = find_checkpoint(&args.checkpoint)?;
    let from = &local.folder;
    let tokenizer = args.tokenizer;
    let existing = args.overwrite.existing();
    let options = hf::Options { dtype, shard: args.shard_size, tokenizer, existing };
    let done = hf::export(from, &args.output, options)?;
    let folder = args.output.display();
    let family = done.family.name();
    let dtype = checkpoint::precision(done.dtype);
    let files = if done.files == 1 { "one file".into() } else { format!("{} files", done.files) };
    let bytes = done.bytes;
    let object = json!({
        "folder": args.output, "from": local.name(), "family": family, "dtype": dtype,
        "files": done.files, "bytes": bytes.0, "tokenizer": done.tokenizer,
    });
    args.json.say(|| {
        let from = local.name();
        base::say!("wrote {bytes} of {family} in {dtype}, {files}, to {folder}, from {from}");
        if !done.tokenizer {
            base::say!(
                "without a tokenizer: the run's manifest names none, or its file no longer exists"
            );
        }
    }, object);
    Ok(())
}

/// Exports for another trainer.
fn to_trainer(args: Args, target: Target) -> anyhow::Result<()> {
    let local = find_checkpoint(&args.checkpoint)?;
    let from = &local.folder;
    let grid = [args.tensor, args.pipeline];
    let existing = args.overwrite.existing();
    let done = match target {
        Target::Megatron => foreign::export(from, &args.output, grid, existing)?,
        Target::DeepspeedUniversal if grid == [1, 1] => {
            foreign::export_universal(from, &args.output, existing)?
        }
        Target::DeepspeedUniversal => {
            return Err(Problems::one(
                "--tensor and --pipeline",
                "cut a folder of Megatron-LM; a universal one has whole parameters",
                "leave them out",
            )
            .into());
        }
    };
    let foreign::Written { step, files, bytes, states, padding, notes } = &done;
    let object = json!({
        "folder": args.output, "from": local.name(), "step": step, "files": files, "bytes": bytes.0,
        "states": states, "padding": padding, "notes": notes, "tensor": args.tensor,
        "pipeline": args.pipeline,
    });
    args.json.say(|| {
        let what = if *states { "weights and AdamW's states" } else { "weights" };
        let folder = args.output.display();
        let from = local.name();
        let [tensor, pipeline] = grid;
        let cut = match target {
            Target::Megatron => format!(", for tensor {tensor} × pipeline {pipeline}"),
            Target::DeepspeedUniversal => String::new(),
        };
        base::say!("wrote {bytes} of step {step}, {what}{cut} to {folder}, from {from}");
        if *padding > 0 {
            base::say!(
                "note: {padding} rows of zeros pad the vocabulary, and Megatron-LM's softmax counts them"
            );
        }
        for note in notes {
            base::say!("note: {note}");
        }
        let options = match target {
            Target::Megatron => "--ckpt-format torch",
            Target::DeepspeedUniversal => "--universal-checkpoint",
        };
        base::say!("next: --load {folder} {options}, with the model's own arguments");
    }, object);
    Ok(())
}
