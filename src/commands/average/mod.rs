//! `gptrain average`: one model from several checkpoints.

mod mean;

use crate::local_checkpoint::LocalCheckpoint;
use crate::model_place::find_checkpoint;
use base::Count;
use serde_json::json;
use std::path::PathBuf;

/// Average the weights of several checkpoints into a new run
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Checkpoints, run folders (their newest checkpoint), or Hugging Face folders. The file `latest` that `checkpoints/*`
    /// includes is skipped
    #[arg(required = true, num_args = 2..)]
    checkpoints: Vec<PathBuf>,
    /// Folder of the new run
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    overwrite: crate::options::Overwrite,
    #[command(flatten)]
    pub json: crate::options::Json,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let hint = |path: &&PathBuf| path.ends_with(checkpoint::LATEST) && path.is_file();
    let found = args
        .checkpoints
        .iter()
        .filter(|path| !hint(path))
        .map(|path| find_checkpoint(path))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if found.len() < 2 {
        let what = Count(found.len() as u64).with_noun("checkpoint");
        return Err(base::Problems::one("CHECKPOINTS", what, "name at least two").into());
    }
    let written = mean::average(&found, &args.output, args.overwrite.existing())?;
    let names: Vec<String> = found.iter().map(LocalCheckpoint::name).collect();
    args.json.say(
        || {
            base::say!("wrote {}: the mean of {} checkpoints", written.display(), found.len());
            base::say!("next: `gptrain run {}` continues from it", args.output.display());
        },
        json!({ "checkpoint": written, "mean_of": names }),
    );
    Ok(())
}
