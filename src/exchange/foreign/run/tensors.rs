//! Tensors of a run as its files have them, which needs no model: sizes, types, statistics, and copies
//! that differ.

use super::super::AdamState;
use super::super::replica_merger::ReplicaMerger;
use super::{ForeignRun, Source, Stored};
use crate::tensor_part::ParamKey;
use crate::torch::Element;
use checkpoint::inspect::{RunningStats, Stats};
use model::Weight;
use std::collections::BTreeMap;

/// A tensor in the files, with the shares of all tensor ranks.
pub struct FileTensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// States in the files.
    pub states: Vec<AdamState>,
    /// Number of tensor ranks that have all of it.
    pub copies: usize,
    /// Whether it is the last stage's copy of the embedding.
    pub is_tied: bool,
    layer: Option<usize>,
    source: Source,
}

/// Type and statistics of a state of a tensor.
pub struct StateLook {
    pub element: Element,
    pub stats: Stats,
}

impl FileTensor {
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

impl ForeignRun {
    /// Tensors of the files, in the model's order.
    pub fn tensors(&self) -> Vec<FileTensor> {
        let mut tensors = Vec::new();
        let mut keys: Vec<&ParamKey> = self.table.stored.keys().collect();
        keys.sort_by_key(|(weight, layer)| (module(*weight), *layer, *weight));
        for key in keys {
            // A state may be stored under a name that others do not have.
            let mut names: BTreeMap<&str, FileTensor> = BTreeMap::new();
            let (weight, layer) = *key;
            for Stored { source, states, .. } in &self.table.stored[key] {
                let read = self.found.read_states().iter();
                let states = read.filter(|state| states.contains(state));
                names
                    .entry(&source.name)
                    .or_insert_with(|| self.file_tensor(weight, layer, source))
                    .states
                    .extend(states);
            }
            let stored = names.into_values();
            tensors.extend(stored.filter(|tensor| !tensor.states.is_empty()));
        }
        number_layers(&mut tensors);
        tensors
    }

    fn file_tensor(&self, weight: Weight, layer: Option<usize>, source: &Source) -> FileTensor {
        let ranks = self.layout.ranks;
        let mut shape = source.shape.clone();
        let split = split_axis(weight);
        if let Some(size) = split.and_then(|axis| shape.get_mut(axis)) {
            *size *= ranks;
        }
        FileTensor {
            name: source.name.clone(),
            shape,
            layer,
            states: Vec::new(),
            copies: if split.is_none() { ranks } else { 1 },
            is_tied: weight == Weight::HeadW && self.has_tied_head(),
            source: source.clone(),
        }
    }

    /// Names of tensors that no parameter of gptrain has.
    pub fn unknown_tensors(&self) -> &[String] {
        &self.table.unknown
    }

    /// Whether the settings tie the head to the embedding.
    fn has_tied_head(&self) -> bool {
        match self.found.settings.get("model.tied_head") {
            Some(tied) => tied == "true",
            None => self.found.settings.get("model.family") != Some("llama"),
        }
    }

    /// Reads a state of a tensor, of all ranks. Copies that differ are in `copies` afterwards.
    pub fn look(&mut self, tensor: &FileTensor, state: AdamState) -> anyhow::Result<StateLook> {
        let element = self.reader.element(&tensor.source, state)?;
        let mut stats = RunningStats::default();
        if tensor.copies > 1 {
            let mut copies = Vec::new();
            for rank in 0..tensor.copies {
                copies.push(self.share(&tensor.source, rank, state)?);
            }
            stats.add(&copies[0]);
            self.merger.compare(&tensor.name, state, &copies);
            return Ok(StateLook { element, stats: stats.finish() });
        }
        for rank in 0..self.layout.ranks {
            let source = Source { rank, ..tensor.source.clone() };
            self.reader
                .read(&source, state, &mut |_, _, values| stats.add(values))?;
        }
        if tensor.is_tied && state == AdamState::Master {
            self.look_at_tied(tensor)?;
        }
        Ok(StateLook { element, stats: stats.finish() })
    }

    /// Compares the last stage's copy of the embedding with the first's, rank by rank.
    fn look_at_tied(&mut self, copy: &FileTensor) -> anyhow::Result<()> {
        let embedding = self.table.stored.get(&(Weight::TokenEmbed, None));
        let Some(embedding) = embedding.map(|stored| stored[0].source.clone()) else {
            return Ok(());
        };
        for rank in 0..self.layout.ranks {
            let first = self.share(&embedding, rank, AdamState::Master)?;
            let last = self.share(&copy.source, rank, AdamState::Master)?;
            self.merger
                .compare_tied(&copy.source.name, rank, &first, &last);
        }
        Ok(())
    }

    /// A rank's share of a tensor, row by row.
    fn share(
        &mut self,
        source: &Source,
        rank: usize,
        state: AdamState,
    ) -> anyhow::Result<Vec<f32>> {
        let source = Source { rank, ..source.clone() };
        let width = source.matrix()[1];
        let mut share = vec![0.0; source.numel()];
        self.reader
            .read(&source, state, &mut |[first, col], [_, cols], values| {
                for (row, values) in values.chunks(cols.max(1)).enumerate() {
                    let begin = (first + row) * width + col;
                    if let Some(to) = share.get_mut(begin..begin + values.len()) {
                        to.copy_from_slice(values);
                    }
                }
            })?;
        Ok(share)
    }

    /// Copies that differed in the states that were read.
    pub fn copies(&self) -> &ReplicaMerger {
        &self.merger
    }
}

/// Adds the layers to names that occur several times: of stages, and of tensors of all layers.
fn number_layers(tensors: &mut [FileTensor]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for tensor in tensors.iter() {
        *counts.entry(tensor.name.clone()).or_default() += 1;
    }
    for tensor in tensors.iter_mut().filter(|tensor| counts[&tensor.name] > 1) {
        match tensor.layer {
            Some(layer) => tensor.name += &format!(", layer {layer}"),
            None if tensor.is_tied => tensor.name += ", last stage",
            None => {}
        }
    }
}

/// Place of a weight's module in the model: before the blocks, in them, behind them.
fn module(weight: Weight) -> usize {
    use Weight::*;
    match weight {
        TokenEmbed | PosEmbed | EmbedLnScale | EmbedLnShift => 0,
        LnfScale | LnfShift | HeadW => 2,
        _ => 1,
    }
}

/// Axis along which tensor ranks have shares of a weight; None if each has all of it.
fn split_axis(weight: Weight) -> Option<usize> {
    use Weight::*;
    match weight {
        TokenEmbed | HeadW | QkvW | QkvB | Fc1W | Fc1B => Some(0),
        ProjW | Fc2W => Some(1),
        _ => None,
    }
}
