//! Inspection of a checkpoint of another trainer.

use super::{Depth, DriftedCopy, Inspection, Overview, Progress, Row, StateRow};
use crate::foreign::{self, AdamState, Choices, ForeignRun, Format, RunDescription};
use anyhow::Result;
use base::progress::{self, Unit};
use std::collections::BTreeMap;
use std::path::Path;

/// Names in a note, at most.
const LISTED: usize = 4;

pub fn inspect(folder: &Path, format: Format, depth: Depth) -> Result<Inspection> {
    let mut run = foreign::open(folder, format, &Choices::default())?;
    let tensors = run.tensors();
    let weights = tensors
        .iter()
        .filter(|tensor| !tensor.is_tied && tensor.states.contains(&AdamState::Master));
    let parameters = weights.map(|tensor| tensor.numel() as u64).sum();
    let mut found = Inspection {
        overview: overview(run.description(), parameters),
        tensors: Vec::new(),
        copies: Vec::new(),
        damage: Vec::new(),
        notes: notes(&run),
        read: depth,
    };
    if depth == Depth::Facts {
        return Ok(found);
    }
    let is_read = |state: &AdamState| depth == Depth::All || *state == AdamState::Master;
    let mut numbers = 0;
    for tensor in &tensors {
        let states = tensor.states.iter().filter(|state| is_read(state));
        numbers += (tensor.numel() * states.count()) as u64;
    }
    let progress = progress::Progress::new("inspecting", numbers, Unit::Items("numbers"));
    for tensor in &tensors {
        let mut states = BTreeMap::new();
        for state in tensor.states.iter().copied().filter(is_read) {
            let name = state.saved_name();
            match run.look(tensor, state) {
                Ok(look) => {
                    found.check(&tensor.name, name, &look.stats, tensor.numel());
                    let dtype = look.element.short_name().to_string();
                    states.insert(name, StateRow { dtype, stats: look.stats });
                }
                Err(error) => found.add_failure(error)?,
            }
            progress.add(tensor.numel() as u64);
        }
        let name = tensor.name.clone();
        let shape = tensor.shape.clone();
        found
            .tensors
            .push(Row { name, shape, copies: tensor.copies, states });
    }
    let copies = run.copies();
    found.copies = copies
        .drifts()
        .iter()
        .map(|drift| DriftedCopy::new(drift, false))
        .collect();
    found
        .copies
        .extend(copies.tied().map(|drift| DriftedCopy::new(drift, true)));
    Ok(found)
}

fn overview(found: &RunDescription, parameters: u64) -> Overview {
    // The numbers of samples and tokens depend on settings.
    let known = |count: u64| Some(count).filter(|_| found.wanted.is_empty());
    let [tensor, pipeline, data] = found.grid;
    Overview {
        folder: found.folder.clone(),
        format: found.format.word(),
        trainer: found.trainer.clone(),
        progress: Some(Progress {
            step: found.step,
            consumed_samples: known(found.samples),
            consumed_tokens: known(found.tokens),
            updates: Some(found.updates).filter(|_| found.without_states.is_none()),
            lr: found.lr,
            loss_scale: found.loss_scale.map(|scale| scale.scale),
            tensor,
            pipeline,
            data,
        }),
        parameters,
        without_states: found.without_states.clone(),
        settings: found
            .settings
            .0
            .iter()
            .map(|row| (row.key.clone(), row.value.clone().into()))
            .collect(),
        wanted: found.wanted.iter().map(|row| row.key).collect(),
    }
}

/// Notes of an import, and tensors that it would refuse.
fn notes(run: &ForeignRun) -> Vec<String> {
    let found = run.description();
    let mut notes: Vec<String> = found
        .notes
        .iter()
        .map(|note| format!("an import says: {note}"))
        .collect();
    let unknown = run.unknown_tensors();
    if !unknown.is_empty() {
        let shown = &unknown[..unknown.len().min(LISTED)];
        let rest = match unknown.len() - shown.len() {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        notes.push(format!("tensors that are not in gptrain's model: {}{rest}", shown.join(", ")));
    }
    notes
}
