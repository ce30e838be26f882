//! `gptrain export`: `gptrain convert` of gptrain's own checkpoints, and of Hugging Face folders.

use crate::convert::{Target, TargetOptions, write};
use crate::model_place;
use exchange::foreign::Choices;
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
    /// Layout of the folder
    #[arg(long, value_enum, default_value_t = Target::Hf)]
    to: Target,
    #[command(flatten)]
    options: TargetOptions,
}

impl Export {
    pub fn run(self) -> anyhow::Result<()> {
        self.options.ensure_apply(self.to)?;
        let mut opened = model_place::open_source(&self.checkpoint, &Choices::default())?;
        write(&mut opened, &self.output, self.to, &self.options)
    }
}
