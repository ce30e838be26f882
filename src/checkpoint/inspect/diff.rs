//! Comparison of two checkpoints: what changed, and by how much.

use super::numbers::{Numbers, numbers};
use crate::read::Buffer;
use crate::{Checkpoint, Index, Tensor};
use base::progress::{Progress, Unit};
use engine::MASTER;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Differences of B from A.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    pub a: String,
    pub b: String,
    /// Values in A and B of step, learning rate, groups, data, manifest, …, where they differ.
    pub state: Vec<Change>,
    pub tensors: Vec<TensorDiff>,
    pub only_in_a: Vec<String>,
    pub only_in_b: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Change {
    pub what: String,
    pub a: String,
    pub b: String,
}

/// Change of a weight.
#[derive(Clone, Debug, Serialize)]
pub struct TensorDiff {
    pub name: String,
    /// Whether all states are bit-identical.
    pub equal: bool,
    /// ‖B − A‖ / ‖A‖ of each saved state, with 8-bit moments decoded. Infinite if A is zero, or if
    /// one of the two lacks the state.
    #[serde(flatten)]
    pub states: BTreeMap<String, f64>,
    /// Largest change of a single weight.
    pub largest: f64,
}

/// Compares two checkpoints, written by any grids. Every byte read is verified.
pub fn diff(a: &Path, b: &Path) -> anyhow::Result<Diff> {
    let a = Checkpoint::open(a)?;
    let b = Checkpoint::open(b)?;
    let mut tensors = Vec::new();
    let missing = |from: &Checkpoint, to: &Checkpoint| -> Vec<String> {
        let names = from.index.tensors.iter().map(|tensor| &tensor.name);
        names
            .filter(|name| to.index.tensor(name).is_none())
            .cloned()
            .collect()
    };
    let mut state = states(&a.index, &b.index);
    let total = a
        .index
        .tensors
        .iter()
        .map(|tensor| tensor.numel() as u64)
        .sum();
    let progress = Progress::new("comparing", total, Unit::Items("numbers"));
    for tensor in &a.index.tensors {
        progress.add(tensor.numel() as u64);
        let Some(other) = b.index.tensor(&tensor.name) else { continue };
        if tensor.shape != other.shape {
            let a = format!("{:?}", tensor.shape);
            let b = format!("{:?}", other.shape);
            state.push(Change { what: format!("shape of {}", tensor.name), a, b });
            continue;
        }
        let mut saved = tensor.saved().chain(other.saved());
        let same = |name: &str| same(tensor, other, name);
        let equal = saved.all(|(name, _)| same(name));
        let mut states = BTreeMap::new();
        let mut largest = 0.0;
        let before = numbers(&a, tensor);
        let after = numbers(&b, other);
        for x in &before {
            let found = after.iter().find(|y| y.name == x.name);
            let (change, most) = match found {
                Some(y) if x.sources() == y.sources() && x.sources().into_iter().all(same) => {
                    (0.0, 0.0)
                }
                Some(y) => moved(x, y)?,
                None => MISSING,
            };
            states.insert(x.name.clone(), change);
            if x.name == MASTER {
                largest = most;
            }
        }
        for y in after {
            states.entry(y.name).or_insert(MISSING.0);
        }
        tensors.push(TensorDiff { name: tensor.name.clone(), equal, states, largest });
    }
    Ok(Diff {
        state,
        tensors,
        only_in_a: missing(&a, &b),
        only_in_b: missing(&b, &a),
        a: a.folder.display().to_string(),
        b: b.folder.display().to_string(),
    })
}

/// Whether a state is bit-identical in both.
fn same(a: &Tensor, b: &Tensor, state: &str) -> bool {
    let form = |tensor: &Tensor| {
        tensor
            .states
            .get(state)
            .map(|s| (s.dtype, s.extent, s.digest))
    };
    form(a) == form(b)
}

/// Change of a state that one of the two lacks, or has in another shape.
const MISSING: (f64, f64) = (f64::INFINITY, f64::INFINITY);

/// Relative change of a state, and the largest change of one value.
fn moved(a: &Numbers, b: &Numbers) -> anyhow::Result<(f64, f64)> {
    if a.shape()? != b.shape()? {
        return Ok(MISSING);
    }
    let mut before = Buffer::default();
    let mut after = Buffer::default();
    let mut norm = 0.0;
    let mut change = 0.0;
    let mut largest = 0.0f64;
    for rows in a.blocks()? {
        let x = a.read(&mut before, rows.clone())?;
        let y = b.read(&mut after, rows)?;
        for (x, y) in x.into_iter().zip(y) {
            let x = f64::from(x);
            let y = f64::from(y);
            norm += x * x;
            change += (y - x) * (y - x);
            largest = largest.max((y - x).abs());
        }
    }
    let relative = if change == 0.0 { 0.0 } else { change.sqrt() / norm.sqrt() };
    Ok((relative, largest))
}

/// Text of a field of an index.
type Field = fn(&Index) -> String;

/// Compared fields, except the tensors and the manifest.
const FIELDS: &[(&str, Field)] = &[
    ("run", |index| index.run.clone()),
    ("gptrain", |index| index.gptrain.clone()),
    ("step", |index| index.progress.step.to_string()),
    ("consumed samples", |index| index.progress.consumed_samples.to_string()),
    ("next batch", |index| index.next_batch.to_string()),
    ("learning rate", |index| index.lr.to_string()),
    ("loss scale", |index| {
        index
            .loss_scale
            .map_or("none".into(), |s| s.scale.to_string())
    }),
    ("last loss", |index| {
        index
            .history
            .last()
            .map_or("none".into(), |s| s.loss.to_string())
    }),
    ("optimizer", |index| index.optimizer.to_string()),
    ("optimizer groups", |index| {
        joined(index.optimizer.groups.iter().map(|g| {
            format!("{} tensors, decay {}, step {}", g.tensors.len(), g.weight_decay, g.step)
        }))
    }),
    ("seeds", |index| format!("{:?}", index.rng)),
    ("data", |index| {
        joined(
            index
                .data
                .iter()
                .map(|id| format!("{} {}", id.prefix, id.index_digest)),
        )
    }),
];

/// Differences in everything except the tensors.
fn states(a: &Index, b: &Index) -> Vec<Change> {
    let fields = FIELDS
        .iter()
        .map(|(what, text)| (what.to_string(), text(a), text(b)));
    let before = settings_by_key(&a.manifest);
    let now = settings_by_key(&b.manifest);
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let shown = |value: Option<&Value>| match value {
        None => "–".to_string(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let differ = fields
        .chain(
            keys.into_iter()
                .map(|key| (key.clone(), shown(before.get(key)), shown(now.get(key)))),
        )
        .filter(|(_, a, b)| a != b);
    differ.map(|(what, a, b)| Change { what, a, b }).collect()
}

/// Settings of a manifest by full key (`batch.global`); a list is one value.
pub fn settings_by_key(manifest: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    if let Ok(tree) = serde_saphyr::from_str::<Value>(manifest) {
        flatten("", tree, &mut all);
    }
    all
}

fn flatten(key: &str, value: Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(below) if !below.is_empty() => {
            for (name, value) in below {
                let whole = if key.is_empty() { name } else { format!("{key}.{name}") };
                flatten(&whole, value, all);
            }
        }
        value => {
            all.insert(key.to_string(), value);
        }
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" · ")
}

impl Diff {
    /// Whether a run would resume identically from both.
    pub fn equal(&self) -> bool {
        let tensors = self.tensors.iter().all(|tensor| tensor.equal);
        tensors && self.only_in_a.is_empty() && self.only_in_b.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::settings_by_key;

    #[test]
    fn settings_have_their_whole_keys() {
        let settings =
            settings_by_key("batch: {micro: 1, global: 8}\ndata: {stages: []}\nname: a\n");
        let keys: Vec<&String> = settings.keys().collect();
        assert_eq!(keys, ["batch.global", "batch.micro", "data.stages", "name"]);
    }
}
