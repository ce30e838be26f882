//! A run that begins from weights of Hugging Face.

use super::{guard, resume, saving};
use crate::base::Problems;
use crate::checkpoint::disk::Disk;
use crate::checkpoint::hf::{Weights, read_config};
use crate::checkpoint::{self, Share, Values};
use crate::engine::{live_dtype, saved_shape};
use crate::manifest::{Loaded, Model};
use crate::model::{Layout, Part, Slot};
use anyhow::Context;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Writes the weights in `from` as step 0 of the manifest's run; `gptrain run` goes on from there.
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
    let layout = Layout::new(&m.model, Part::whole(&m.model));
    let slots: Vec<&Slot> = layout.slots().collect();
    let mut read = BTreeSet::new();
    let mut tensors = Vec::new();
    for slot in &slots {
        let shape = saved_shape(slot, m.model.vocab);
        let place = family.place(slot, &shape, m.model.heads);
        let place = place.with_context(|| format!("{} has no place in {from:?}", slot.name))?;
        let values = weights.read(&place, &shape)?;
        let live = live_dtype(m.precision).halves(&values);
        read.insert(place.name);
        tensors.push((shape, values, live));
    }
    let unread = weights.unread(family, &read, m.model.tied_head);
    if !unread.is_empty() {
        let what = format!("weights that the model has not: {}", unread.join(", "));
        let remedy = "the manifest's model must be the whole model";
        return Err(Problems::one(from.display().to_string(), what, remedy).into());
    }
    let zeros = vec![0.0; tensors.iter().map(|(_, values, _)| values.len()).max().unwrap_or(0)];
    let shares: Vec<Share> = slots
        .iter()
        .zip(&tensors)
        .enumerate()
        .map(|(number, (slot, (shape, values, live)))| Share {
            name: &slot.name,
            number,
            shape,
            decay: slot.spec.decay,
            at: [0, 0],
            replica: Default::default(),
            size: [values.len() / shape[shape.len() - 1], shape[shape.len() - 1]],
            kept: [values, &zeros[..values.len()], &zeros[..values.len()]],
            live: match live {
                Some(live) => Values::halves(live_dtype(m.precision), live),
                None => Values::F32(values),
            },
        })
        .collect();
    let mut state = saving::blank(loaded, resume::data_ids(m)?);
    state.imported = Some(format!("Hugging Face {} in {}", family.name(), from.display()));
    checkpoint::save(&Disk::default(), &checkpoints, &shares, &state)
}

/// The `model` section of a manifest for a Hugging Face folder.
pub fn model_section(from: &Path) -> anyhow::Result<String> {
    let (_, m) = read_config(from, None)?;
    let rows = rows(&m).into_iter().map(|(key, value)| format!("  {key}: {value}\n"));
    Ok(format!("model:\n{}", rows.collect::<String>()))
}

/// What must agree, as a manifest says it.
fn rows(m: &Model) -> Vec<(&'static str, String)> {
    vec![
        ("layers", m.layers.to_string()),
        ("hidden", m.hidden.to_string()),
        ("heads", m.heads.to_string()),
        ("ffn_hidden", m.ffn_hidden.to_string()),
        ("vocab", m.vocab.to_string()),
        ("seq_len", m.seq_len.to_string()),
        ("position", format!("{:?}", m.position).to_lowercase()),
        ("embedding_layernorm", m.embedding_layernorm.to_string()),
        ("tied_head", m.tied_head.to_string()),
        ("gelu", format!("{:?}", m.gelu).to_lowercase()),
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
