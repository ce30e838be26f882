//! `gptrain inspect-ckpt`: shows a checkpoint's contents, verifies it, or compares two.
//!
//! Exit codes: 0 sound (or equal, with `--diff`), 1 damaged (or different), 2 the command is wrong.

use super::Overwrite;
use anyhow::{Context, anyhow, bail};
use base::{Count, WrongInput, output};
use checkpoint::place::Place;
use checkpoint::{self, inspect};
use commands::replay;
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Inspect a checkpoint, verify it, or compare two
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Checkpoint (runs/NAME/checkpoints/step-00000040), run folder (its newest checkpoint), or
    /// mirror (s3://BUCKET/PREFIX, file:///FOLDER), which is fetched into a temporary folder
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
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
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
    inspect(args).map_err(|error| match error.is::<WrongInput>() {
        true => anyhow!("{error:#}"),
        false => error,
    })
}

fn inspect(args: Args) -> anyhow::Result<()> {
    let here = Here::find(&args.checkpoint)?;
    let folder = &here.folder;
    if let Some(other) = &args.diff {
        let diff = inspect::diff(folder, &Here::find(other)?.folder)?;
        show(&args, &diff)?;
        return if diff.equal() { Ok(()) } else { Err(Different.into()) };
    }
    args.replay.map_or(Ok(()), |steps| replay::is_possible(folder, steps))?;
    let inspection = inspect::inspect(folder, args.deep)?;
    show(&args, &inspection)?;
    if let Some(path) = &args.plot {
        let picture = inspect::svg(&inspection);
        output::write(path, args.overwrite.existing(), picture.as_bytes())?;
    }
    if let Some(steps) = args.replay {
        let again = replay::checkpoint(folder, steps)?;
        again.iter().for_each(|step| base::warn!("{step}"));
        if let Some(other) = again.iter().find(|step| !step.equal()) {
            bail!("{}: step {} does not repeat", folder.display(), other.now.step);
        }
    }
    let findings = inspection.damage.len();
    if findings > 0 {
        let findings = Count(findings as u64).with_noun("finding");
        bail!("{} is damaged: {findings}", folder.display());
    }
    Ok(())
}

/// Checkpoint on this machine.
struct Here {
    folder: PathBuf,
    /// Temporary folder of a fetched checkpoint; None for a local one. Removed on drop.
    fetched_to: Option<PathBuf>,
}

impl Here {
    fn find(asked: &Path) -> anyhow::Result<Here> {
        let Some(url) = Place::is_url(asked) else {
            return Ok(Here { folder: checkpoint::find(asked)?, fetched_to: None });
        };
        let place = Place::open(url)?;
        static FETCHED: AtomicUsize = AtomicUsize::new(0);
        let number = FETCHED.fetch_add(1, Ordering::Relaxed);
        let name = format!("gptrain-inspect-{}-{number}", std::process::id());
        let to = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&to); // the folder above is shared
        made.with_context(|| format!("cannot make {}: set TMPDIR", to.display()))?;
        let mut here = Here { folder: PathBuf::new(), fetched_to: Some(to.clone()) };
        here.folder = place.fetch(&to)?.folder;
        Ok(here)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        // An error is ignored: the system clears temporary files.
        let _ = self.fetched_to.as_ref().map(fs::remove_dir_all);
    }
}

/// Error with exit code 1, as that of `diff`; the differences are already printed.
#[derive(Debug)]
struct Different;

impl Display for Different {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the two are different")
    }
}

impl std::error::Error for Different {}

fn show<T: Display + serde::Serialize>(args: &Args, what: &T) -> anyhow::Result<()> {
    let text = match args.json {
        true => serde_json::to_string_pretty(what)?,
        false if args.tensors || args.deep => format!("{what:#}"),
        false => what.to_string(),
    };
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()), // `| head`
        done => Ok(done?),
    }
}
