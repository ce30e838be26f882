//! Inspects checkpoints of other programs as they are: facts, tensors with their states, and copies that
//! differ. Needs no setting that the files lack. `checkpoint::inspect` does the same for gptrain's own.
//!
//! | file | contents |
//! |---|---|
//! | `foreign` | checkpoints of other trainers |
//! | `hugging_face` | Hugging Face folders |
//! | `print` | output as text |

mod foreign;
mod hugging_face;
mod print;

use crate::foreign::{Drift, Format};
use anyhow::Result;
use base::Problems;
use checkpoint::inspect::Stats;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// Amount that is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// Small values: the facts.
    #[default]
    Facts,
    Weights,
    /// Weights and the optimizer's states.
    All,
}

/// Result of an inspection.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    pub overview: Overview,
    pub tensors: Vec<Row>,
    /// States whose copies on tensor ranks differ from the first rank's.
    pub copies: Vec<DriftedCopy>,
    /// Values that no update writes, and tensors that are missing or cannot be read.
    pub damage: Vec<String>,
    /// Unusual but harmless findings.
    pub notes: Vec<String>,
    pub read: Depth,
}

#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    pub folder: String,
    /// Word of `import --format`.
    pub format: &'static str,
    /// Program and version.
    pub trainer: String,
    /// None for weights alone.
    #[serde(flatten)]
    pub progress: Option<Progress>,
    pub parameters: u64,
    /// Reason why the optimizer's states are not read; None if they are.
    pub without_states: Option<String>,
    /// Settings of a manifest, as an import finds them.
    pub settings: Map<String, Value>,
    /// Settings that the files do not have.
    pub wanted: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Progress {
    pub step: u64,
    /// None if a setting that gives the number is not in the files.
    pub consumed_samples: Option<u64>,
    pub consumed_tokens: Option<u64>,
    /// Updates that Adam has counted; None without its states.
    pub updates: Option<u64>,
    pub lr: f64,
    pub loss_scale: Option<f64>,
    pub tensor: usize,
    pub pipeline: usize,
    pub data: usize,
}

/// A tensor in the files, with the shares of all tensor ranks.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub shape: Vec<usize>,
    /// Number of tensor ranks that have all of it.
    pub copies: usize,
    /// States that were read, by their names in gptrain's checkpoints.
    #[serde(flatten)]
    pub states: BTreeMap<&'static str, StateRow>,
}

#[derive(Clone, Debug, Serialize)]
pub struct StateRow {
    /// Type in the files.
    pub dtype: String,
    #[serde(flatten)]
    pub stats: Stats,
}

/// State of a tensor whose copies differ from the first rank's.
#[derive(Clone, Debug, Serialize)]
pub struct DriftedCopy {
    pub name: String,
    pub state: &'static str,
    /// Tensor rank whose copy differs most.
    pub rank: usize,
    /// Its largest difference.
    pub largest: f64,
    /// Whether it is the last stage's copy of the embedding.
    pub tied: bool,
}

impl DriftedCopy {
    fn new(drift: &Drift, tied: bool) -> DriftedCopy {
        let Drift { name, state, rank, largest } = drift.clone();
        DriftedCopy { name, state: state.saved_name(), rank, largest, tied }
    }
}

/// Inspects a checkpoint of a format other than gptrain's.
pub fn inspect(folder: &Path, format: Format, depth: Depth) -> Result<Inspection> {
    match format {
        // The states of the Trainer's optimizer have no names: they are read with the model, by an import.
        Format::HuggingFace | Format::HfTrainer => hugging_face::inspect(folder, depth),
        other => foreign::inspect(folder, other, depth),
    }
}

impl Inspection {
    /// Adds findings about the values of a state.
    fn check(&mut self, tensor: &str, state: &str, stats: &Stats, numel: usize) {
        let what = format!("{state} of {tensor}");
        let mut found = stats.unsound.findings(state);
        if stats.count != numel as u64 {
            found.push(format!("{} of {numel} values are in the files", stats.count));
        }
        self.damage
            .extend(found.into_iter().map(|found| format!("{what}: {found}")));
    }

    /// Adds a failure to read a tensor. Fails itself if the disk did, not the files.
    fn add_failure(&mut self, error: anyhow::Error) -> Result<()> {
        if !error.is::<Problems>() {
            return Err(error);
        }
        self.damage
            .push(format!("{error:#}").trim_end().to_string());
        Ok(())
    }
}
