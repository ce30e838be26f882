//! `gptrain inspect-ckpt`: shows a checkpoint's contents, verifies it, or compares two.
//!
//! Exit codes: 0 sound (or equal, with `--diff`), 1 damaged (or different), 2 the command is wrong.

mod replay;

use crate::completions::SETTINGS;
use crate::local_checkpoint::LocalCheckpoint;
use crate::model_place::{find_checkpoint, foreign_format};
use crate::options::Overwrite;
use anyhow::{anyhow, bail, ensure};
use base::{Count, WrongInput, number, output};
use checkpoint::inspect;
use exchange::foreign::Format;
use exchange::inspect::Depth;
use std::path::{Path, PathBuf};

/// Inspect a checkpoint, verify it, or compare two
#[derive(clap::Args)]
pub struct InspectCkpt {
    /// Checkpoint (runs/NAME/checkpoints/step-00000040), run folder (its newest checkpoint), mirror
    /// (s3://BUCKET/PREFIX, file:///FOLDER), which is fetched to a temporary folder, Hugging Face folder,
    /// or checkpoint of another trainer that `gptrain import` reads
    checkpoint: PathBuf,
    /// Read all data and verify every digest, value and rule
    #[arg(long)]
    deep: bool,
    /// Show shape, smallest, largest and mean value, and norm of each tensor. `--deep` does too
    #[arg(long)]
    tensors: bool,
    /// Compare with CHECKPOINT, of any format, and show what changed since it, tensor by tensor
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["deep", "replay", "plot"])]
    diff: Option<PathBuf>,
    /// With --diff, a setting that the files of another program lack; without it, those of the model are
    /// the other checkpoint's
    #[arg(long, value_name = "KEY=VALUE", requires = "diff")]
    #[arg(value_parser = SETTINGS, hide_possible_values = true)]
    set: Vec<String>,
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

impl InspectCkpt {
    pub fn run(self) -> anyhow::Result<()> {
        // Damage is what this command looks for, not a mistake in its use.
        self.inspect().map_err(
            |error| {
                if error.is::<WrongInput>() { anyhow!("{error:#}") } else { error }
            },
        )
    }

    fn inspect(&self) -> anyhow::Result<()> {
        let format = foreign_format(&self.checkpoint)?;
        if let Some(other) = &self.diff
            && (format.is_some() || foreign_format(other)?.is_some())
        {
            return self.diff_formats(other);
        }
        if let Some(format) = format
            && self.replay.is_none()
            && self.plot.is_none()
        {
            return self.inspect_foreign(format);
        }
        let local = find_checkpoint(&self.checkpoint)?;
        let folder = &local.folder;
        if let Some(other) = &self.diff {
            let diff = inspect::diff(&find_checkpoint(other)?.folder, folder)?;
            diff.printout().say(self.json);
            ensure!(diff.equal(), "the two are different");
            return Ok(());
        }
        if let Some(steps) = self.replay {
            replay::is_possible(folder, steps)?;
        }
        let inspection = inspect::inspect(folder, self.deep)?;
        inspection
            .printout(self.tensors || self.deep)
            .say(self.json);
        if let Some(path) = &self.plot {
            let picture = inspect::svg(&inspection);
            output::write(path, self.overwrite.existing(), picture.as_bytes())?;
        }
        if let Some(steps) = self.replay {
            replay::report(folder, steps)?;
        }
        let findings = inspection.damage.len();
        if findings > 0 {
            let findings = Count(findings as u64).with_noun("finding");
            bail!("{} is damaged: {findings}", local.name());
        }
        Ok(())
    }

    /// Compares two checkpoints, of which at least one is another program's.
    fn diff_formats(&self, other: &Path) -> anyhow::Result<()> {
        let a = own_checkpoint(other)?;
        let b = own_checkpoint(&self.checkpoint)?;
        let a = a.as_ref().map_or(other, |own| &own.folder);
        let b = b.as_ref().map_or(&*self.checkpoint, |own| &own.folder);
        let diff = exchange::diff::diff(a, b, &self.set)?;
        diff.printout().say(self.json);
        ensure!(diff.equal(), "the two are different");
        Ok(())
    }

    /// Inspects a checkpoint of another program.
    fn inspect_foreign(&self, format: Format) -> anyhow::Result<()> {
        let depth = match (self.deep, self.tensors) {
            (true, _) => Depth::All,
            (false, true) => Depth::Weights,
            (false, false) => Depth::Facts,
        };
        let inspection = exchange::inspect::inspect(&self.checkpoint, format, depth)?;
        inspection.printout().say(self.json);
        let findings = inspection.damage.len();
        if findings > 0 {
            let findings = Count(findings as u64).with_noun("finding");
            bail!("{} is damaged: {findings}", self.checkpoint.display());
        }
        Ok(())
    }
}

/// Checkpoint of gptrain at a path, on this machine; None for another program's.
fn own_checkpoint(path: &Path) -> anyhow::Result<Option<LocalCheckpoint>> {
    match foreign_format(path)? {
        Some(_) => Ok(None),
        None => find_checkpoint(path).map(Some),
    }
}
