//! Reads a checkpoint of gptrain.

use super::{ParamReader, ParamSource};
use crate::foreign::{AdamState, Format, LossScale, RunDescription};
use crate::hf::{self, carries};
use crate::tokenizer;
use anyhow::Context;
use checkpoint::Checkpoint;
use manifest::{Manifest, Model};
use model::Param;
use std::path::{Path, PathBuf};

/// File of a checkpoint.
pub const INDEX: &str = "index.json";

pub fn open(folder: &Path) -> anyhow::Result<ParamSource> {
    let checkpoint = Checkpoint::open(folder)?;
    let index = &checkpoint.index;
    let text = index.manifest.clone();
    let name = "the checkpoint's manifest";
    let loaded = manifest::parse_saved(&text, name, Path::new("."), &[])?;
    let m = &loaded.manifest;
    let tensor_types =
        if index.is_import() { index.imported_types.clone() } else { Default::default() };
    let imported = index.imported.is_some();
    let carried = imported
        .then(|| carried_folder(folder, m))
        .filter(|folder| carries(folder));
    let tokenizer = tokenizer::own(folder, m.data.tokenizer.as_deref());
    let facts = describe(&checkpoint, m);
    Ok(ParamSource {
        facts,
        loaded,
        text,
        hugging_face: None,
        tensor_types,
        carried,
        tokenizer,
        reader: Box::new(OwnReader(checkpoint)),
        progress: None,
    })
}

/// Folder of an imported run with the files that were beside the weights.
fn carried_folder(checkpoint: &Path, m: &Manifest) -> PathBuf {
    let run = checkpoint.parent().and_then(Path::parent);
    let here = run.map(|run| run.join(hf::FOLDER));
    here.filter(|folder| folder.exists())
        .unwrap_or_else(|| m.log.folder.join(hf::FOLDER))
}

fn describe(checkpoint: &Checkpoint, m: &Manifest) -> RunDescription {
    let index = &checkpoint.index;
    let trainer = format!("gptrain {}", index.gptrain);
    let topology = &m.topology;
    let rule = &index.optimizer.rule;
    let without = || format!("the checkpoint has no states of AdamW; its optimizer is {rule}");
    RunDescription {
        step: index.progress.step,
        samples: index.progress.consumed_samples,
        tokens: index.consumed_tokens,
        grid: [topology.tensor, topology.pipeline, topology.data],
        updates: index.optimizer.groups.first().map_or(0, |group| group.step),
        lr: index.lr,
        loss_scale: index.loss_scale.map(LossScale::from),
        without_states: (!checkpoint.has_adamw()).then(without),
        ..RunDescription::new(Format::Gptrain, trainer, &checkpoint.folder)
    }
}

struct OwnReader(Checkpoint);

impl ParamReader for OwnReader {
    fn read(&mut self, _: &Model, param: &Param, state: AdamState) -> anyhow::Result<Vec<f32>> {
        let tensor = self.0.index.tensor(&param.name);
        let tensor = tensor.with_context(|| format!("the checkpoint has no {}", param.name))?;
        self.0.whole(tensor, state.saved_name())
    }
}
