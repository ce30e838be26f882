//! `gptrain export`: writes a checkpoint for Hugging Face's library, for Megatron-LM, or for DeepSpeed.

use crate::model_place::find_checkpoint;
use crate::options::{Choice, Json, Overwrite, one_of};
use base::{Bytes, DType, Problems, number};
use exchange::{foreign, hf};
use serde_json::json;
use std::path::PathBuf;

/// Write a checkpoint as a Hugging Face folder, as Megatron-LM's, or as DeepSpeed's universal one
#[derive(clap::Args)]
pub struct Export {
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
    #[arg(long, value_parser = one_of(&DTYPES))]
    dtype: Option<DType>,
    /// Largest size of a weights file; larger weights are split into several
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    shard_size: Bytes,
    /// File tokenizer.json, if the run's own is missing
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    #[command(flatten)]
    json: Json,
}

/// Words of --dtype.
const DTYPES: [Choice<DType>; 3] = [
    Choice("f32|fp32", DType::F32, ""),
    Choice("bf16", DType::BF16, ""),
    Choice("f16|fp16", DType::F16, ""),
];

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Target {
    Megatron,
    DeepspeedUniversal,
}

impl Export {
    pub fn run(self) -> anyhow::Result<()> {
        if let Some(target) = self.to {
            return self.export_for(target);
        }
        let local = find_checkpoint(&self.checkpoint)?;
        let from = &local.folder;
        let existing = self.overwrite.existing();
        let options = hf::Options {
            dtype: self.dtype,
            shard: self.shard_size,
            tokenizer: self.tokenizer,
            existing,
        };
        let done = hf::export(from, &self.output, options)?;
        let folder = self.output.display();
        let family = done.family.name();
        let dtype = checkpoint::precision(done.dtype);
        let files =
            if done.files == 1 { "one file".into() } else { format!("{} files", done.files) };
        let bytes = done.bytes;
        let object = json!({
            "folder": self.output, "from": local.name(), "family": family, "dtype": dtype,
            "files": done.files, "bytes": bytes.0, "tokenizer": done.tokenizer,
        });
        self.json.say(|| {
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
    fn export_for(self, target: Target) -> anyhow::Result<()> {
        let local = find_checkpoint(&self.checkpoint)?;
        let from = &local.folder;
        let grid = [self.tensor, self.pipeline];
        let existing = self.overwrite.existing();
        let done = match target {
            Target::Megatron => foreign::export(from, &self.output, grid, existing)?,
            Target::DeepspeedUniversal if grid == [1, 1] => {
                foreign::export_universal(from, &self.output, existing)?
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
            "folder": self.output, "from": local.name(), "step": step, "files": files, "bytes": bytes.0,
            "states": states, "padding": padding, "notes": notes, "tensor": self.tensor,
            "pipeline": self.pipeline,
        });
        self.json.say(|| {
        let what = if *states { "weights and AdamW's states" } else { "weights" };
        let folder = self.output.display();
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
}
