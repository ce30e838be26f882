//! Manifest that a run keeps in its folder: every setting with its value, except those whose default
//! follows from other settings, which remain as the user wrote them. `gptrain run FOLDER --set …`
//! therefore means what the user's file with the same `--set` means: the decay ends with the run, and
//! the validation set belongs to the training data.

use super::check::raw;
use super::choices::SpikeAction;
use super::data::{Blend, DatasetForm};
use super::forms::Raw;
use super::lr::DecayName;
use super::optimizers::{OptimizerForm, OptimizerSection};
use super::paths::resolve;
use super::{Data, Manifest};
use std::path::{Path, PathBuf};

/// Settings of a manifest as written, and the folder at which its relative paths start.
#[derive(Clone, Debug)]
pub struct Given {
    pub raw: Raw,
    pub folder: PathBuf,
}

/// Writes back what was given for some keys of a section.
macro_rules! as_given {
    ($raw:ident.$section:ident from $given:ident: $($key:ident),*) => {
        let given = $given.$section.clone().unwrap_or_default();
        if let Some(section) = &mut $raw.$section {
            $(section.$key = given.$key;)*
        }
    };
}

/// YAML of the manifest `m`, which was written as `given`. It loads to the same manifest from any
/// folder.
pub fn record(m: &Manifest, given: &Given) -> String {
    let mut raw = raw(m);
    let folder = &given.folder;
    let given = &given.raw;
    as_given!(raw.model from given: family, ffn, ffn_hidden, position, qk_norm, bias, norm,
        embedding_layernorm, tied_head, layernorm_eps);
    as_given!(raw.lr from given: warmup_samples, warmup_tokens, decay);
    as_given!(raw.topology from given: sequence_parallel, chunks, shard);
    as_given!(raw.log from given: folder);
    as_given!(raw.train from given: samples, tokens, steps, eval_interval, eval_samples);
    as_given!(raw.data from given: train, stages, valid, split, cache);
    raw.loss_scale = given.loss_scale.clone();
    // With a setting of its section, the default action is another one.
    raw.divergence = given.divergence.clone().or(Some(SpikeAction::Warn.into()));
    optimizer(&mut raw.optimizer, given.optimizer.clone());
    if let Some(lr) = &mut raw.lr {
        lr.decay.get_or_insert(DecayName::Cosine.into());
    }
    if let Some(data) = &mut raw.data {
        blends(data, &m.data, folder);
    }
    serde_saphyr::to_string(&raw).expect("plain structs are always written")
}

/// Restores the settings of optimizers whose default follows another setting.
fn optimizer(raw: &mut Option<OptimizerForm>, given: Option<OptimizerForm>) {
    let Some(OptimizerForm::Settings(section)) = raw else { return };
    let given = match given {
        Some(OptimizerForm::Settings(given)) => given,
        _ => OptimizerSection::default(),
    };
    if let Some(adafactor) = &mut section.adafactor {
        adafactor.scale_parameter = given
            .adafactor
            .and_then(|adafactor| adafactor.scale_parameter);
    }
    if let Some(adamw) = section.muon.as_mut().and_then(|muon| muon.adamw.as_mut()) {
        let given_adamw = given.muon.and_then(|muon| muon.adamw);
        adamw.weight_decay = given_adamw.and_then(|adamw| adamw.weight_decay);
    }
}

/// Resolves the prefixes of datasets, and puts validation sets in their order.
fn blends(raw: &mut super::data::raw::Data, data: &Data, folder: &Path) {
    let stages = raw
        .stages
        .iter_mut()
        .flatten()
        .filter_map(|stage| stage.train.as_mut());
    let valid = raw
        .valid
        .iter_mut()
        .flat_map(|sets| &mut sets.0)
        .map(|(_, blend)| blend);
    raw.train
        .iter_mut()
        .chain(stages)
        .chain(valid)
        .for_each(|blend| make_absolute(blend, folder));
    if let Some(sets) = &mut raw.valid {
        sets.0
            .sort_by_key(|(name, _)| data.valid.iter().position(|set| set.name == *name));
    }
}

fn make_absolute(blend: &mut Blend, folder: &Path) {
    let absolute = |prefix: &mut PathBuf| *prefix = resolve(folder, prefix);
    match blend {
        Blend::Prefix(prefix) => absolute(prefix),
        Blend::One(dataset) => dataset.prefix.iter_mut().for_each(absolute),
        Blend::Several(list) => {
            for form in list {
                match form {
                    DatasetForm::Prefix(prefix) => absolute(prefix),
                    DatasetForm::Full(dataset) => dataset.prefix.iter_mut().for_each(absolute),
                }
            }
        }
    }
}
