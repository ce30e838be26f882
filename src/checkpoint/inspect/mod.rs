//! Looking into a checkpoint without the run: what it holds, whether it is sound, how it differs
//! from another. Reads a few MiB at a time.

mod diff;
mod plot;
mod print;
mod stats;

pub use diff::{Diff, diff};
pub use plot::svg;
pub use stats::Stats;

use super::Tensor;
use super::against;
use super::index::{DataId, Optimizer, Past, moment_name};
use super::read::Checkpoint;
use crate::engine::{Moment, Scale};
use crate::manifest::{self, Model};
use crate::model::{Layout, Part, Slot};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What was found in a checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    pub overview: Overview,
    pub tensors: Vec<Row>,
    /// What makes it unfit to go on from. Empty is sound, as far as was looked.
    pub damage: Vec<String>,
    /// What is odd and harmless.
    pub notes: Vec<String>,
    /// Whether every value was read, and not only the weights.
    pub deep: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    pub folder: String,
    pub gptrain: String,
    pub run: String,
    pub imported: Option<String>,
    pub step: u64,
    pub consumed_samples: u64,
    pub consumed_tokens: u64,
    pub next_batch: u64,
    pub lr: f64,
    /// Of an fp16 run.
    pub loss_scale: Option<Scale>,
    pub last: Option<Past>,
    pub parameters: u64,
    pub bytes: u64,
    pub shards: usize,
    pub live_dtype: String,
    pub seed: u64,
    pub data_seed: u64,
    pub optimizer: Optimizer,
    pub data: Vec<DataId>,
}

/// One weight.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub shape: Vec<usize>,
    pub decay: bool,
    /// Bit for bit what the run began with.
    pub as_initialised: bool,
    pub master: Option<Stats>,
    /// With `--deep`.
    pub first_moment: Option<Stats>,
    pub second_moment: Option<Stats>,
}

/// Opens and reads a checkpoint: the weights, or everything if `deep`. An error is a checkpoint
/// that cannot be read at all; what is wrong inside one is in the list of damage.
pub fn inspect(folder: &Path, deep: bool) -> anyhow::Result<Inspection> {
    let checkpoint = Checkpoint::open(folder)?;
    let index = &checkpoint.index;
    let mut damage = Vec::new();
    let mut notes: Vec<String> = checkpoint.strays()?.into_iter().map(stray).collect();
    let model = match manifest::parse(&index.manifest, "its manifest", Path::new("."), &[]) {
        Ok(loaded) => Some((loaded.manifest.model, loaded.manifest.train.seed)),
        Err(problems) => {
            notes.push(format!("its manifest is not one of this version: {problems}"));
            None
        }
    };
    let layout = model.as_ref().map(|(model, _)| Layout::new(model, Part::whole(model)));
    let expected = model.as_ref().zip(layout.as_ref()).map(|((model, seed), layout)| Expected {
        model,
        seed: *seed,
        layout,
        slots: layout.slots().map(|slot| (slot.name.as_str(), slot)).collect(),
    });
    if let Some((model, _)) = &model {
        damage.extend(against::model(index, model));
    }
    damage.extend(against::groups(index));
    for tensor in &index.tensors {
        let drifted = tensor.drifted();
        if !drifted.is_empty() {
            let (name, step) = (&tensor.name, index.progress.step);
            damage.push(format!(
                "{name} was not the same everywhere at step {step}: {} differ from what is here",
                drifted.join(", ")
            ));
        }
    }
    let tensors = rows(&checkpoint, deep, expected.as_ref(), &mut damage);
    if !deep {
        notes.push("only the weights were read: --deep reads and verifies everything".into());
    }
    Ok(Inspection { overview: overview(&checkpoint), tensors, damage, notes, deep })
}

fn stray(name: String) -> String {
    format!("{name} is in its folder, but not part of it")
}

fn overview(checkpoint: &Checkpoint) -> Overview {
    let index = &checkpoint.index;
    Overview {
        folder: checkpoint.folder.display().to_string(),
        gptrain: index.gptrain.clone(),
        run: index.run.clone(),
        imported: index.imported.clone(),
        step: index.progress.step,
        consumed_samples: index.progress.consumed_samples,
        consumed_tokens: index.consumed_tokens,
        next_batch: index.next_batch,
        lr: index.lr,
        loss_scale: index.loss_scale,
        last: index.history.last().copied(),
        parameters: index.tensors.iter().map(|t| t.numel() as u64).sum(),
        bytes: index.shards.iter().map(|shard| shard.bytes).sum(),
        shards: index.shards.len(),
        live_dtype: index.tensors.first().map_or(String::new(), |t| t.live.dtype.clone()),
        seed: index.rng.seed,
        data_seed: index.rng.data_seed,
        optimizer: index.optimizer.clone(),
        data: index.data.clone(),
    }
}

/// The model of the checkpoint's own manifest.
struct Expected<'a> {
    model: &'a Model,
    seed: u64,
    layout: &'a Layout,
    slots: BTreeMap<&'a str, &'a Slot>,
}

impl Expected<'_> {
    /// Whether the weight is what it was at step 0, down to the last value.
    fn as_initialised(&self, checkpoint: &Checkpoint, tensor: &Tensor) -> anyhow::Result<bool> {
        let Some(slot) = self.slots.get(tensor.name.as_str()) else { return Ok(false) };
        let [rows, cols] = tensor.matrix()?;
        let (mut initial, mut now) = (Vec::new(), Vec::new());
        for rows in super::row_blocks(tensor, Moment::Master, 0..rows)? {
            initial.resize(rows.len() * cols, 0.0);
            now.resize(rows.len() * cols, 0.0);
            self.layout.init_rows(slot, rows.start, self.model, self.seed, &mut initial);
            checkpoint.read(tensor, Moment::Master, rows, 0..cols, &mut now)?;
            if now.iter().zip(&initial).any(|(a, b)| a.to_bits() != b.to_bits()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reads the tensors, several at once.
fn rows(
    checkpoint: &Checkpoint,
    deep: bool,
    expected: Option<&Expected>,
    damage: &mut Vec<String>,
) -> Vec<Row> {
    let tensors = &checkpoint.index.tensors;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(tensor) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = row(checkpoint, tensor, deep, expected);
                    done.lock().unwrap_or_else(|held| held.into_inner()).push(row);
                }
            });
        }
    });
    let place = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
    let mut done = done.into_inner().unwrap_or_else(|held| held.into_inner());
    done.sort_by_key(|(row, _)| place(&row.name));
    done.into_iter()
        .map(|(row, mut found)| {
            damage.append(&mut found);
            row
        })
        .collect()
}

fn row(
    checkpoint: &Checkpoint,
    tensor: &Tensor,
    deep: bool,
    expected: Option<&Expected>,
) -> (Row, Vec<String>) {
    let mut damage = Vec::new();
    let mut stats = |moment| match Stats::of(checkpoint, tensor, moment) {
        Ok(stats) => {
            check(checkpoint, tensor, moment, &stats, &mut damage);
            Some(stats)
        }
        Err(error) => {
            damage.push(format!("{error:#}"));
            None
        }
    };
    let master = stats(Moment::Master);
    let rest =
        [Moment::First, Moment::Second].map(|moment| if deep { stats(moment) } else { None });
    let [first_moment, second_moment] = rest;
    let initial = expected.filter(|_| master.is_some());
    let as_initialised =
        initial.is_some_and(|e| e.as_initialised(checkpoint, tensor).unwrap_or(false));
    let index = &checkpoint.index;
    if as_initialised && index.updates() > 0 && index.lr > 0.0 && index.imported.is_none() {
        let step = index.progress.step;
        damage.push(format!("{} is still what it began as, at step {step}", tensor.name));
    }
    let (name, shape, decay) = (tensor.name.clone(), tensor.shape.clone(), tensor.decay);
    (Row { name, shape, decay, as_initialised, master, first_moment, second_moment }, damage)
}

/// What must hold of the values of one tensor.
fn check(
    checkpoint: &Checkpoint,
    tensor: &Tensor,
    moment: Moment,
    stats: &Stats,
    damage: &mut Vec<String>,
) {
    let what = format!("{} of {}", moment_name(moment), tensor.name);
    if stats.digest != tensor.kept(moment).digest {
        damage.push(format!(
            "{what}: digest {}, saved {}",
            stats.digest,
            tensor.kept(moment).digest
        ));
    }
    if !stats.finite() {
        damage.push(format!("{what}: {} NaN, {} infinite", stats.nan, stats.inf));
    }
    if moment == Moment::Second && stats.negative > 0 {
        damage.push(format!("{what}: {} values below 0", stats.negative));
    }
    if moment == Moment::Master && stats.rounded != tensor.live.digest {
        damage.push(format!(
            "{}: the live {} weight at step {} was not the master weight, rounded",
            tensor.name, tensor.live.dtype, checkpoint.index.progress.step
        ));
    }
}
