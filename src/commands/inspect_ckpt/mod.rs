//! `gptrain inspect-ckpt`: shows a checkpoint's contents, verifies it, or compares two.
//!
//! Exit codes: 0 sound (or equal, with `--diff`), 1 damaged (or different), 2 the command is wrong.

mod replay;

use crate::model_place::find_checkpoint;
use crate::options::Overwrite;
use anyhow::{anyhow, bail, ensure};
use base::{Count, WrongInput, number, output};
use checkpoint::inspect;
use std::path::PathBuf;

/// Inspect a checkpoint, verify it, or compare two
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Checkpoint (runs/NAME/checkpoints/step-00000040), run folder (its newest checkpoint),
    /// mirror (s3://BUCKET/PREFIX, file:///FOLDER) or Hugging Face folder; these two are read into a
    /// temporary folder
    checkpoint: PathBuf,
    /// Read all data and verify every digest, value and rule
    #[arg(long)]
    deep: bool,
    /// Show shape, smallest, largest and mean value, and norm of each tensor. `--deep` does too
    #[arg(long)]
    tensors: bool,
    /// Compare with CHECKPOINT, and show what changed since it, tensor by tensor
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["deep", "replay", "plot"])]
    diff: Option<PathBuf>,
    /// Repeat the next steps on this machine's CPU and compare their losses with the recorded ones
    #[arg(long, value_name = "STEPS", value_parser = number::whole_in(1..=u64::MAX))]
    replay: Option<u64>,
    /// Draw norms by layer and a histogram of magnitudes
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    // Damage is what this command looks for, not a mistake in its use.
    inspect(args).map_err(
        |error| {
            if error.is::<WrongInput>() { anyhow!("{error:#}") } else { error }
        },
    )
}

fn inspect(args: Args) -> anyhow::Result<()> {
    let local = find_checkpoint(&args.checkpoint)?;
    let folder = &local.folder;
    if let Some(other) = &args.diff {
        let diff = inspect::diff(&find_checkpoint(other)?.folder, folder)?;
        diff.printout().say(args.json);
        ensure!(diff.equal(), "the two are different");
        return Ok(());
    }
    if let Some(steps) = args.replay {
        replay::is_possible(folder, steps)?;
    }
    let inspection = inspect::inspect(folder, args.deep)?;
    inspection
        .printout(args.tensors || args.deep)
        .say(args.json);
    if let Some(path) = &args.plot {
        let picture = inspect::svg(&inspection);
        output::write(path, args.overwrite.existing(), picture.as_bytes())?;
    }
    if let Some(steps) = args.replay {
        replay::report(folder, steps)?;
    }
    let findings = inspection.damage.len();
    if findings > 0 {
        let findings = Count(findings as u64).with_noun("finding");
        bail!("{} is damaged: {findings}", local.name());
    }
    Ok(())
}
