//! `gptrain average`: one model from several checkpoints.

use serde_json::json;
use std::path::PathBuf;
use train::average;

/// Average the weights of several checkpoints into a new run
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Checkpoints, or runs' folders: their newest
    #[arg(required = true, num_args = 2..)]
    checkpoints: Vec<PathBuf>,
    /// The new run's folder
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    pub json: super::Json,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let found = args.checkpoints.iter().map(|path| checkpoint::find(path));
    let found = found.collect::<anyhow::Result<Vec<_>>>()?;
    let written = average::average(&found, &args.output)?;
    let lines = || {
        base::say!("wrote {}: the mean of {} checkpoints", written.display(), found.len());
        base::say!("`gptrain run {}` goes on from it", args.output.display());
    };
    args.json.say(lines, json!({ "checkpoint": written, "mean_of": found }));
    Ok(())
}
