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
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let loaded = manifest::load(&args.manifest, &args.set)?;
    let ended = train::run(&loaded)?;
    let folder = loaded.manifest.log.folder.display();
    match ended {
        train::Ended::Complete => println!("complete: {folder}"),
        train::Ended::Stopped => println!("stopped and saved: the same command goes on"),
    }
    Ok(())
}
