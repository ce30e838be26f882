//! Inspects a checkpoint without the run: its contents, its integrity, and its differences from
//! another. Reads a few MiB at a time.

mod diff;
mod numbers;
mod plot;
mod print;
mod stats;

pub use diff::{Change, Diff, diff, settings_by_key};
pub use plot::svg;
pub use print::scientific;
pub use stats::{RunningStats, Stats};

use super::Tensor;
use super::index::{DataId, Index, Optimizer, PastStep};
use super::read::{Buffer, Checkpoint};
use super::validate;
use base::in_order;
use base::progress::{Progress, Unit};
use engine::{MASTER, MODEL, ScaleState, optimizer_rule};
use manifest::{self, Manifest, Model};
use model::{Layout, ModelShard, Param};
use numbers::numbers;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Result of an inspection.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    pub overview: Overview,
    pub tensors: Vec<Row>,
    /// Problems that make it unfit for a resume. Empty means sound, as far as it was read.
    pub damage: Vec<String>,
    /// Unusual but harmless findings.
    pub notes: Vec<String>,
    /// Whether every value was read; otherwise only the weights.
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
    /// Loss scale of an fp16 run.
    pub loss_scale: Option<ScaleState>,
    pub last: Option<PastStep>,
    pub parameters: u64,
    pub bytes: u64,
    pub shards: usize,
    /// Whether the optimizer's states were removed.
    pub weights_only: bool,
    pub live_dtype: String,
    pub seed: u64,
    pub data_seed: u64,
    pub optimizer: Optimizer,
    pub data: Vec<DataId>,
}

/// Row of the table: one weight.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub shape: Vec<usize>,
    pub decay: bool,
    /// Whether it is bit-identical to its initial value.
    pub as_initialised: bool,
    /// Statistics of each state that was read, with 8-bit moments decoded. Without `--deep` only of
    /// the master weight.
    #[serde(flatten)]
    pub states: BTreeMap<String, Option<Stats>>,
}

/// Reads a checkpoint: the weights, or everything if `deep`. Fails if it cannot be read at all.
/// Damage inside it is reported in the result.
pub fn inspect(folder: &Path, deep: bool) -> anyhow::Result<Inspection> {
    let checkpoint = Checkpoint::open(folder)?;
    let index = &checkpoint.index;
    let mut damage = Vec::new();
    let mut notes: Vec<String> = checkpoint.strays()?.into_iter().map(stray).collect();
    let m = match manifest::parse_saved(&index.manifest, "its manifest", Path::new("."), &[]) {
        Ok(loaded) => Some(loaded.manifest),
        Err(problems) => {
            notes.push(format!("its manifest is not one of this version: {problems}"));
            None
        }
    };
    let layout = m
        .as_ref()
        .map(|m| Layout::new(&m.model, ModelShard::whole(&m.model)));
    let expected = m.as_ref().zip(layout.as_ref()).map(|(m, layout)| Expected {
        model: &m.model,
        seed: index.rng.initial_seed.unwrap_or(m.train.seed),
        largest_lr: largest_lr(index, m),
        layout,
        params: layout
            .params()
            .map(|param| (param.name.as_str(), param))
            .collect(),
    });
    if let Some(m) = &m {
        damage.extend(validate::model(index, &m.model, &*optimizer_rule(m)));
    }
    damage.extend(validate::groups(index));
    for tensor in &index.tensors {
        let diverged = tensor.diverged();
        if !diverged.is_empty() {
            let name = &tensor.name;
            let step = index.progress.step;
            damage.push(format!(
                "{name} was not the same on all ranks at step {step}: {} differ from the saved values",
                diverged.join(", ")
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
    format!("{name} is in the folder but not part of the checkpoint")
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
        weights_only: index.weights_only,
        live_dtype: index.tensors.first().map_or(String::new(), |t| {
            t.states
                .get(MODEL)
                .map_or(String::new(), |state| super::precision(state.dtype))
        }),
        seed: index.rng.seed,
        data_seed: index.rng.data_seed,
        optimizer: index.optimizer.clone(),
        data: index.data.clone(),
    }
}

/// Model of the checkpoint's own manifest.
struct Expected<'a> {
    model: &'a Model,
    seed: u64,
    /// Largest learning rate of the steps so far.
    largest_lr: f64,
    layout: &'a Layout,
    params: BTreeMap<&'a str, &'a Param>,
}

/// During warm-up the learning rate of the last step, afterwards the peak.
fn largest_lr(index: &Index, m: &Manifest) -> f64 {
    if index.progress.consumed_samples > m.lr.warmup_samples {
        m.lr.peak.max(index.lr)
    } else {
        index.lr
    }
}

impl Expected<'_> {
    /// Whether the steps so far could have changed a weight of this size. An update of AdamW is
    /// about as large as the learning rate, and a change below half the distance of two floats is
    /// lost.
    fn must_move(&self, master: &Stats) -> bool {
        let size = master.max.abs().max(master.min.abs());
        self.largest_lr > 2.0 * f64::from(f32::EPSILON) * size
    }

    /// Whether the weight is bit-identical to its value at step 0.
    fn as_initialised(&self, checkpoint: &Checkpoint, tensor: &Tensor) -> anyhow::Result<bool> {
        let Some(param) = self.params.get(tensor.name.as_str()) else { return Ok(false) };
        let [rows, cols] = tensor.matrix()?;
        let mut initial = Vec::new();
        let mut now = Buffer::default();
        for rows in super::row_blocks(tensor, MASTER, 0..rows)? {
            initial.resize(rows.len() * cols, 0.0f32);
            self.layout
                .init_rows(param, rows.start, self.model, self.seed, &mut initial);
            checkpoint.read(&mut now, tensor, MASTER, rows, 0..cols)?;
            if now.bytes() != bytemuck::cast_slice::<_, u8>(&initial) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Reads the tensors, several concurrently.
fn rows(
    checkpoint: &Checkpoint,
    deep: bool,
    expected: Option<&Expected>,
    damage: &mut Vec<String>,
) -> Vec<Row> {
    let tensors = &checkpoint.index.tensors;
    let threads = std::thread::available_parallelism()
        .map_or(1, |n| n.get())
        .min(8);
    let row = |_: &mut (), tensor| row(checkpoint, tensor, deep, expected);
    let mut rows = Vec::new();
    let numbers = tensors.iter().map(|tensor| tensor.numel() as u64).sum();
    let progress = Progress::new("inspecting", numbers, Unit::Items("numbers"));
    in_order(
        threads,
        threads,
        tensors,
        || (),
        row,
        |(row, found)| {
            progress.add(row.shape.iter().product::<usize>() as u64);
            rows.push(row);
            damage.extend(found);
            Ok(())
        },
    )
    .expect("the sink returns no error");
    rows
}

fn row(
    checkpoint: &Checkpoint,
    tensor: &Tensor,
    deep: bool,
    expected: Option<&Expected>,
) -> (Row, Vec<String>) {
    let mut damage = Vec::new();
    let mut kept = |state: &str, stats: anyhow::Result<Stats>| match stats {
        Ok(stats) => {
            check(checkpoint, tensor, state, &stats, &mut damage);
            Some(stats)
        }
        Err(error) => {
            damage.push(format!("{error:#}"));
            None
        }
    };
    let saved = tensor.saved().filter(|(name, _)| deep || *name == MASTER);
    let mut read: BTreeMap<&str, Option<Stats>> = saved
        .map(|(name, _)| (name, kept(name, Stats::read(checkpoint, tensor, name))))
        .collect();
    let mut states = BTreeMap::new();
    for numbers in numbers(checkpoint, tensor) {
        let name = numbers.name.clone();
        let stats = if numbers.is_made() && deep {
            kept(&name, Stats::from_numbers(&numbers))
        } else {
            read.remove(name.as_str()).flatten()
        };
        states.insert(name, stats);
    }
    let initial = expected.filter(|_| states.get(MASTER).is_some_and(Option::is_some));
    let as_initialised =
        initial.is_some_and(|e| e.as_initialised(checkpoint, tensor).unwrap_or(false));
    let index = &checkpoint.index;
    let master = states.get(MASTER).and_then(Option::as_ref);
    let must_move = expected
        .zip(master)
        .is_some_and(|(e, master)| e.must_move(master));
    if as_initialised && index.updates() > 0 && must_move && index.imported.is_none() {
        let step = index.progress.step;
        damage.push(format!("{} still has its initial values at step {step}", tensor.name));
    }
    let name = tensor.name.clone();
    let shape = tensor.shape.clone();
    let decay = tensor.decay;
    (Row { name, shape, decay, as_initialised, states }, damage)
}

impl Row {
    pub fn master(&self) -> Option<&Stats> {
        self.states.get(MASTER)?.as_ref()
    }

    /// Whether the numbers of a state are decoded from 8-bit codes.
    fn is_coded(&self, state: &str) -> bool {
        let moment = state.strip_suffix("_moment");
        moment.is_some_and(|moment| self.states.contains_key(&format!("{moment}_scales")))
    }
}

/// Checks the values of one state.
fn check(
    checkpoint: &Checkpoint,
    tensor: &Tensor,
    state: &str,
    stats: &Stats,
    damage: &mut Vec<String>,
) {
    let what = format!("{state} of {}", tensor.name);
    let digest = |name: &str| tensor.states.get(name).map(|state| state.digest);
    if let Some(saved) = digest(state).filter(|saved| *saved != stats.digest) {
        damage.push(format!("{what}: digest {}, saved {saved}", stats.digest));
    }
    let findings = stats.unsound.findings(state);
    damage.extend(findings.into_iter().map(|found| format!("{what}: {found}")));
    if state == MASTER
        && let Some(model) = tensor.states.get(MODEL)
        && stats.rounded != model.digest
    {
        damage.push(format!(
            "{}: the {} model weight at step {} was not the master weight, rounded",
            tensor.name, model.dtype, checkpoint.index.progress.step
        ));
    }
}
