//! `gptrain average`: the mean of several checkpoints' weights, as a new run: at the end of a decay it is often better than
//! each of them (Izmailov et al. 2018; Kaddour 2022).

use crate::local_checkpoint::{LocalCheckpoint, stored_manifest};
use crate::model_place::find_checkpoint;
use crate::new_checkpoint::{WholeWeight, save_weights};
use crate::options::{Json, Overwrite};
use anyhow::Context;
use base::output::Existing;
use base::progress::{Progress, Unit};
use base::{Count, Problems};
use checkpoint::atomic_folder::{self, FolderKind};
use checkpoint::{self, Checkpoint, State, Tensor};
use engine::{MASTER, ScaleState};
use exchange::tokenizer;
use manifest::{self, Loaded};
use model::Param;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use train::saving;

#[derive(clap::Args)]
pub struct Average {
    /// Checkpoints, run folders (their newest checkpoint), or Hugging Face folders. The file `latest` that `checkpoints/*`
    /// includes is skipped
    #[arg(required = true, num_args = 2..)]
    checkpoints: Vec<PathBuf>,
    /// Folder of the new run
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    #[command(flatten)]
    json: Json,
}

impl Average {
    pub fn run(self) -> anyhow::Result<()> {
        let mut found = Vec::new();
        for path in &self.checkpoints {
            // `checkpoints/*` also names the file that says which one is the newest.
            if !(path.ends_with(checkpoint::LATEST) && path.is_file()) {
                found.push(find_checkpoint(path)?);
            }
        }
        if found.len() < 2 {
            return Err(Problems::one(
                "CHECKPOINTS",
                Count(found.len() as u64).with_noun("checkpoint"),
                "name at least two",
            )
            .into());
        }
        let written = write_mean(&found, &self.output, self.overwrite.existing())?;
        let names: Vec<String> = found.iter().map(LocalCheckpoint::name).collect();
        self.json.say(
            || {
                base::say!("wrote {}: the mean of {} checkpoints", written.display(), found.len());
                base::say!("next: `gptrain run {}` continues from it", self.output.display());
            },
            json!({ "checkpoint": written, "mean_of": names }),
        );
        Ok(())
    }
}

/// Writes the mean of the master weights of `from` as a checkpoint of a new run in `output`, beside
/// that run's manifest. Step and place in the data are those of the last checkpoint. The optimizer's
/// states are reset. The mean is computed in f64, in the given order.
fn write_mean(
    from: &[LocalCheckpoint],
    output: &Path,
    existing: Existing,
) -> anyhow::Result<PathBuf> {
    atomic_folder::check_vacant(output, FolderKind::Run, existing)?;
    let checkpoints = from
        .iter()
        .map(|local| Checkpoint::open(&local.folder))
        .collect::<Result<Vec<_>, _>>()?;
    let last = checkpoints.last().context("no checkpoint was given")?;
    check_same_shapes(&checkpoints)?;
    let run =
        std::path::absolute(output).with_context(|| format!("cannot find {}", output.display()))?;
    let loaded = load_run_manifest(last, &run)?;
    let numbers: usize = last.index.tensors.iter().map(Tensor::numel).sum();
    let progress = Progress::new("averaging", numbers as u64, Unit::Items("numbers"));
    let step = last.index.progress.step;
    let names: Vec<String> = from.iter().map(LocalCheckpoint::name).collect();
    let optimizer =
        checkpoint::Optimizer { began: step, ..saving::initial_optimizer(&loaded.manifest) };
    let state = State {
        run: checkpoint::nonce(),
        loss_scale: last.index.loss_scale.map(ScaleState::without_counters),
        skipped_updates: 0,
        pending: None,
        optimizer,
        imported: Some(format!("mean of {}", names.join(", "))),
        imported_types: Default::default(),
        manifest: loaded.effective.clone(),
        ..last.index.state.clone()
    };
    let own = tokenizer::own(&last.folder, loaded.manifest.data.tokenizer.as_deref());
    atomic_folder::write(output, FolderKind::Run, existing, |staging| {
        let path = staging.join(manifest::IN_FOLDER);
        fs::write(&path, loaded.record())
            .with_context(|| format!("cannot write {}", path.display()))?;
        own.map_or(Ok(None), |own| tokenizer::keep(staging, &own.path))?;
        save_weights(
            &loaded.manifest,
            &staging.join("checkpoints"),
            &state,
            &mut |param: &Param| {
                let tensor = last
                    .index
                    .tensor(&param.name)
                    .with_context(|| format!("no {}", param.name))?;
                progress.add(tensor.numel() as u64);
                Ok(WholeWeight {
                    shape: tensor.shape.clone(),
                    values: average_values(&checkpoints, &tensor.name)?,
                })
            },
        )
    })?;
    progress.finish();
    Ok(output.join("checkpoints").join(checkpoint::name(step)))
}

/// Manifest of the last checkpoint, for a run in `output`. That in the run's folder, if it means the
/// same: in it, the end of the decay follows from the length.
fn load_run_manifest(last: &Checkpoint, output: &Path) -> anyhow::Result<Loaded> {
    let sets = [format!("log.folder={}", serde_json::to_string(output)?)];
    let stored = stored_manifest(&last.index.manifest, &sets)?;
    let run = last.folder.parent().and_then(Path::parent);
    let own = run
        .and_then(|run| manifest::load(run, &sets).ok())
        .filter(|own| {
            let mut m = own.manifest.clone();
            m.data.cache.clone_from(&stored.manifest.data.cache); // in the run's folder
            m == stored.manifest
        });
    Ok(own.unwrap_or(stored))
}

/// Fails unless every checkpoint has the tensors of the last one.
fn check_same_shapes(checkpoints: &[Checkpoint]) -> Result<(), Problems> {
    let (Some(last), mut problems) = (checkpoints.last(), Problems::default()) else {
        return Ok(());
    };
    let remedy = "average checkpoints of one model";
    let newest = last.folder.display();
    for other in checkpoints {
        let place = other.folder.display().to_string();
        for tensor in &last.index.tensors {
            let name = &tensor.name;
            match other.index.tensor(name) {
                None => problems.add(&place, format!("has no {name}; {newest} has"), remedy),
                Some(found) if found.shape != tensor.shape => {
                    let ours = &found.shape;
                    let theirs = &tensor.shape;
                    problems.add(
                        &place,
                        format!("{name} is {ours:?}, in {newest} it is {theirs:?}"),
                        remedy,
                    );
                }
                Some(_) => {}
            }
        }
        let more = other
            .index
            .tensors
            .iter()
            .find(|t| last.index.tensor(&t.name).is_none());
        if let Some(more) = more {
            problems.add(&place, format!("has {}; {newest} has not", more.name), remedy);
        }
    }
    problems.list.truncate(8);
    problems.or(())
}

fn average_values(checkpoints: &[Checkpoint], name: &str) -> anyhow::Result<Vec<f32>> {
    let mut sums: Vec<f64> = Vec::new();
    for checkpoint in checkpoints {
        let tensor = checkpoint.index.tensor(name).context("it was there")?;
        let values = checkpoint.whole(tensor, MASTER)?;
        sums.resize(values.len(), 0.0);
        sums.iter_mut()
            .zip(values)
            .for_each(|(sum, value)| *sum += f64::from(value));
    }
    Ok(sums
        .into_iter()
        .map(|sum| (sum / checkpoints.len() as f64) as f32)
        .collect())
}
