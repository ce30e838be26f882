//! `gptrain run`

use crate::{manifest, train};
use std::path::PathBuf;

#[derive(clap::Args)]
pub struct Args {
    /// The experiment
    manifest: PathBuf,
    /// Change a setting of the manifest, as in `--set optimizer.adamw.beta2=0.95`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Go on from this checkpoint (step-00000040) in place of the newest
    #[arg(long, value_name = "STEP")]
    resume_from: Option<PathBuf>,
    /// First take this many recorded steps again from an older checkpoint, and demand equal losses
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    verify_resume: Option<u64>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let loaded = manifest::load(&args.manifest, &args.set)?;
    let Args { resume_from, verify_resume, .. } = args;
    let ended = train::run(&loaded, &train::Options { resume_from, verify_resume })?;
    let folder = loaded.manifest.log.folder.display();
    match ended {
        Some(train::Ended::Complete) => println!("complete: {folder}"),
        Some(train::Ended::Stopped) => println!("stopped and saved: the same command goes on"),
        None => {} // another process says it
    }
    Ok(())
}
