//! The user's wishes. Raw YAML goes in (`raw`), a `Manifest` that cannot be wrong comes out
//! (`check`), or every mistake at once, each with its line, the numbers and a remedy.
//!
//! Does not know devices, nor any file but its own. Nobody after this room validates or defaults
//! a setting again.

mod check;
mod effective;
mod keys;
mod near;
mod overrides;
pub mod raw;
mod read;
mod report;
mod runnable;
mod tree;

pub use keys::schema;
pub use read::{Loaded, load, parse};

pub use raw::GpuTransport;

use crate::plan::grid::Grid;
use crate::plan::ramp::Ramp;
use std::path::PathBuf;

/// One experiment, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub name: String,
    pub model: Model,
    pub precision: Precision,
    /// fp16 has one, and nothing else.
    pub loss_scale: Option<LossScale>,
    pub data: Data,
    pub batch: Batch,
    pub optimizer: Optimizer,
    pub lr: Lr,
    pub topology: Topology,
    pub comm: Comm,
    pub checkpoint: Checkpoint,
    pub log: Log,
    pub plan: Plan,
    pub train: Train,
}

/// The architecture.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub ffn_hidden: usize,
    /// Token ids are below this.
    pub vocab: usize,
    /// What `vocab` is rounded up to a multiple of, times `topology.tensor`.
    pub vocab_multiple: usize,
    /// Rows of the embedding: `vocab` rounded up so that it divides by tensor parallelism and tiles.
    pub vocab_padded: usize,
    pub seq_len: usize,
    pub position: Position,
    pub embedding_layernorm: bool,
    pub tied_head: bool,
    pub gelu: Gelu,
    pub layernorm_eps: f32,
    pub dropout: Dropout,
    /// Standard deviation of the initial weights.
    pub init_std: f32,
    /// Residual projections start smaller by 1/sqrt(2·layers) (GPT-2, Megatron).
    pub init_scale_residual: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// A table of seq_len learned vectors (GPT-2).
    Learned,
    /// Attention with linear biases, no table (BLOOM; Press et al. 2022).
    Alibi,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    Tanh,
    Exact,
}

/// Drop rates in [0, 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub embedding: f32,
    pub attention: f32,
    pub residual: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    F32,
    /// All numbers f32; a GPU's tensor cores round the operands of matrix products to 10 bits of
    /// fraction. A CPU cannot.
    Tf32,
    /// bf16 weights and activations, fp32 master weights and gradient accumulation.
    Bf16,
    /// The same in fp16, whose small gradients need a scale.
    Fp16,
}

/// What the loss is multiplied by before backward, and gradients are divided by before the update. A
/// step whose gradient is not finite updates nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// The run ends at the `hysteresis`th overflow without `window` updates in a row before it.
    Constant { scale: f64, window: u64, hysteresis: u64 },
    /// Doubles after `window` updates in a row; halves at each overflow from the `hysteresis`th
    /// since. The run ends at an overflow that should take it below `min`.
    Dynamic { initial: f64, min: f64, window: u64, hysteresis: u64 },
}

/// What is read, and how it is masked.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// Seed of the sample order.
    pub seed: u64,
    pub rule: DataRule,
    pub train: Vec<Dataset>,
    /// Later mixtures, each in place of the one before, in the order they begin.
    pub stages: Vec<DataStage>,
    /// Named validation sets, in the order written.
    pub valid: Vec<ValidSet>,
    /// Folder for orders of samples that take long to build, from where gptrain is started.
    pub cache: PathBuf,
    pub tokenizer: Option<PathBuf>,
    pub eod: Option<Eod>,
    pub objective: Objective,
}

/// What is trained on from one point of the run on.
#[derive(Clone, Debug, PartialEq)]
pub struct DataStage {
    /// The first sample that is read from these datasets.
    pub from: u64,
    pub train: Vec<Dataset>,
}

impl Data {
    /// Whether every sample's mask is plainly causal.
    pub fn causal(&self) -> bool {
        let whole = self.eod.is_none_or(|eod| !eod.reset_attention);
        self.objective == Objective::Causal && whole
    }

    /// What is trained on, and from which sample on.
    pub fn mixtures(&self) -> impl Iterator<Item = (u64, &[Dataset])> {
        let later = self.stages.iter().map(|stage| (stage.from, &stage.train[..]));
        std::iter::once((0, &self.train[..])).chain(later)
    }

    /// The datasets trained on, each once.
    pub fn train_prefixes(&self) -> Vec<&PathBuf> {
        let mut prefixes = Vec::new();
        for dataset in self.mixtures().flat_map(|(_, datasets)| datasets) {
            if !prefixes.contains(&&dataset.prefix) {
                prefixes.push(&dataset.prefix);
            }
        }
        prefixes
    }
}

/// Whose sample order is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataRule {
    MegatronCore,
    MegatronDeepSpeed,
}

/// A dataset, or a share of one, in a blend.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// `PREFIX` of `PREFIX.bin` and `PREFIX.idx`; relative paths are resolved against the manifest's folder.
    pub prefix: PathBuf,
    pub weight: f64,
    pub part: Part,
}

/// Which sequences of a dataset.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// One part (0 train, 1 valid, 2 test) of a split string such as `969,30,1`.
    Split { weights: String, which: usize },
    /// From one fraction of the sequences to another, `0.95..1.0`.
    Range(f64, f64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ValidSet {
    pub name: String,
    pub datasets: Vec<Dataset>,
}

/// What an end-of-document token changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eod {
    pub token: u32,
    /// No loss where the input is EOD.
    pub mask_loss: bool,
    pub reset_positions: bool,
    /// Tokens see only their own document.
    pub reset_attention: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    Causal,
    /// A random prefix of each sample (of each document under `reset_attention`) sees itself whole;
    /// the loss is on the rest.
    PrefixLm {
        loss_on_targets_only: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Samples a rank computes at once.
    pub micro: usize,
    /// Samples per optimizer step, after the ramp-up.
    pub global: usize,
    pub ramp_up: Option<RampUp>,
}

impl Batch {
    /// The global batch over the run.
    pub fn ramp(&self) -> Ramp {
        match self.ramp_up {
            None => Ramp::constant(self.global),
            Some(r) => Ramp::growing(r.start, r.increment, r.samples, self.global),
        }
    }
}

/// Megatron's `--rampup-batch-size START INCREMENT SAMPLES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RampUp {
    pub start: usize,
    pub increment: usize,
    /// Samples over which the batch grows from `start` to `global`.
    pub samples: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Optimizer {
    AdamW { beta1: f32, beta2: f32, eps: f32, weight_decay: f32, clip: Option<f32> },
}

/// The learning rate as a function of consumed samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Lr {
    pub peak: f64,
    pub min: f64,
    pub warmup_samples: u64,
    pub decay: Decay,
}

/// What happens after the warm-up; each ends at `samples`, and stays at `min` afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    Constant,
    Linear {
        samples: u64,
    },
    Cosine {
        samples: u64,
    },
    /// Warm-up, stable, decay: flat until `decay_from`, then linear to `min` at `samples`.
    Wsd {
        decay_from: u64,
        samples: u64,
    },
}

/// How the work is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub tensor: usize,
    pub pipeline: usize,
    pub data: usize,
    /// What replicas keep only a share of: 1 optimizer states, 2 gradients too, 3 weights too.
    pub zero: u8,
    pub sequence_parallel: bool,
    pub schedule: Schedule,
    pub layer_split: LayerSplit,
    pub neighbours: Neighbours,
    pub recompute: Recompute,
}

impl Schedule {
    /// Chunks of layers that each stage holds.
    pub fn chunks(self) -> usize {
        match self {
            Schedule::Interleaved { chunks } => chunks,
            Schedule::OneFOneB | Schedule::GPipe => 1,
        }
    }
}

impl Topology {
    /// tensor × pipeline × data.
    pub fn ranks(&self) -> usize {
        self.tensor * self.pipeline * self.data
    }

    /// Which rank does what.
    pub fn grid(&self) -> Grid {
        Grid {
            tensor: self.tensor,
            pipeline: self.pipeline,
            data: self.data,
            data_first: self.neighbours == Neighbours::Data,
        }
    }

    /// The same on one rank.
    pub fn alone(&self) -> Topology {
        Topology {
            tensor: 1,
            pipeline: 1,
            data: 1,
            zero: 0,
            sequence_parallel: false,
            schedule: Schedule::OneFOneB,
            layer_split: LayerSplit::Uniform,
            ..*self
        }
    }
}

/// The order of forwards and backwards in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    OneFOneB,
    /// `chunks` parts of the model per stage.
    Interleaved {
        chunks: usize,
    },
    GPipe,
}

/// How layers are cut into pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerSplit {
    Uniform,
    /// Embedding and head count as a layer each: the first and last stage hold one layer less
    /// (Megatron-DeepSpeed's `type:transformer|embedding`).
    TransformerAndEmbedding,
    /// As equal in cost as whole layers allow.
    Balanced,
    /// Layers of each stage.
    Explicit(Vec<usize>),
}

/// Which groups are laid side by side, next after the tensor-parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Ranks are numbered tensor first, then data, then pipeline (Megatron's order).
    Data,
    /// Tensor first, then pipeline, then data.
    Pipeline,
}

/// How much of forward is thrown away and rebuilt in backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    None,
    /// What is cheap to rebuild: norms and the activation function.
    Selective,
    /// Everything but each block's input.
    Full,
}

/// Ranks among each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Comm {
    /// How long a rank may wait for others in one operation.
    pub timeout_s: f64,
    /// How long ranks wait for each other at the start.
    pub start_timeout_s: f64,
    /// host:port of rank 0; `None` is derived from the job.
    pub rendezvous: Option<String>,
    /// Between ranks that compute on GPUs.
    pub gpu_transport: GpuTransport,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Steps between saves; the last step is always saved.
    pub interval: u64,
    /// How many of the newest are kept; `None` keeps all.
    pub keep_last: Option<usize>,
    /// Checkpoints at multiples of this step are kept too.
    pub keep_every: Option<u64>,
    /// Saves that may be written while training goes on; 0 waits for each.
    pub in_flight: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// Where the run's files go: `checkpoints/`, `metrics.jsonl`, `manifest.yaml`, `tensorboard/`.
    pub folder: PathBuf,
    /// Steps between log lines.
    pub interval: u64,
    pub tensorboard: bool,
    /// TFLOP/s of all devices together at their best, for MFU.
    pub peak_tflops: Option<f64>,
}

/// What is planned for; `gptrain estimate` has a default for each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub hardware: Option<String>,
    pub framework: Option<raw::Framework>,
    /// Of one device and hour.
    pub price: Option<f64>,
    pub budget: Option<f64>,
    /// Share of the calendar in which the run makes progress.
    pub availability: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Train {
    /// The length of the run.
    pub samples: u64,
    /// Steps between evaluations; `None` is never.
    pub eval_interval: Option<u64>,
    /// Samples read from each validation set at an evaluation.
    pub eval_samples: u64,
    /// Steps between comparisons of weights that must be equal on several ranks; `None` is never.
    pub audit_interval: Option<u64>,
    /// Seed of initial weights and dropout.
    pub seed: u64,
    /// CPU threads of each rank; `None` shares what there are among the ranks of a machine.
    pub threads: Option<usize>,
    pub device: DeviceChoice,
}

/// What the user asked to compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best there is.
    Auto,
    Cpu,
    Cuda,
}
