//! `gptrain import`: starts a run from another trainer's checkpoint or from Hugging Face weights.

use super::{hugging_face, options};
use crate::completions::SETTINGS;
use crate::model_place;
use base::Problems;
use exchange::foreign::Format;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Start a run from another trainer's checkpoint, or from a Hugging Face folder
///
/// DIR is a checkpoint of Megatron-DeepSpeed (ZeRO-1, ZeRO-3, universal), Megatron-LM, Megatron-Core
/// (torch_dist), torchtitan or OLMo-core, whose optimizer's states are kept, or a Hugging Face folder:
/// GPT-2, BLOOM, Llama, Mistral, Qwen2, Qwen3.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The folder to import; with --hf, the manifest of the run to import into: without it and
    /// without --output, its `model` section is printed
    #[arg(value_name = "DIR")]
    path: Option<PathBuf>,
    /// A Hugging Face folder: config.json and safetensors
    #[arg(long, value_name = "DIR")]
    hf: Option<PathBuf>,
    /// Folder of the new run; its manifest is made from the checkpoint's settings
    #[arg(short, long, value_name = "RUN")]
    output: Option<PathBuf>,
    #[command(flatten)]
    overwrite: crate::options::Overwrite,
    /// Change a setting of the manifest, including the one that --output makes
    #[arg(long, value_name = "KEY=VALUE", value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
    #[command(flatten)]
    foreign: options::Options,
    /// Compare the first logits with those in this file: safetensors with input_ids [samples,
    /// tokens] and logits [samples, tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    #[command(flatten)]
    pub json: crate::options::Json,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let output = args.output.as_deref();
    if let Some(from) = args.hf.as_ref().or(args.path.as_ref()) {
        model_place::ensure_fetched(from)?;
        model_place::ensure_whole_model(from)?;
    }
    let (hf, into) = match (&args.hf, &args.path) {
        (Some(hf), into) => (hf.as_path(), into.as_deref()),
        (None, None) => {
            return Err(Problems::one(
                "import",
                "no folder is named",
                "give a checkpoint's folder: gptrain import DIR --output RUN",
            )
            .into());
        }
        (None, Some(path)) => match options::format_of(path, &args.foreign)? {
            Format::HuggingFace => (path.as_path(), None),
            other => {
                let output = output.map(|run| (run, args.overwrite.existing()));
                return options::run(path, other, output, &args.foreign, &args.set, args.json);
            }
        },
    };
    from_hf(&args, hf, into)
}

/// Imports a Hugging Face folder into a new run or into that of a manifest.
fn from_hf(args: &Args, hf: &Path, into: Option<&Path>) -> anyhow::Result<()> {
    let mut problems = Problems::default();
    if args.output.is_some() && into.is_some() {
        problems.add("--output", "makes a manifest, but one is given too", "leave one of them out");
    }
    if !args.set.is_empty() && into.is_none() && args.output.is_none() {
        problems.add(
            "--set",
            "changes a manifest, but neither a manifest nor --output is given",
            "give one of them",
        );
    }
    if args.foreign.replicated.is_some() || args.foreign.mask_padding {
        problems.add(
            "--replicated and --mask-padding",
            "are for Megatron's checkpoints, and this is a Hugging Face folder",
            "leave them out",
        );
    }
    problems.or(())?;
    let writes = !args.foreign.dry;
    let reference = args.reference.as_deref();
    let (done, next) = match (args.output.as_ref().filter(|_| writes), into.filter(|_| writes)) {
        (Some(output), _) => {
            let existing = args.overwrite.existing();
            let done = hugging_face::import_run(hf, output, &args.set, existing, reference)?;
            (done, output.join(manifest::IN_FOLDER))
        }
        (None, Some(path)) => {
            let loaded = manifest::load(path, &args.set)?;
            (hugging_face::import_into(hf, &loaded, reference)?, path.to_path_buf())
        }
        (None, None) => {
            let section = hugging_face::model_section(hf)?;
            args.json.say(
                || base::say!("{}", section.trim_end()),
                json!({ "manifest_section": section }),
            );
            return Ok(());
        }
    };
    let output = args.output.as_deref();
    args.json
        .say(|| done.say(&next, output), done.object(&next));
    Ok(())
}
