//! `gptrain prune`: removes old checkpoints of a run, or their optimizer states, also while it trains.

use crate::options::Json;
use anyhow::{Context, Result};
use base::{Bytes, Count, Problems, input, number};
use checkpoint::disk::Disk;
use checkpoint::place::Place;
use checkpoint::{self, CheckpointFolder, Keep, Kept};
use serde_json::json;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Remove old checkpoints of a run
///
/// Keeps the newest ones and those of every N-th step, or of these the weights only. The run may be training:
/// what it is writing, and what is not yet copied to checkpoint.also, is kept.
#[derive(clap::Args)]
pub struct Prune {
    /// Folder of the run
    run: PathBuf,
    /// Keep the checkpoints whose step is a multiple of this
    #[arg(long, value_name = "STEPS", required_unless_present_any = ["keep_last", "keep_weights_every"])]
    #[arg(value_parser = number::whole_in(1..=u64::MAX))]
    keep_every: Option<u64>,
    /// Keep the weights, without the optimizer's states, of those whose step is a multiple of this
    #[arg(long, value_name = "STEPS", value_parser = number::whole_in(1..=u64::MAX))]
    keep_weights_every: Option<u64>,
    /// Keep this many of the newest checkpoints [default: 1]
    #[arg(long, value_name = "K", value_parser = number::count)]
    keep_last: Option<NonZeroUsize>,
    /// Only list what would be removed
    #[arg(long)]
    dry: bool,
    #[command(flatten)]
    json: Json,
}

impl Prune {
    pub fn run(self) -> Result<()> {
        let keep = Keep {
            last: Some(self.keep_last.map_or(1, usize::from)),
            every: self.keep_every,
            weights_every: self.keep_weights_every,
            read: None,
        };
        let pruning = Pruning::find(&self.run, keep)?;
        if !self.dry {
            pruning.remove()?;
        }
        let (removed, reduced): (Vec<&Outdated>, Vec<&Outdated>) = pruning
            .outdated
            .iter()
            .partition(|one| one.kept == Kept::Nothing);
        let object = json!({
            "removed": removed, "reduced": reduced, "bytes": pruning.bytes().0, "kept": pruning.kept,
            "not_copied": pruning.uncopied, "dry": self.dry,
        });
        self.json.say(
            || {
                for one in &pruning.outdated {
                    let what =
                        if one.kept == Kept::Weights { "the optimizer's states, " } else { "" };
                    base::say!("{}: {what}{}", one.folder.display(), Bytes(one.bytes));
                }
                for step in &pruning.uncopied {
                    base::say!("{} is kept: it is not copied yet", checkpoint::name(*step));
                }
                let verb = if self.dry { "would remove" } else { "removed" };
                let checkpoints = Count(removed.len() as u64).with_noun("checkpoint");
                let states = match reduced.len() as u64 {
                    0 => String::new(),
                    n => format!(" and the optimizer's states of {}", Count(n)),
                };
                let bytes = pruning.bytes();
                let kept = Count(pruning.kept as u64);
                base::say!("{verb} {checkpoints}{states}, {bytes}; {kept} kept");
            },
            object,
        );
        Ok(())
    }
}

/// Checkpoint that can be removed, or reduced to its weights.
#[derive(Clone, Debug, serde::Serialize)]
struct Outdated {
    step: u64,
    folder: PathBuf,
    /// Bytes that are removed.
    bytes: u64,
    #[serde(skip)]
    kept: Kept,
}

/// Checkpoints of a run, divided by a rule.
struct Pruning {
    checkpoints: Place,
    outdated: Vec<Outdated>,
    /// Number of checkpoints that remain.
    kept: usize,
    /// Kept because no copy of them or of later ones is complete in the run's other place
    /// (`checkpoint.also`).
    uncopied: Vec<u64>,
}

impl Pruning {
    /// Finds what need not be kept. Checkpoints that are being written are not among it, and those whose
    /// copy is not complete are kept.
    fn find(run: &Path, keep: Keep) -> Result<Pruning> {
        let checkpoints = run.join("checkpoints");
        let published = checkpoint::published(&checkpoints)?;
        if published.is_empty() {
            let place = run.display().to_string();
            return Err(Problems::one(
                place,
                "holds no checkpoint of a run",
                "give the folder of a run, as in runs/NAME",
            )
            .into());
        }
        let steps: Vec<u64> = published.iter().map(|found| found.step).collect();
        let place = Place::on(Disk::default(), &checkpoints);
        let mut outdated = Vec::new();
        for (CheckpointFolder { step, folder }, (_, kept)) in
            published.into_iter().zip(keep.decide(&steps))
        {
            let bytes = match kept {
                Kept::Whole => 0,
                Kept::Weights => place.state_files(step)?.values().sum(),
                Kept::Nothing => count_bytes(&folder)?,
            };
            if bytes > 0 {
                outdated.push(Outdated { step, folder, bytes, kept });
            }
        }
        let newest_copy = if outdated.is_empty() { None } else { find_newest_copy(run)? };
        let (outdated, uncopied): (Vec<Outdated>, Vec<Outdated>) = outdated
            .into_iter()
            .partition(|one| newest_copy.is_some_and(|newest| one.step <= newest));
        let uncopied = uncopied.iter().map(|one| one.step).collect();
        let removed = outdated.iter().filter(|one| one.kept == Kept::Nothing);
        let kept = steps.len() - removed.count();
        Ok(Pruning { checkpoints: place, outdated, kept, uncopied })
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.outdated.iter().map(|one| one.bytes).sum())
    }

    /// Removes them, the oldest first.
    fn remove(&self) -> Result<()> {
        for one in &self.outdated {
            // The run's own keep_last may have removed it meanwhile.
            if one.folder.exists() {
                self.checkpoints
                    .reduce(one.step, one.kept)
                    .with_context(|| format!("cannot remove {}", one.folder.display()))?;
            }
        }
        Ok(())
    }
}

/// Step of the newest complete copy in the run's other place: later checkpoints may still be copied,
/// earlier ones are not. The largest step if the run has no such place, None if nothing is copied.
fn find_newest_copy(run: &Path) -> Result<Option<u64>> {
    let path = run.join(manifest::IN_FOLDER);
    if !path.exists() {
        return Ok(Some(u64::MAX));
    }
    let text = input::read(&path, input::SMALL)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.display().to_string();
    let text = String::from_utf8_lossy(&text).into_owned();
    let loaded = manifest::parse_saved(&text, &name, run, &[])?;
    let Some(url) = &loaded.manifest.checkpoint.also else { return Ok(Some(u64::MAX)) };
    let steps = Place::open(url).and_then(|place| place.steps());
    Ok(steps
        .with_context(|| {
            format!("{url} (checkpoint.also) cannot be listed, so nothing is removed")
        })?
        .last()
        .copied())
}

/// Bytes of a checkpoint's files. Fails if the folder cannot be listed, unlike `output::bytes`: its checkpoint
/// would seem to be pruned.
fn count_bytes(folder: &Path) -> Result<u64> {
    let failed = || format!("cannot list {}", folder.display());
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(failed)? {
        bytes += entry
            .and_then(|entry| entry.metadata())
            .with_context(failed)?
            .len();
    }
    Ok(bytes)
}
