//! `gptrain import`: starts a run from Hugging Face weights.

use serde_json::json;
use std::path::{Path, PathBuf};
use train::import::{self, Imported};

/// Start a run from a Hugging Face folder: GPT-2, BLOOM, Llama, Mistral, Qwen2, Qwen3
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The folder: config.json and safetensors
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// The new run's folder: a manifest is made from config.json
    #[arg(long, value_name = "RUN", conflicts_with = "manifest")]
    output: Option<PathBuf>,
    /// The run's manifest; without it and without --output, its `model` section is printed
    manifest: Option<PathBuf>,
    /// Change a setting of the manifest
    #[arg(long, value_name = "KEY=VALUE", requires = "manifest")]
    set: Vec<String>,
    /// Compare the first logits with those in this file: safetensors with input_ids [samples,
    /// tokens] and logits [samples, tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    pub json: super::Json,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let reference = args.reference.as_deref();
    let (done, next) = match (&args.output, &args.manifest) {
        (Some(output), _) => {
            (import::import_run(&args.hf, output, reference)?, output.join(manifest::IN_FOLDER))
        }
        (None, Some(path)) => {
            let loaded = manifest::load(path, &args.set)?;
            (import::import(&args.hf, &loaded, reference)?, path.clone())
        }
        (None, None) => {
            let section = import::model_section(&args.hf)?;
            let lines = || base::say!("{}", section.trim_end());
            args.json.say(lines, json!({ "manifest_section": section }));
            return Ok(());
        }
    };
    let divergence = done.divergence.as_ref().map(ToString::to_string);
    let object = json!({
        "checkpoint": done.checkpoint, "weights": done.what, "manifest": next,
        "unknown_keys": done.unknown, "divergence": divergence,
    });
    args.json.say(|| told(&args, &done, &next), object);
    Ok(())
}

fn told(args: &Args, done: &Imported, next: &Path) {
    base::say!("wrote {} of {}", done.checkpoint.display(), done.what);
    if !done.unknown.is_empty() {
        base::say!("left aside what is not known of config.json: {}", done.unknown.join(", "));
    }
    if let Some(divergence) = &done.divergence {
        base::say!("{divergence}");
    }
    match &args.output {
        Some(output) => base::say!(
            "next: name a dataset in {}, then `gptrain run {}`",
            next.display(),
            output.display()
        ),
        None => base::say!("`gptrain run {}` goes on from it", next.display()),
    }
}
