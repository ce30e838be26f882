//! `gptrain import`: starts a run from Hugging Face weights.

use crate::manifest;
use crate::train::import;
use std::path::PathBuf;

/// Start a run from a Hugging Face folder (GPT-2 or BLOOM)
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The folder: config.json and safetensors
    #[arg(long, value_name = "DIR")]
    hf: PathBuf,
    /// The run's manifest; without one, its `model` section is printed
    manifest: Option<PathBuf>,
    /// Change a setting of the manifest
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Some(path) = &args.manifest else {
        print!("{}", import::model_section(&args.hf)?);
        return Ok(());
    };
    let loaded = manifest::load(path, &args.set)?;
    let folder = import::import(&args.hf, &loaded)?;
    println!("wrote {}: `gptrain run {}` goes on from it", folder.display(), path.display());
    Ok(())
}
