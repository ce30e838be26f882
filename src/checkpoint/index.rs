//! `index.json`: everything about a checkpoint but its tensors' values, and where those lie.
//!
//! The file's last field is the digest of all that stands before it.

use super::digest::{self, CHUNK, Digest};
use crate::base::null_is_nan;
use crate::data::Plan;
use crate::engine::{Moment, Replica, Scale};
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// The file's name.
pub const NAME: &str = "index.json";
/// Raised when an older gptrain could not read what is written now.
const FORMAT: u32 = 1;
/// The longest index read: that of a model of 10¹³ parameters.
const MAX_BYTES: u64 = 1 << 30;

/// Where a run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Optimizer steps taken.
    pub step: u64,
    /// Where the next step's samples begin; a sample is a function of its number, so this is the
    /// whole state of the data, and of the batch ramp-up and the learning rate with it.
    pub consumed_samples: u64,
}

/// The state of a run beside its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Drawn when the run began; stays through resumes.
    pub run: String,
    #[serde(flatten)]
    pub progress: Progress,
    pub consumed_tokens: u64,
    /// Samples of the next step: where the batch ramp-up stands.
    pub next_batch: u64,
    /// Of the last step.
    pub lr: f64,
    /// Of an fp16 run that has begun; no other precision scales the loss.
    pub loss_scale: Option<Scale>,
    pub rng: Rng,
    pub optimizer: Optimizer,
    /// The last steps, oldest first.
    pub history: Vec<Past>,
    pub data: Vec<DataId>,
    /// Which datasets gave which samples so far, and are to give the rest.
    pub mixture: Plan,
    /// What the weights came from, if not from this run's own initial values.
    pub imported: Option<String>,
    /// The effective manifest, as YAML.
    pub manifest: String,
}

/// Every random number is a function of these and of a place (weight, sample, layer).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rng {
    pub generator: String,
    /// Of initial weights and dropout.
    pub seed: u64,
    /// Of the sample order.
    pub data_seed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    pub rule: String,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    pub groups: Vec<Group>,
}

/// Weights that are updated alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    pub weight_decay: f32,
    /// Updates so far, for the bias corrections.
    pub step: u64,
    pub tensors: Vec<String>,
}

/// A step that was taken.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Past {
    pub step: u64,
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Not finite where an fp16 step was skipped.
    #[serde(deserialize_with = "null_is_nan")]
    pub grad_norm: f64,
}

impl PartialEq for Past {
    /// To the last bit. Of numbers that are not finite a file tells nothing more.
    fn eq(&self, other: &Past) -> bool {
        let bits = |x: f64| x.is_finite().then_some(x.to_bits());
        let all = |past: &Past| (past.step, bits(past.loss), bits(past.grad_norm));
        all(self) == all(other)
    }
}

/// What tells one dataset from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataId {
    pub prefix: String,
    /// Bytes of `PREFIX.idx`, and their digest.
    pub index_bytes: u64,
    pub index_digest: Digest,
    /// Bytes of `PREFIX.bin`.
    pub token_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Index {
    pub format: u32,
    /// The version that wrote it.
    pub gptrain: String,
    #[serde(flatten)]
    pub state: State,
    pub tensors: Vec<Tensor>,
    pub shards: Vec<Shard>,
}

/// A weight of the model, with what the optimizer keeps of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    pub name: String,
    /// Of the whole: [rows, cols], or [cols]. Rows that only pad the vocabulary are not saved.
    pub shape: Vec<usize>,
    pub decay: bool,
    pub live: Live,
    pub master: Kept,
    pub first_moment: Kept,
    pub second_moment: Kept,
    /// Of what other ranks held of the same weight: equal to these, or they have drifted apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<Copied>,
}

/// Digests of a copy of a weight that was not saved: the last stage's of a tied embedding, or that
/// of a rank across which tensor parallelism does not split it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    pub replica: Replica,
    pub live: Digest,
    pub master: Digest,
    pub first_moment: Digest,
    pub second_moment: Digest,
}

/// The copy that forward and backward compute with, as it was in memory. Not saved: it is the master
/// weight, rounded; at every start the digest proves that it is the same again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    pub dtype: String,
    pub digest: Digest,
}

/// An f32 tensor on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Of the whole, however it is cut (`Digest::of_values`).
    pub digest: Digest,
    pub pieces: Vec<Piece>,
}

/// A rectangle of a tensor, in a shard, row by row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Index into `shards`.
    pub shard: usize,
    /// First byte in the file.
    pub byte: u64,
    /// First row and column.
    pub at: [usize; 2],
    /// Rows and columns.
    pub size: [usize; 2],
    /// Digests of the piece's bytes, 4 MiB at a time.
    #[serde(with = "digest::list")]
    pub chunks: Vec<Digest>,
}

/// A file of tensors, in the safetensors format.
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
        Index { format: FORMAT, gptrain, state, tensors, shards }
    }

    /// Updates made so far; a step that was skipped made none.
    pub fn updates(&self) -> u64 {
        self.loss_scale.map_or(self.progress.step, |scale| scale.updates)
    }

    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The file's text, its digest at the end.
    pub fn text(&self) -> anyhow::Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.truncate(text.len() - "\n}".len());
        text.push_str(BEFORE_DIGEST);
        let digest = xxh3_128(text.as_bytes());
        text.push_str(&format!("{digest:032x}{AFTER_DIGEST}"));
        Ok(text)
    }

    /// Reads and checks the index of a checkpoint. What it says of tensors and files is then known
    /// to be what was written, and to fit together; the files themselves have not been looked at.
    pub fn read(folder: &Path) -> anyhow::Result<Index> {
        let path = folder.join(NAME);
        let file = File::open(&path)
            .with_context(|| format!("{} is not a checkpoint", folder.display()))?;
        let damaged = || format!("{} is damaged", path.display());
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).with_context(damaged)?;
        Index::parse(&text).with_context(damaged)
    }

    /// An index from its file's text.
    pub fn parse(text: &str) -> anyhow::Result<Index> {
        let format = |key: &str| text.lines().find_map(|l| l.trim().strip_prefix(key));
        let version = format("\"format\": ").map(|v| v.trim_end_matches(','));
        if let Some(version) = version.and_then(|v| v.parse::<u32>().ok())
            && version > FORMAT
        {
            let by = format("\"gptrain\": ").unwrap_or("unknown").trim_end_matches(',');
            bail!(
                "format {version}: this gptrain reads {FORMAT}, use the version that wrote it ({by})"
            );
        }
        sealed(text)?;
        let index: Index = serde_json::from_str(text)?;
        ensure!(index.format == FORMAT, "format {} is unknown", index.format);
        index.check()?;
        Ok(index)
    }

    /// Whether it is about what it says: no name twice, each piece inside its tensor and its file,
    /// each tensor covered once.
    pub fn check(&self) -> anyhow::Result<()> {
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
            for moment in Moment::ALL {
                self.covers(tensor, moment)
                    .with_context(|| format!("tensor {}, {}", tensor.name, moment_name(moment)))?;
            }
        }
        Ok(())
    }

    fn covers(&self, tensor: &Tensor, moment: Moment) -> anyhow::Result<()> {
        let [rows, cols] = tensor.matrix()?;
        let pieces = &tensor.kept(moment).pieces;
        let mut area = 0;
        for (i, piece) in pieces.iter().enumerate() {
            let shard = self.shards.get(piece.shard).context("a piece is in no shard")?;
            let inside = |k: usize, all: usize| {
                piece.size[k] > 0
                    && piece.at[k].checked_add(piece.size[k]).is_some_and(|e| e <= all)
            };
            ensure!(inside(0, rows) && inside(1, cols), "piece {i} is not inside {rows}×{cols}");
            let bytes = 4 * (piece.size[0] * piece.size[1]) as u64;
            let end = piece.byte.checked_add(bytes);
            let in_data = piece.byte >= shard.header_bytes && piece.byte.is_multiple_of(4);
            let in_file = in_data && end.is_some_and(|e| e <= shard.bytes);
            ensure!(in_file, "piece {i} is not inside {}", shard.file);
            let chunks = bytes.div_ceil(CHUNK as u64) as usize;
            ensure!(piece.chunks.len() == chunks, "piece {i} has not {chunks} chunks");
            area += piece.size[0] * piece.size[1];
            let apart = |other: &Piece| {
                (0..2).any(|k| {
                    piece.at[k] + piece.size[k] <= other.at[k]
                        || other.at[k] + other.size[k] <= piece.at[k]
                })
            };
            ensure!(pieces[..i].iter().all(apart), "piece {i} lies over another");
        }
        ensure!(area == rows * cols, "{area} of {} values are there", rows * cols);
        Ok(())
    }
}

const BEFORE_DIGEST: &str = ",\n  \"digest\": \"";
const AFTER_DIGEST: &str = "\"\n}\n";
/// How every shard's name ends.
pub const SHARD_END: &str = ".safetensors";

/// The text ends with the digest of what comes before.
fn sealed(text: &str) -> anyhow::Result<()> {
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
    /// Of two parts of a copy together.
    pub fn and(self, more: Copied) -> Copied {
        Copied {
            replica: self.replica,
            live: self.live.and(more.live),
            master: self.master.and(more.master),
            first_moment: self.first_moment.and(more.first_moment),
            second_moment: self.second_moment.and(more.second_moment),
        }
    }
}

impl Tensor {
    pub fn kept(&self, moment: Moment) -> &Kept {
        match moment {
            Moment::Master => &self.master,
            Moment::First => &self.first_moment,
            Moment::Second => &self.second_moment,
        }
    }

    pub fn kept_mut(&mut self, moment: Moment) -> &mut Kept {
        match moment {
            Moment::Master => &mut self.master,
            Moment::First => &mut self.first_moment,
            Moment::Second => &mut self.second_moment,
        }
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// What was not the same in copies: "the first_moment of TP1 DP0".
    pub fn drifted(&self) -> Vec<String> {
        let differs = |copy: &Copied| {
            let pairs = [
                ("live weight", copy.live, self.live.digest),
                (moment_name(Moment::Master), copy.master, self.master.digest),
                (moment_name(Moment::First), copy.first_moment, self.first_moment.digest),
                (moment_name(Moment::Second), copy.second_moment, self.second_moment.digest),
            ];
            let replica = copy.replica;
            let different = pairs.into_iter().filter(|(_, copy, saved)| copy != saved);
            different.map(move |(what, ..)| format!("the {what} of {replica}")).collect::<Vec<_>>()
        };
        self.copies.iter().flat_map(differs).collect()
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

/// What a moment's shards are called.
pub fn moment_name(moment: Moment) -> &'static str {
    match moment {
        Moment::Master => "master",
        Moment::First => "first_moment",
        Moment::Second => "second_moment",
    }
}
