//! Mean of several checkpoints' weights, as a new run: at the end of a decay it is often better than
//! each of them (Izmailov et al. 2018; Kaddour 2022).

use super::fresh::{self, Whole};
use anyhow::Context;
use base::Problems;
use base::output::Existing;
use base::progress::{Progress, Unit};
use checkpoint::aside::{self, Kind};
use checkpoint::{self, Checkpoint, State, Tensor, tokenizer};
use engine::{MASTER, ScaleState};
use manifest::{self, Loaded};
use model::Param;
use std::fs;
use std::path::{Path, PathBuf};
use train::saving;

/// Writes the mean of the master weights of `from` as a checkpoint of a new run in `output`, beside
/// that run's manifest. Step and place in the data are those of the last checkpoint. The optimizer's
/// states are reset. The mean is computed in f64, in the given order.
pub fn average(from: &[PathBuf], output: &Path, existing: Existing) -> anyhow::Result<PathBuf> {
    aside::vacant(output, Kind::Run, existing)?;
    let all = from.iter().map(|folder| Checkpoint::open(folder)).collect::<Result<Vec<_>, _>>()?;
    let last = all.last().context("no checkpoint was given")?;
    same_shapes(&all)?;
    let run = std::path::absolute(output);
    let run = run.with_context(|| format!("cannot find {}", output.display()))?;
    let loaded = manifest_of(last, &run)?;
    let numbers: usize = last.index.tensors.iter().map(Tensor::numel).sum();
    let progress = Progress::new("averaging", numbers as u64, Unit::Items("numbers"));
    let mut read = |param: &Param| {
        let tensor = last.index.tensor(&param.name);
        let tensor = tensor.with_context(|| format!("no {}", param.name))?;
        progress.add(tensor.numel() as u64);
        Ok(Whole { shape: tensor.shape.clone(), values: mean(&all, &tensor.name)? })
    };
    let step = last.index.progress.step;
    let names: Vec<String> = from.iter().map(|folder| folder.display().to_string()).collect();
    let optimizer = checkpoint::Optimizer { began: step, ..saving::optimizer(&loaded.manifest) };
    let state = State {
        run: checkpoint::nonce(),
        loss_scale: last.index.loss_scale.map(ScaleState::uncounted),
        skipped_updates: 0,
        pending: None,
        optimizer,
        imported: Some(format!("mean of {}", names.join(", "))),
        manifest: loaded.effective.clone(),
        ..last.index.state.clone()
    };
    let own = tokenizer::own(&last.folder, loaded.manifest.data.tokenizer.as_deref());
    aside::write_folder(output, Kind::Run, existing, |fresh| {
        let path = fresh.join(manifest::IN_FOLDER);
        fs::write(&path, &loaded.effective)
            .with_context(|| format!("cannot write {}", path.display()))?;
        own.map_or(Ok(None), |own| tokenizer::keep(fresh, &own.path))?;
        fresh::save(&loaded.manifest, &fresh.join("checkpoints"), &state, &mut read)
    })?;
    progress.finish();
    Ok(output.join("checkpoints").join(checkpoint::name(step)))
}

/// Manifest of the last checkpoint, for a run in `output`.
fn manifest_of(last: &Checkpoint, output: &Path) -> anyhow::Result<Loaded> {
    let sets = [format!("log.folder={}", serde_json::to_string(output)?)];
    let text = &last.index.manifest;
    Ok(manifest::parse_saved(text, "the checkpoint's manifest", Path::new("."), &sets)?)
}

/// Fails unless every checkpoint has the tensors of the last one.
fn same_shapes(all: &[Checkpoint]) -> Result<(), Problems> {
    let (Some(last), mut problems) = (all.last(), Problems::default()) else { return Ok(()) };
    let remedy = "average checkpoints of one model";
    let there = last.folder.display();
    for other in all {
        let place = other.folder.display().to_string();
        for tensor in &last.index.tensors {
            let name = &tensor.name;
            match other.index.tensor(name) {
                None => problems.add(&place, format!("has no {name}; {there} has"), remedy),
                Some(found) if found.shape != tensor.shape => {
                    let (ours, theirs) = (&found.shape, &tensor.shape);
                    let what = format!("{name} is {ours:?}, in {there} it is {theirs:?}");
                    problems.add(&place, what, remedy);
                }
                Some(_) => {}
            }
        }
        let more = other.index.tensors.iter().find(|t| last.index.tensor(&t.name).is_none());
        if let Some(more) = more {
            problems.add(&place, format!("has {}; {there} has not", more.name), remedy);
        }
    }
    problems.list.truncate(8);
    problems.or(())
}

fn mean(all: &[Checkpoint], name: &str) -> anyhow::Result<Vec<f32>> {
    let mut sums: Vec<f64> = Vec::new();
    for checkpoint in all {
        let tensor = checkpoint.index.tensor(name).context("it was there")?;
        let values = checkpoint.whole(tensor, MASTER)?;
        sums.resize(values.len(), 0.0);
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(value));
    }
    Ok(sums.into_iter().map(|sum| (sum / all.len() as f64) as f32).collect())
}
