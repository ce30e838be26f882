//! `index.json`: everything about a checkpoint except the values of its tensors, and the location
//! of those values.
//!
//! The last field of the file is the digest of everything before it.

mod format1;
mod pieces;

use super::digest::{self, CHUNK, Digest};
use anyhow::{Context, bail, ensure};
use base::{DType, WrongInput, input, null_is_nan};
use data::MixturePlan;
use engine::{Extent, MASTER, MODEL, Replica, ScaleState, TensorSlice};
use plan::spikes::SpikeDetector;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// Name of the file.
pub const NAME: &str = "index.json";
/// Format version, increased when older versions of gptrain could not read the index. Format 1
/// named the states of AdamW one by one, as fields of a tensor.
const FORMAT: u32 = 2;
/// Size limit of an index: that of a model with 10¹³ parameters.
const MAX_BYTES: u64 = 1 << 30;

/// Progress of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Number of optimizer steps done.
    pub step: u64,
    /// First sample of the next step. A sample is a function of its number, so this is the whole
    /// state of the data, of the batch ramp-up and of the learning rate.
    pub consumed_samples: u64,
}

/// State of a run besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Random id, drawn when the run started and kept by resumes.
    pub run: String,
    #[serde(flatten)]
    pub progress: Progress,
    pub consumed_tokens: u64,
    /// Samples of the next step, according to the batch ramp-up.
    pub next_batch: u64,
    /// Learning rate of the last step.
    pub lr: f64,
    /// Loss scale of an fp16 run that has started; other precisions have none.
    pub loss_scale: Option<ScaleState>,
    /// Steps with a skipped update since the optimizer's states were initialised, in any precision.
    /// Older checkpoints have it only for fp16, in `loss_scale`.
    #[serde(default)]
    pub skipped_updates: u64,
    /// Delayed update of an earlier version of gptrain, which this one cannot apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<serde_json::Value>,
    pub rng: Rng,
    pub optimizer: Optimizer,
    /// Last steps, oldest first.
    pub history: Vec<PastStep>,
    pub data: Vec<DataId>,
    /// Datasets of all samples, past and future.
    pub mixture: MixturePlan,
    /// State of spike detection, including the samples left out for a spike; None if `divergence`
    /// is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spikes: Option<SpikeDetector>,
    /// Source of imported weights; None if the run started from its own initial values.
    pub imported: Option<String>,
    /// Types that an imported folder's tensors had there, by their names, without those of the run's own
    /// type; only until the first step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub imported_types: BTreeMap<String, String>,
    /// Effective manifest, as YAML.
    pub manifest: String,
}

impl State {
    /// Whether it holds imported weights without training. Then nothing else in it matters, and it
    /// has no optimizer states.
    pub fn is_import(&self) -> bool {
        self.imported.is_some() && self.progress.step == 0
    }
}

/// Seeds: every random number is a function of these and of a position (weight, sample, layer).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rng {
    pub generator: String,
    /// Seed of dropout, and of the initial weights unless `initial_seed` is another.
    pub seed: u64,
    /// Seed of the sample order.
    pub data_seed: u64,
    /// Seed of the initial weights, if it changed at a resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_seed: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    pub rule: String,
    /// Step at which its states were initialised: 0, or that of a resume with `--reset-optimizer`.
    #[serde(default, skip_serializing_if = "is_first")]
    pub began: u64,
    /// Updates that the states had counted beyond the steps: of an imported run, whose trainer made
    /// one with zero gradients before its first step.
    #[serde(default, skip_serializing_if = "is_first")]
    pub ahead: u64,
    /// Its constants by name, such as `beta1`.
    #[serde(flatten)]
    pub numbers: BTreeMap<String, f32>,
    pub groups: Vec<Group>,
}

fn is_first(step: &u64) -> bool {
    *step == 0
}

/// For example "adamw, beta1 0.9, beta2 0.95, eps 1e-8".
impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        for (name, number) in &self.numbers {
            match *number {
                tiny if (0.0..1e-3).contains(&tiny.abs()) => write!(f, ", {name} {tiny:e}")?,
                number => write!(f, ", {name} {number}")?,
            }
        }
        let step = self.began;
        if step == 0 { Ok(()) } else { write!(f, ", states from step {step} on") }
    }
}

/// Weights with equal optimizer settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub weight_decay: f32,
    /// Updates so far, for the bias correction.
    pub step: u64,
    pub tensors: Vec<String>,
}

/// Record of a step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PastStep {
    pub step: u64,
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Not finite if an fp16 step was skipped.
    #[serde(deserialize_with = "null_is_nan")]
    pub grad_norm: f64,
}

impl PartialEq for PastStep {
    /// Bit-exact comparison. JSON has no NaN, so all non-finite values compare equal.
    fn eq(&self, other: &PastStep) -> bool {
        let bits = |x: f64| x.is_finite().then_some(x.to_bits());
        let all = |past: &PastStep| (past.step, bits(past.loss), bits(past.grad_norm));
        all(self) == all(other)
    }
}

/// Identity of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataId {
    pub prefix: String,
    /// Bytes of `PREFIX.idx`, and their digest.
    pub index_bytes: u64,
    pub index_digest: Digest,
    /// Bytes of `PREFIX.bin`.
    pub token_bytes: u64,
    /// Digest of pieces of it, selected by the data seed. None in older checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_digest: Option<Digest>,
}

impl DataId {
    /// Whether the contents are equal, as far as both identities show. Paths may differ.
    pub fn same_content(&self, other: &DataId) -> bool {
        let index = |id: &DataId| (id.index_bytes, id.index_digest, id.token_bytes);
        let digests = self.token_digest.zip(other.token_digest);
        index(self) == index(other) && digests.is_none_or(|(ours, theirs)| ours == theirs)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    pub format: u32,
    /// Version of gptrain that wrote the checkpoint.
    pub gptrain: String,
    #[serde(flatten)]
    pub state: State,
    /// Whether the optimizer's states were removed after the save (`checkpoint.keep_weights_every`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub weights_only: bool,
    pub tensors: Vec<Tensor>,
    pub shards: Vec<Shard>,
}

/// Parameter of the model, with its states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "format1::AnyTensor")]
pub struct Tensor {
    pub name: String,
    /// Shape of the whole parameter: [rows, cols], or [cols]. Rows that pad the vocabulary are not
    /// saved.
    pub shape: Vec<usize>,
    pub decay: bool,
    pub states: BTreeMap<String, TensorState>,
    /// Digests of other ranks' copies of the same states. A difference means that the ranks have
    /// diverged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<Copied>,
}

/// One state of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorState {
    #[serde(default = "f32")]
    pub dtype: DType,
    #[serde(default, skip_serializing_if = "Extent::is_like")]
    pub extent: Extent,
    /// Digest of the whole state, independent of how it is split (`Digest::from_values`).
    pub digest: Digest,
    /// None for a state that is not saved. The model weight is the rounded master weight; its
    /// digest is checked at every start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pieces: Option<Vec<Piece>>,
}

/// Digests of a parameter's copy that was not saved: of the last stage's tied embedding, or of a
/// rank among which tensor parallelism does not split it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "format1::AnyCopied")]
pub struct Copied {
    pub replica: Replica,
    pub states: BTreeMap<String, Digest>,
}

/// Rectangle of a state, stored row by row in a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Index into `shards`.
    pub shard: usize,
    /// First byte in the file.
    pub byte: u64,
    #[serde(flatten)]
    pub slice: TensorSlice,
    /// Digests of the piece's bytes, per 4 MiB.
    #[serde(with = "digest::list")]
    pub chunks: Vec<Digest>,
}

fn f32() -> DType {
    DType::F32
}

/// File of tensors in the safetensors format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    pub file: String,
    pub bytes: u64,
    /// Bytes before the tensors, and their digest.
    pub header_bytes: u64,
    pub header_digest: Digest,
}

impl std::ops::Deref for Index {
    type Target = State;
    fn deref(&self) -> &State {
        &self.state
    }
}

impl Index {
    pub fn new(state: State, tensors: Vec<Tensor>, shards: Vec<Shard>) -> Index {
        let gptrain = env!("CARGO_PKG_VERSION").to_string();
        Index { format: FORMAT, gptrain, state, weights_only: false, tensors, shards }
    }

    /// Index of the same checkpoint without the optimizer's states.
    pub fn without_states(mut self) -> Index {
        self.format = FORMAT;
        self.weights_only = true;
        let is_weight = |name: &str| name == MASTER || name == MODEL;
        for tensor in &mut self.tensors {
            tensor.states.retain(|name, _| is_weight(name));
            for copy in &mut tensor.copies {
                copy.states.retain(|name, _| is_weight(name));
            }
        }
        let states = self
            .tensors
            .iter_mut()
            .flat_map(|tensor| tensor.states.values_mut());
        let mut pieces: Vec<&mut Piece> = states
            .filter_map(|state| state.pieces.as_mut())
            .flatten()
            .collect();
        let used: BTreeSet<usize> = pieces.iter().map(|piece| piece.shard).collect();
        let numbers: BTreeMap<usize, usize> = used.iter().copied().zip(0..).collect();
        for piece in &mut pieces {
            piece.shard = numbers[&piece.shard];
        }
        let shards = std::mem::take(&mut self.shards).into_iter().enumerate();
        self.shards = shards
            .filter(|(at, _)| used.contains(at))
            .map(|(_, shard)| shard)
            .collect();
        self
    }

    /// Updates since the optimizer's states were initialised. Skipped steps do not count.
    pub fn updates(&self) -> u64 {
        let counted = self.optimizer_steps().saturating_add(self.optimizer.ahead);
        let taken = counted.saturating_sub(self.skipped());
        self.loss_scale.map_or(taken, |scale| scale.updates)
    }

    /// Steps with a skipped update since then.
    pub fn skipped(&self) -> u64 {
        self.loss_scale
            .map_or(self.skipped_updates, |scale| scale.skipped)
    }

    /// Steps since the optimizer's states were initialised.
    pub fn optimizer_steps(&self) -> u64 {
        self.progress.step.saturating_sub(self.optimizer.began)
    }

    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Text of the file, with its digest at the end.
    pub fn text(&self) -> anyhow::Result<String> {
        seal(self)
    }

    /// Reads and verifies the index of a checkpoint. Its statements about tensors and files are
    /// then authentic and consistent. The files themselves are not read.
    pub fn read(folder: &Path) -> anyhow::Result<Index> {
        let path = folder.join(NAME);
        let not_one = || format!("{} is not a checkpoint: {NAME}", folder.display());
        let file = input::open(&path).map_err(|error| WrongInput::reading(error, not_one()))?;
        let damaged = || format!("{} is damaged", path.display());
        let mut text = String::new();
        let read = file.take(MAX_BYTES).read_to_string(&mut text);
        read.map_err(|error| WrongInput::reading(error, damaged()))?;
        Index::parse(&text).with_context(|| WrongInput(damaged()))
    }

    /// Parses an index.
    pub fn parse(text: &str) -> anyhow::Result<Index> {
        let format = |key: &str| text.lines().find_map(|l| l.trim().strip_prefix(key));
        let version = format("\"format\": ").map(|v| v.trim_end_matches(','));
        if let Some(version) = version.and_then(|v| v.parse::<u32>().ok())
            && version > FORMAT
        {
            let by = format("\"gptrain\": ")
                .unwrap_or("unknown")
                .trim_end_matches(',');
            bail!(
                "format {version}: this gptrain reads {FORMAT}, use the version that wrote it ({by})"
            );
        }
        check_seal(text)?;
        let index: Index = serde_json::from_str(text)?;
        ensure!((1..=FORMAT).contains(&index.format), "format {} is unknown", index.format);
        index.check()?;
        Ok(index)
    }

    /// Checks consistency: no duplicate name, each piece inside its tensor and file, each tensor
    /// covered exactly once.
    pub fn check(&self) -> anyhow::Result<()> {
        self.state.mixture.check().map_err(anyhow::Error::msg)?;
        let mut files = BTreeSet::new();
        for shard in &self.shards {
            let plain = !shard.file.contains(['/', '\\', '\0']) && shard.file.ends_with(SHARD_END);
            ensure!(plain, "{:?} cannot be a shard's name", shard.file);
            ensure!(files.insert(&shard.file), "shard {} is listed twice", shard.file);
            ensure!(shard.header_bytes <= shard.bytes, "shard {}: no room for it", shard.file);
        }
        let mut names = BTreeSet::new();
        for tensor in &self.tensors {
            ensure!(names.insert(&tensor.name), "tensor {} is listed twice", tensor.name);
            tensor.state(MODEL)?;
            for (name, state) in &tensor.states {
                self.covers(tensor, state)
                    .with_context(|| format!("tensor {}, {name}", tensor.name))?;
            }
        }
        Ok(())
    }

    fn covers(&self, tensor: &Tensor, state: &TensorState) -> anyhow::Result<()> {
        let [rows, cols] = tensor.shape_of(state)?;
        let Some(pieces) = &state.pieces else { return Ok(()) };
        let size = state.dtype.size() as u64;
        let mut area = 0;
        for (i, piece) in pieces.iter().enumerate() {
            let shard = self
                .shards
                .get(piece.shard)
                .context("a piece is in no shard")?;
            let TensorSlice { at, size: extent } = piece.slice;
            let inside = |k: usize, all: usize| {
                extent[k] > 0 && at[k].checked_add(extent[k]).is_some_and(|end| end <= all)
            };
            ensure!(inside(0, rows) && inside(1, cols), "piece {i} is not inside {rows}×{cols}");
            let bytes = size * piece.slice.numel() as u64;
            let end = piece.byte.checked_add(bytes);
            let in_data = piece.byte >= shard.header_bytes && piece.byte.is_multiple_of(size);
            let in_file = in_data && end.is_some_and(|e| e <= shard.bytes);
            ensure!(in_file, "piece {i} is not inside {}", shard.file);
            let chunks = bytes.div_ceil(CHUNK as u64) as usize;
            ensure!(piece.chunks.len() == chunks, "piece {i} does not have {chunks} chunks");
            area += piece.slice.numel();
        }
        let slices: Vec<&TensorSlice> = pieces.iter().map(|piece| &piece.slice).collect();
        if let (Some(i), _) = pieces::find_overlap(&slices) {
            bail!("piece {i} overlaps another");
        }
        ensure!(area == rows * cols, "{area} of {} values are present", rows * cols);
        Ok(())
    }
}

const BEFORE_DIGEST: &str = ",\n  \"digest\": \"";
const AFTER_DIGEST: &str = "\"\n}\n";
/// Suffix of every shard's name.
pub const SHARD_END: &str = ".safetensors";

/// JSON of a struct, with the digest of everything before it as its last field.
pub fn seal(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.truncate(text.len() - "\n}".len());
    text.push_str(BEFORE_DIGEST);
    let digest = xxh3_128(text.as_bytes());
    text.push_str(&format!("{digest:032x}{AFTER_DIGEST}"));
    Ok(text)
}

/// Checks that the text ends with the digest of everything before it.
pub fn check_seal(text: &str) -> anyhow::Result<()> {
    let cut = text.len().checked_sub(AFTER_DIGEST.len() + 32);
    let parts = cut.and_then(|at| Some((text.get(..at)?, text.get(at..)?)));
    let (before, seal) = parts
        .filter(|(before, _)| before.ends_with(BEFORE_DIGEST))
        .context("it does not end with its digest: cut short, or changed since it was written")?;
    let digest = format!("{:032x}{AFTER_DIGEST}", xxh3_128(before.as_bytes()));
    ensure!(seal == digest, "its digest is not that of its text: changed since it was written");
    Ok(())
}

impl Copied {
    /// Adds the digests of another part of the copy.
    pub fn add(&mut self, more: &Copied) {
        for (name, digest) in &more.states {
            let sum = self.states.entry(name.clone()).or_default();
            *sum = sum.and(*digest);
        }
    }
}

impl Tensor {
    /// State with this name.
    pub fn state(&self, name: &str) -> anyhow::Result<&TensorState> {
        self.states
            .get(name)
            .with_context(|| format!("{} has no {name}", self.name))
    }

    /// Type and extent of a saved state; None if its values are not saved.
    pub fn form(&self, name: &str) -> Option<(DType, Extent)> {
        let saved = self.states.get(name).filter(|state| state.pieces.is_some());
        saved.map(|state| (state.dtype, state.extent))
    }

    /// States whose values are saved.
    pub fn saved(&self) -> impl Iterator<Item = (&str, &TensorState)> {
        let saved = self
            .states
            .iter()
            .filter(|(_, state)| state.pieces.is_some());
        saved.map(|(name, state)| (name.as_str(), state))
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// States that differ between copies: "the first_moment of TP1 DP0".
    pub fn diverged(&self) -> Vec<String> {
        self.copies
            .iter()
            .flat_map(|copy| {
                let differs = copy.states.iter().filter(|(name, digest)| {
                    self.states
                        .get(*name)
                        .is_none_or(|state| state.digest != **digest)
                });
                let replica = copy.replica;
                let what = |name| if name == MODEL { "model weight" } else { name };
                differs
                    .map(|(name, _)| format!("the {} of {replica}", what(name.as_str())))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Rows and columns of a state.
    pub fn shape_of(&self, state: &TensorState) -> anyhow::Result<[usize; 2]> {
        let shape = self.matrix()?;
        ensure!(state.extent.fits(shape), "{}: {:?} of {shape:?}", self.name, state.extent);
        Ok(state.extent.shape(shape))
    }

    /// Rows and columns; a vector is one row.
    pub fn matrix(&self) -> anyhow::Result<[usize; 2]> {
        let [rows, cols] = match *self.shape.as_slice() {
            [cols] => [1, cols],
            [rows, cols] => [rows, cols],
            _ => bail!("{}: shape {:?}", self.name, self.shape),
        };
        let fits = rows.checked_mul(cols).is_some_and(|n| 0 < n && n < 1 << 60);
        ensure!(fits, "{}: shape {:?}", self.name, self.shape);
        Ok([rows, cols])
    }
}
