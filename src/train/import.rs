//! Starts a run from Hugging Face weights.

use super::{guard, resume, saving};
use crate::base::Problems;
use crate::checkpoint::disk::Disk;
use crate::checkpoint::hf::{Weights, read_config, tensor_of};
use crate::checkpoint::{self, Share};
use crate::engine::{Initial, TensorSlice, model_dtype, rule, saved_shape};
use crate::manifest::{Loaded, Model};
use crate::model::{Layout, ModelShard, Param};
use anyhow::Context;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Writes the weights in `from` as the checkpoint of step 0 of the manifest's run.
pub fn import(from: &Path, loaded: &Loaded) -> anyhow::Result<PathBuf> {
    let m = &loaded.manifest;
    let _lock = guard::FolderLock::take(&m.log.folder)?;
    let checkpoints = saving::folder(m);
    if let Some(found) = checkpoint::latest(&checkpoints)? {
        let what = format!("the run has a checkpoint already: {}", found.folder.display());
        let remedy = "import into a new run: --set log.folder=DIR";
        return Err(Problems::one(loaded.source.display().to_string(), what, remedy).into());
    }
    let (family, model) = read_config(from, Some(&m.model))?;
    same_model(&model, &m.model, from)?;
    let weights = Weights::open(from)?;
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let params: Vec<&Param> = layout.params().collect();
    let mut read = BTreeSet::new();
    let mut tensors = Vec::new();
    for param in &params {
        let shape = saved_shape(param, m.model.vocab);
        let theirs = tensor_of(family, param, &shape, m.model.heads());
        let theirs = theirs.with_context(|| format!("{} has no place in {from:?}", param.name))?;
        let values = weights.read(&theirs, &shape)?;
        let rounded = model_dtype(m.precision).halves(&values);
        read.insert(theirs.name);
        tensors.push((shape, values, rounded));
    }
    let unread = weights.unread(family, &read, m.model.tied_head);
    if !unread.is_empty() {
        let what = format!("weights that the model has not: {}", unread.join(", "));
        let remedy = "the manifest's model must be the whole model";
        return Err(Problems::one(from.display().to_string(), what, remedy).into());
    }
    let zeros = vec![0u8; 4 * tensors.iter().map(|(_, values, _)| values.len()).max().unwrap_or(0)];
    let rule = rule(m);
    let mut shares = Vec::new();
    for (number, (param, (shape, values, rounded))) in params.iter().zip(&tensors).enumerate() {
        let cols = shape[shape.len() - 1];
        let states = rule.states(&param.spec).into_iter();
        for state in states.filter(|state| !state.extent.serves_exchange()) {
            let size = state.extent.shape([values.len() / cols, cols]);
            let slice = TensorSlice { at: [0, 0], size };
            let bytes: &[u8] = match (state.init, rounded) {
                (Initial::Normal, _) => unreachable!("of the exchange of gradients alone"),
                (Initial::Zero, _) => &zeros[..slice.numel() * state.dtype.size()],
                (Initial::CastOf(_), Some(bits)) => bytemuck::cast_slice(bits),
                (Initial::CastOf(_), None) | (Initial::Parameter, _) => {
                    bytemuck::cast_slice(values)
                }
            };
            let (name, decay, replica) = (&param.name, param.spec.decay, Default::default());
            shares.push(Share { name, number, shape, decay, state, slice, replica, bytes });
        }
    }
    let mut state = saving::initial_state(loaded, resume::data_ids(m)?);
    state.imported = Some(format!("Hugging Face {} in {}", family.name(), from.display()));
    checkpoint::save(&Disk::default(), &checkpoints, &shares, &state)
}

/// The `model` section of a manifest for a Hugging Face folder.
pub fn model_section(from: &Path) -> anyhow::Result<String> {
    let (_, m) = read_config(from, None)?;
    let rows = rows(&m).into_iter().map(|(key, value)| format!("  {key}: {value}\n"));
    Ok(format!("model:\n{}", rows.collect::<String>()))
}

/// The settings that must be equal, as written in a manifest.
fn rows(m: &Model) -> Vec<(&'static str, String)> {
    vec![
        ("family", m.family.name().to_string()),
        ("layers", m.layers.to_string()),
        ("hidden", m.hidden.to_string()),
        ("heads", m.heads.to_string()),
        ("ffn_hidden", m.ffn_hidden.to_string()),
        ("vocab", m.vocab.to_string()),
        ("seq_len", m.seq_len.to_string()),
        ("position", m.position.name().name().to_string()),
        ("embedding_layernorm", m.embedding_layernorm.to_string()),
        ("tied_head", m.tied_head.to_string()),
        ("gelu", m.gelu.name().to_string()),
        ("layernorm_eps", format!("{:e}", m.layernorm_eps)),
    ]
}

fn same_model(theirs: &Model, ours: &Model, from: &Path) -> Result<(), Problems> {
    let mut problems = Problems::default();
    for ((key, theirs), (_, ours)) in rows(theirs).into_iter().zip(rows(ours)) {
        if theirs != ours {
            problems.add(
                from.join("config.json").display().to_string(),
                format!("model.{key} is {theirs} there, {ours} in the manifest"),
                format!("--set model.{key}={theirs}"),
            );
        }
    }
    problems.or(())
}
