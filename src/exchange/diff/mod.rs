//! Compares two checkpoints of any formats, tensor by tensor, and explains the first differences.
//! `checkpoint::inspect` does it for two of gptrain's own, with everything that a run resumes from.
//!
//! | file | contents |
//! |---|---|
//! | `difference` | explains the difference between two tensors |
//! | `orders` | orders that programs give to the rows of a weight |
//! | `print` | output as text |

mod difference;
mod orders;
mod print;

use crate::foreign::{self, AdamState, Choices, Format, Needed, RunDescription};
use crate::source::{self, ONE_RANK, ParamSource};
use anyhow::Result;
use base::Count;
use base::progress::{Progress, Unit};
use checkpoint::inspect::Change;
use difference::{Difference, Form, Kind, Side, explain, is_same, rounded};
use engine::{model_dtype, saved_shape};
use manifest::{FREE_MODEL_SETTINGS, Ffn, Model};
use model::{Layout, ModelShard, Param};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Differences of B from A.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    pub a: String,
    pub b: String,
    /// Step and samples, where they differ.
    pub state: Vec<Change>,
    /// Settings of the model that change what it computes, where they differ.
    pub settings: Vec<Change>,
    /// States of the parameters that both have.
    pub compared: Vec<&'static str>,
    /// Compared tensors; none if the two models have other shapes.
    pub tensors: Vec<TensorDiff>,
    /// Weights of which one side has only those in 16 bits that the other computes with.
    pub rounded: usize,
    pub notes: Vec<String>,
}

/// Result for a state of a parameter.
#[derive(Clone, Debug, Serialize)]
pub struct TensorDiff {
    pub name: String,
    pub state: &'static str,
    pub equal: bool,
    #[serde(flatten)]
    pub difference: Option<Difference>,
}

/// Compares two checkpoints. `sets` are settings that files lack, in place of those of the other one.
pub fn diff(a: &Path, b: &Path, sets: &[String]) -> Result<Diff> {
    let [mut a, mut b] = open(a, b, sets)?;
    let mut diff = Diff {
        a: describe(a.facts()),
        b: describe(b.facts()),
        state: changed_state(a.facts(), b.facts()),
        settings: changed_settings(&a.manifest().model, &b.manifest().model),
        compared: Vec::new(),
        tensors: Vec::new(),
        rounded: 0,
        notes: Vec::new(),
    };
    let ours = a.manifest().model.clone();
    let theirs = b.manifest().model.clone();
    let layouts = [&ours, &theirs].map(|model| Layout::new(model, ModelShard::whole(model)));
    let [params, others] = layouts
        .each_ref()
        .map(|layout| layout.params().collect::<Vec<_>>());
    if !have_same_shapes([&params, &others], [&ours, &theirs]) {
        return Ok(diff);
    }
    let has = |source: &ParamSource, state| source.facts().read_states().contains(&state);
    let states: Vec<AdamState> = AdamState::ALL
        .into_iter()
        .filter(|state| has(&a, *state) && has(&b, *state))
        .collect();
    diff.compared = states.iter().map(|state| state.saved_name()).collect();
    let numbers = params
        .iter()
        .map(|param| param.numel() * states.len())
        .sum::<usize>();
    let progress = Progress::new("comparing", numbers as u64, Unit::Items("numbers"));
    for (param, other) in params.into_iter().zip(others) {
        for state in states.iter().copied() {
            let x = a.read(param, state)?;
            let y = b.read(other, state)?;
            let is_rounded = state == AdamState::Master
                && !is_same(&x, &y)
                && are_model_weights([&a, &b], [&x, &y]);
            diff.rounded += usize::from(is_rounded);
            let found = if is_rounded { None } else { compare(&ours, param, &x, &y) };
            diff.tensors.push(TensorDiff {
                name: param.name.clone(),
                state: state.saved_name(),
                equal: found.is_none(),
                difference: found,
            });
            progress.add(param.numel() as u64);
        }
    }
    diff.add_notes([&mut a, &mut b]);
    Ok(diff)
}

/// Opens both. Settings of the model that the files of one lack are those of the other.
fn open(a: &Path, b: &Path, sets: &[String]) -> Result<[ParamSource; 2]> {
    let wanted_of_a = wanted(a, sets);
    let wanted_of_b = wanted(b, sets);
    if wanted_of_a.is_empty() {
        let a = open_one(a, sets)?;
        let given = given_by(&a.manifest().model, &wanted_of_b);
        return Ok([a, open_one(b, &[sets, &given].concat())?]);
    }
    if !wanted_of_b.is_empty() {
        return Ok([open_one(a, sets)?, open_one(b, sets)?]); // the error lists them
    }
    let b = open_one(b, sets)?;
    let given = given_by(&b.manifest().model, &wanted_of_a);
    Ok([open_one(a, &[sets, &given].concat())?, b])
}

fn open_one(path: &Path, sets: &[String]) -> Result<ParamSource> {
    let mut all = Vec::new();
    if foreign_format(path).is_some() {
        all.extend(ONE_RANK.map(String::from));
        all.extend_from_slice(sets);
    }
    source::open(path, &Choices { sets: all, needed: Needed::Tensors, ..Choices::default() })
}

/// Format of another trainer; None for gptrain and Hugging Face.
fn foreign_format(path: &Path) -> Option<Format> {
    let format = foreign::detect(path).ok()?;
    Some(format).filter(|format| *format != Format::HuggingFace)
}

/// Settings of the model that a folder's files lack, without those in `sets`.
fn wanted(path: &Path, sets: &[String]) -> Vec<&'static str> {
    let choices = Choices { sets: sets.to_vec(), ..Choices::default() };
    let run = foreign_format(path).and_then(|format| foreign::open(path, format, &choices).ok());
    let Some(run) = run else { return Vec::new() };
    let keys = run.description().wanted.iter().map(|row| row.key);
    keys.filter(|key| Needed::Tensors.has(key)).collect()
}

/// These settings of a model, as `KEY=VALUE`.
fn given_by(model: &Model, keys: &[&'static str]) -> Vec<String> {
    let settings = Value::from(manifest::model_settings(model));
    let mut sets = Vec::new();
    for key in keys {
        let path = key.trim_start_matches("model.").split('.');
        let value = path.fold(&settings, |value, name| &value[name]);
        if !value.is_null() {
            sets.push(format!("{key}={value}"));
        }
    }
    sets
}

fn describe(facts: &RunDescription) -> String {
    format!("{} ({})", facts.folder, facts.trainer)
}

fn changed_state(a: &RunDescription, b: &RunDescription) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut compare = |what: &str, a: u64, b: u64| {
        if a != b {
            changes.push(Change { what: what.into(), a: a.to_string(), b: b.to_string() });
        }
    };
    // Hugging Face folders have no progress, and some files no number of samples.
    if [a, b]
        .iter()
        .all(|facts| facts.format != Format::HuggingFace)
    {
        compare("step", a.step, b.step);
        if a.samples > 0 && b.samples > 0 {
            compare("consumed samples", a.samples, b.samples);
        }
    }
    if a.without_states.is_none() && b.without_states.is_none() {
        compare("updates", a.updates, b.updates);
    }
    changes
}

/// Settings that differ between two models, except those that do not change what the weights compute.
fn changed_settings(a: &Model, b: &Model) -> Vec<Change> {
    let [a, b] = [a, b].map(manifest::model_settings);
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let text = |value: Option<&Value>| match value {
        None => "–".to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let mut changes = Vec::new();
    for key in keys {
        let what = format!("model.{key}");
        let free = FREE_MODEL_SETTINGS.contains(&what.as_str()) || key == "seq_len";
        if !free && a.get(key) != b.get(key) {
            changes.push(Change { what, a: text(a.get(key)), b: text(b.get(key)) });
        }
    }
    changes
}

/// Whether two models have the same parameters, up to rows of the vocabulary.
fn have_same_shapes(params: [&[&Param]; 2], models: [&Model; 2]) -> bool {
    let [a, b] = params;
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| {
            let [mut shape, mut other] =
                [saved_shape(a, models[0].vocab), saved_shape(b, models[1].vocab)];
            if a.spec.vocab {
                shape[0] = 0;
                other[0] = 0;
            }
            a.name == b.name && shape == other
        })
}

/// Whether one has weights alone, which are those that the other computes with in 16 bits.
fn are_model_weights(sources: [&ParamSource; 2], values: [&[f32]; 2]) -> bool {
    (0..2).any(|side| {
        let alone = sources[1 - side].facts().without_states.is_some();
        let dtype = model_dtype(sources[side].manifest().precision);
        alone && rounded(values[side], dtype).is_some_and(|own| is_same(&own, values[1 - side]))
    })
}

/// Difference between two values of a parameter; None if there is none. One may have more rows of the
/// vocabulary.
fn compare(model: &Model, param: &Param, a: &[f32], b: &[f32]) -> Option<Difference> {
    let cols = if param.spec.rows == 1 { 1 } else { param.spec.cols };
    let form = Form {
        weight: param.spec.weight,
        heads: model.heads(),
        gated: model.ffn == Ffn::Swiglu,
        cols,
    };
    let common = a.len().min(b.len());
    let difference = if is_same(&a[..common], &b[..common]) {
        None
    } else {
        Some(explain(&a[..common], &b[..common], form))
    };
    let rounded = match &difference {
        Some(Difference { kind: Kind::Rounding, rounded }) => *rounded,
        Some(_) => return difference,
        None => None,
    };
    if a.len() == b.len() {
        return difference;
    }
    let only_in = if a.len() > b.len() { Side::A } else { Side::B };
    let first = common / cols;
    let last = (a.len().max(b.len()) / cols).checked_sub(1)?;
    Some(Difference { kind: Kind::Padding { only_in, first, last }, rounded })
}

impl Diff {
    fn add_notes(&mut self, sources: [&mut ParamSource; 2]) {
        for (source, side) in sources.into_iter().zip(["A", "B"]) {
            if let Some(why) = &source.facts().without_states {
                self.notes.push(format!(
                    "{side} has no moments, so the weights alone are compared: {why}"
                ));
            }
            let remarks = source.remarks().into_iter();
            self.notes
                .extend(remarks.map(|remark| format!("{side}: {remark}")));
        }
        if self.rounded > 0 {
            let count = Count(self.rounded as u64).with_noun("weight");
            self.notes.push(format!(
                "{count} are compared in the 16 bits with which a step computes: one side has no others"
            ));
        }
    }

    /// Whether both have the same model, and the same values in all states that both have.
    pub fn equal(&self) -> bool {
        self.settings.is_empty()
            && !self.tensors.is_empty()
            && self.tensors.iter().all(|tensor| tensor.equal)
    }
}
