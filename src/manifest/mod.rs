//! Experiment as declared by the user. YAML is parsed (`tree`), read by the table of settings
//! (`settings`), and checked (`check`). The result is a valid `Manifest`, or all mistakes at once,
//! each with its line, the numbers and a remedy.
//!
//! Does not know devices, nor any file but its own. No other crate validates settings or fills in
//! defaults.

mod check;
pub mod choices;
mod cluster;
mod define;
mod family;
mod forms;
mod inference;
mod keys;
mod layers;
mod lr;
mod notes;
mod optimizers;
mod overrides;
pub mod place;
mod read;
mod removed;
mod report;
mod rewrite;
mod rope;
mod settings;
mod suggest;
mod tree;

pub use base::Gelu;
pub use check::{model_section, model_settings};
pub use choices::{
    Bias, DataRule, DeviceChoice, Ffn, Framework, GpuTransport, GradientHome, LayerAttention,
    LogFormat, LrCounted, MuonScale, NormKind, OffloadWhat, OnEnd, Precision, RankOrder, Recompute,
    Schedule, SpikeAction,
};
pub use cluster::{Comm, Restart, Slurm};
pub use family::{Architecture, Family};
pub use inference::for_inference;
pub use keys::{schema, settings};
pub use layers::LayerKind;
pub use lr::{Decay, Span, Wsd};
pub use optimizers::{Adafactor, Adam8bit, AdamW, Muon, MuonAdamW, Optimizer, OptimizerName};
pub use read::{IN_FOLDER, Loaded, Sound, load, load_also, parse, parse_saved};
pub use rewrite::rewrite;
pub use rope::{Linear, Llama3, Position, Rope, RopeScaling, Yarn};
pub use settings::{
    Batch, Checkpoint, Data, Divergence, Dropout, Eod, EvalTask, Init, Log, Lr, Model, Mup,
    Objective, Offload, Plan, PowerSgd, PrefixLm, RampUp, Topology, Train,
};

use base::Heads;
use plan::grid::{self, Axis, Grid};
use plan::ramp::Ramp;
use settings::raw;
use std::path::PathBuf;

/// One experiment, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub name: String,
    pub model: Model,
    pub precision: Precision,
    /// Only `Some` with precision fp16.
    pub loss_scale: Option<LossScale>,
    pub data: Data,
    pub batch: Batch,
    pub optimizer: Optimizer,
    pub lr: Lr,
    pub topology: Topology,
    pub comm: Comm,
    pub restart: Restart,
    pub checkpoint: Checkpoint,
    pub divergence: Divergence,
    pub slurm: Slurm,
    pub log: Log,
    pub plan: Plan,
    pub train: Train,
}

impl Manifest {
    /// Whether the home of gradients (host or device) is still to be decided.
    pub fn gradients_are_open(&self) -> bool {
        let Offload { what, gradients, .. } = self.topology.offload;
        let stay = self.topology.compression.is_some()
            || matches!(self.optimizer, Optimizer::Adafactor(_));
        what != OffloadWhat::None && gradients == GradientHome::Auto && !stay
    }

    /// The same manifest with gradients in `home`.
    pub fn with_gradients(&self, home: GradientHome) -> Manifest {
        let mut m = self.clone();
        m.topology.offload.gradients = home;
        m
    }
}

impl Ffn {
    /// Default inner width: 4 × hidden, or with gates two thirds of that, rounded as in Llama.
    fn hidden(self, hidden: usize) -> usize {
        match self {
            Ffn::Gelu => 4 * hidden,
            Ffn::Swiglu => (8 * hidden / 3).next_multiple_of(256),
        }
    }
}

impl Model {
    /// Attention heads: by default as many key/value heads, each of hidden / heads columns.
    pub fn heads(&self) -> Heads {
        let kv = self.kv_heads.unwrap_or(self.heads);
        let dim = self.head_dim.unwrap_or(self.hidden / self.heads);
        Heads { query: self.heads, kv, dim }
    }

    /// Tokens of the longest text that the model can read: rows of the table of learned positions,
    /// else `seq_len`.
    pub fn context(&self) -> usize {
        self.positions.unwrap_or(self.seq_len)
    }

    /// Rows of the feed-forward layer's first matrix. Under SwiGLU gate and value rows of the
    /// second matrix's columns alternate, so that any share of them is a rectangle.
    pub fn ffn_rows(&self) -> usize {
        match self.ffn {
            Ffn::Gelu => self.ffn_hidden,
            Ffn::Swiglu => 2 * self.ffn_hidden,
        }
    }
}

/// Factor of the loss before backward, by which gradients are divided before the update. A step
/// with a non-finite gradient updates nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScale {
    /// The run ends at the `hysteresis`th overflow without `window` updates in a row before it.
    Constant { scale: f64, window: u64, hysteresis: u64 },
    /// Doubles after `window` updates in a row. Halves at each overflow from the `hysteresis`th
    /// since then. The run ends at an overflow that would reduce it below `min`.
    Dynamic { initial: f64, min: f64, window: u64, hysteresis: u64 },
}

/// Training datasets from one sample of the run on.
#[derive(Clone, Debug, PartialEq)]
pub struct DataStage {
    /// First sample read from them.
    pub from: u64,
    pub train: Vec<Dataset>,
}

impl Data {
    /// Whether every sample has a plain causal mask.
    pub fn causal(&self) -> bool {
        let cut = self.eod.is_some_and(|eod| eod.reset_attention) || self.inter_document_masking;
        self.objective == Objective::Causal && !cut
    }

    /// Mixtures of training datasets, each with its first sample.
    pub fn mixtures(&self) -> impl Iterator<Item = (u64, &[Dataset])> {
        let later = self.stages.iter().map(|stage| (stage.from, &stage.train[..]));
        std::iter::once((0, &self.train[..])).chain(later)
    }

    /// Training datasets without duplicates.
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

/// Dataset, or a share of one, in a blend.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// `PREFIX` of `PREFIX.bin` and `PREFIX.idx`; relative to the manifest's folder.
    pub prefix: PathBuf,
    pub weight: f64,
    pub part: Sequences,
}

/// Selection of a dataset's sequences.
#[derive(Clone, Debug, PartialEq)]
pub enum Sequences {
    /// One part (0 train, 1 valid, 2 test) of a split string such as `969,30,1`.
    Split { weights: String, which: usize },
    /// Range between two fractions of the sequences, `0.95..1.0`.
    Range(f64, f64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ValidSet {
    pub name: String,
    pub datasets: Vec<Dataset>,
}

/// Manifest for tests of any crate.
#[cfg(any(test, feature = "testing"))]
pub fn of_test<S: ToString>(text: &str, sets: &[S]) -> Manifest {
    let sets: Vec<String> = sets.iter().map(S::to_string).collect();
    let loaded = parse(text, "test", std::path::Path::new("."), &sets);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).manifest
}

/// Sizes of a model without defaults.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub vocab: usize,
    pub seq_len: usize,
}

impl Model {
    /// Model of a family with these sizes over `tensor` ranks, with defaults otherwise.
    pub fn with_defaults(family: Family, sizes: Sizes, tensor: usize) -> Model {
        let Sizes { layers, hidden, heads, vocab, seq_len } = sizes;
        let written = raw::Model {
            family: Some(family),
            layers: Some(layers),
            hidden: Some(hidden),
            heads: Some(heads),
            vocab: Some(vocab),
            seq_len: Some(seq_len),
            ..raw::Model::default()
        };
        Model::read(written, tensor)
    }
}

impl Batch {
    /// Global batch over the run.
    pub fn ramp(&self) -> Ramp {
        match self.ramp_up {
            None => Ramp::constant(self.global),
            Some(r) => Ramp::growing(r.start, r.increment, r.samples, self.global),
        }
    }
}

impl Topology {
    /// Number of ranks: tensor × pipeline × data.
    pub fn ranks(&self) -> usize {
        self.tensor * self.pipeline * self.data
    }

    /// Grid of ranks.
    pub fn grid(&self) -> Grid {
        let order = match self.neighbours {
            RankOrder::Data => grid::DATA_FIRST,
            RankOrder::Pipeline => grid::STAGES_FIRST,
        };
        let sizes =
            [(Axis::Tensor, self.tensor), (Axis::Pipeline, self.pipeline), (Axis::Data, self.data)];
        Grid::new(order, &sizes)
    }

    /// The same topology without any parallelism.
    pub fn single_rank(&self) -> Topology {
        Topology {
            tensor: 1,
            pipeline: 1,
            data: 1,
            zero: 0,
            sequence_parallel: false,
            schedule: Schedule::OneFOneB,
            chunks: 1,
            layer_split: LayerSplit::Uniform,
            compression: None,
            ..*self
        }
    }
}

impl Offload {
    /// No data on the host.
    pub const NONE: Offload = Offload { what: OffloadWhat::None, gradients: GradientHome::Auto };
}

impl Default for PowerSgd {
    fn default() -> PowerSgd {
        PowerSgd::read(settings::raw::PowerSgd::default())
    }
}

/// Split of layers into pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerSplit {
    Uniform,
    /// Embedding and head count as a layer each: the first and last stage hold one layer less
    /// (Megatron-DeepSpeed's `type:transformer|embedding`).
    TransformerAndEmbedding,
    /// Minimises the cost of the most expensive stage.
    Balanced,
    /// Layers of each stage.
    Explicit(Vec<usize>),
}
