//! The manifest as it is written: every key, optional wherever a default exists. The one table of
//! keys: reading, "did you mean", the JSON Schema for editors and the effective YAML all come from
//! these structs; the doc comments are what an editor shows.

mod choices;
mod forms;

pub use choices::*;
pub use forms::*;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Derives shared by all sections; every key may be left out, here and when written back.
macro_rules! section {
    ($($(#[$about:meta])* pub struct $name:ident {
        $($(#[$doc:meta])* pub $key:ident: Option<$kind:ty>,)*
    })*) => {$(
        #[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub struct $name {$(
            $(#[$doc])*
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $key: Option<$kind>,
        )*}
    )*};
}

section! {
/// A gptrain manifest: one whole experiment.
#[schemars(title = "gptrain manifest")]
pub struct Raw {
    /// The experiment's name. Default: the file's name without its ending.
    pub name: Option<String>,
    /// The network's shape.
    #[schemars(required)]
    pub model: Option<Model>,
    /// Element type of weights and activations. Default: f32.
    pub precision: Option<Precision>,
    /// What fp16's loss is multiplied by so that small gradients do not vanish: a number that stays
    /// (--loss-scale), or settings. Default: dynamic, from 2^32 on.
    pub loss_scale: Option<LossScaleForm>,
    /// What is read, in which order, and how it is masked.
    #[schemars(required)]
    pub data: Option<Data>,
    /// How many samples make a step.
    #[schemars(required)]
    pub batch: Option<Batch>,
    /// The update rule. Default: adamw.
    pub optimizer: Option<OptimizerForm>,
    /// The learning rate over the run.
    #[schemars(required)]
    pub lr: Option<Lr>,
    /// How the work is divided over ranks. Default: one rank.
    pub topology: Option<Topology>,
    /// How ranks find each other, and how long they wait for each other.
    pub comm: Option<Comm>,
    /// When the run's state is saved.
    pub checkpoint: Option<Checkpoint>,
    /// What is reported, and where.
    pub log: Option<Log>,
    /// What `gptrain estimate` plans for, where its flags say nothing else.
    pub plan: Option<Plan>,
    /// How long (samples, tokens or steps), on what, and from which seed.
    #[schemars(required)]
    pub train: Option<Train>,
}

/// The architecture: a GPT with pre-layernorm blocks and biases.
pub struct Model {
    /// Transformer blocks (Megatron's --num-layers).
    #[schemars(required, range(min = 1, max = 10_000))]
    pub layers: Option<usize>,
    /// Width of the residual stream (--hidden-size); a multiple of `heads`.
    #[schemars(required, range(min = 1, max = 1_048_576))]
    pub hidden: Option<usize>,
    /// Attention heads (--num-attention-heads).
    #[schemars(required, range(min = 1, max = 65_536))]
    pub heads: Option<usize>,
    /// Width inside the MLP (--ffn-hidden-size). Default: 4 × hidden.
    #[schemars(range(min = 1, max = 8_388_608))]
    pub ffn_hidden: Option<usize>,
    /// Number of tokens the tokenizer knows: every token id is below it.
    #[schemars(required, range(min = 2, max = 2_147_483_647))]
    pub vocab: Option<usize>,
    /// Rows of the embedding are rounded up to a multiple of this × topology.tensor
    /// (--make-vocab-size-divisible-by). Default: 128.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub vocab_multiple: Option<usize>,
    /// Tokens per sample (--seq-length).
    #[schemars(required, range(min = 1, max = 16_777_216))]
    pub seq_len: Option<usize>,
    /// How tokens know their place. Default: learned.
    pub position: Option<Position>,
    /// A layernorm after the embedding, as BLOOM has (--embed-layernorm). Default: false.
    pub embedding_layernorm: Option<bool>,
    /// Whether the output layer is the embedding itself. Default: true. False is Megatron's
    /// --untie-embeddings-and-output-weights.
    pub tied_head: Option<bool>,
    /// Which formula of the activation function. Default: tanh, as GPT-2, Megatron and BLOOM.
    pub gelu: Option<Gelu>,
    /// Added to the variance in every layernorm (--layernorm-epsilon). Default: 1e-5.
    #[schemars(range(min = 1e-12, max = 1.0))]
    pub layernorm_eps: Option<f32>,
    /// Drop rates: one number for all, or one each. Default: 0 (Megatron's default is 0.1).
    pub dropout: Option<DropoutForm>,
    /// Initial weights.
    pub init: Option<Init>,
}

/// Drop rates at the three places; each defaults to 0.
pub struct Dropout {
    /// After the embedding.
    #[schemars(range(min = 0.0, max = 0.999))]
    pub embedding: Option<f32>,
    /// On the attention's weights (--attention-dropout).
    #[schemars(range(min = 0.0, max = 0.999))]
    pub attention: Option<f32>,
    /// On what each block adds to the residual stream (--hidden-dropout).
    #[schemars(range(min = 0.0, max = 0.999))]
    pub residual: Option<f32>,
}

/// How weights begin; biases begin at 0 and norms at 1.
pub struct Init {
    /// Standard deviation of the normal distribution (--init-method-std). Default: 0.02.
    #[schemars(range(min = 0.0, max = 10.0))]
    pub std: Option<f32>,
    /// Projections into the residual stream start smaller by 1/sqrt(2·layers). Default: true.
    pub scale_residual: Option<bool>,
}

/// A scale that doubles after updates in a row and halves after overflows, whose steps are skipped;
/// or one that stays.
pub struct LossScale {
    /// One that stays, instead of initial and min (--loss-scale).
    #[schemars(range(min = 1e-9, max = 1e18))]
    pub constant: Option<f64>,
    /// The first (--initial-loss-scale). Default: 4_294_967_296.
    #[schemars(range(min = 1e-9, max = 1e18))]
    pub initial: Option<f64>,
    /// The lowest; a run that overflows even there ends (--min-loss-scale). Default: 1.
    #[schemars(range(min = 1e-9, max = 1e18))]
    pub min: Option<f64>,
    /// Updates in a row after which it doubles (--loss-scale-window). Default: 1000.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub window: Option<u64>,
    /// Overflows before it halves, and then at each, until it doubles again (--hysteresis).
    /// Default: 2.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub hysteresis: Option<u64>,
}

/// Datasets in Megatron's format (PREFIX.bin and PREFIX.idx), sample order and masks.
pub struct Data {
    /// Seed of the sample order. Default: 1234, as Megatron's.
    #[schemars(range(min = 0, max = 4_294_967_295u64))]
    pub seed: Option<u64>,
    /// Whose sample order and split rule is followed. Default: mcore.
    pub rule: Option<DataRule>,
    /// Shares of train, valid and test, such as `969,30,1` (--split), for every dataset that has
    /// no `split` or `range` of its own. Default: `969,30,1` where `valid` is left out, else the
    /// whole of every dataset.
    pub split: Option<String>,
    /// What is trained on: a prefix, or a list of datasets with weights. Relative prefixes start
    /// at the manifest's folder.
    #[schemars(required)]
    pub train: Option<Blend>,
    /// Other training datasets or weights from later points of the run on. Each dataset goes on
    /// where it was left: no sample is repeated or skipped. Default: none.
    pub stages: Option<Vec<DataStage>>,
    /// Named validation sets: name → a prefix, or a list of datasets with weights. Default: one
    /// set named `valid`, the valid share of the training datasets (if their split has one).
    #[schemars(with = "Option<BTreeMap<String, Blend>>")]
    pub valid: Option<Named>,
    /// Folder for the order of samples where it takes more than a second to build, from where
    /// gptrain is started (--data-cache-path). Default: `order` in the run's folder.
    pub cache: Option<PathBuf>,
    /// The tokenizer.json, for showing text. Default: none.
    pub tokenizer: Option<PathBuf>,
    /// What an end-of-document token changes. Default: nothing.
    pub eod: Option<Eod>,
    /// What is learned. Default: causal.
    pub objective: Option<ObjectiveForm>,
}

/// What is trained on from a point of the run on, in place of what was before.
pub struct DataStage {
    /// Its first sample, counted from the start of the run.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub from_samples: Option<u64>,
    /// The same in tokens, instead of from_samples.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub from_tokens: Option<u64>,
    /// A prefix, or a list of datasets with weights, as data.train.
    #[schemars(required)]
    pub train: Option<Blend>,
}

/// One dataset of a blend.
pub struct Dataset {
    /// PREFIX of PREFIX.bin and PREFIX.idx.
    #[schemars(required)]
    pub prefix: Option<PathBuf>,
    /// Its share of the samples, relative to the other weights. Default: 1.
    #[schemars(range(min = 0.0, max = 1e12))]
    pub weight: Option<f64>,
    /// Its own shares of train, valid and test, instead of data.split.
    pub split: Option<String>,
    /// Which share of the split is read. Default: train below data.train, valid below data.valid.
    pub part: Option<PartName>,
    /// A range of its sequences instead of a split: `0.95..1.0` reads the last twentieth.
    pub range: Option<String>,
}

/// What an end-of-document token changes.
pub struct Eod {
    /// Its id.
    #[schemars(required, range(min = 0, max = 2_147_483_647))]
    pub token: Option<u32>,
    /// No loss where the input is the EOD token (--eod-mask-loss). Default: false.
    pub mask_loss: Option<bool>,
    /// Positions start again after it (--reset-position-ids). Default: false.
    pub reset_positions: Option<bool>,
    /// Tokens see only their own document (--reset-attention-mask). Default: false.
    pub reset_attention: Option<bool>,
}

/// Prefix language modelling: a random prefix of each sample sees itself whole.
pub struct PrefixLm {
    /// No loss inside the prefix (--loss-on-targets-only). Default: true.
    pub loss_on_targets_only: Option<bool>,
}

/// What is learned, with its settings.
pub struct Objective {
    /// Prefix language modelling.
    #[schemars(required)]
    pub prefix_lm: Option<PrefixLm>,
}

/// Batch sizes, in samples.
pub struct Batch {
    /// Samples a rank computes at once (--micro-batch-size).
    #[schemars(required, range(min = 1, max = 1_048_576))]
    pub micro: Option<usize>,
    /// Samples per optimizer step, over all ranks (--global-batch-size); a multiple of
    /// micro × topology.data.
    #[schemars(required, range(min = 1, max = 16_777_216))]
    pub global: Option<usize>,
    /// A smaller global batch at the start. Default: none.
    pub ramp_up: Option<RampUpForm>,
}

/// Growth of the global batch, as Megatron's --rampup-batch-size.
pub struct RampUp {
    /// The first global batch.
    #[schemars(required, range(min = 1, max = 16_777_216))]
    pub start: Option<usize>,
    /// What is added each time; divides global − start.
    #[schemars(required, range(min = 1, max = 16_777_216))]
    pub increment: Option<usize>,
    /// Samples over which the batch grows from start to global.
    #[schemars(required, range(min = 1, max = 1_000_000_000_000_000u64))]
    pub samples: Option<u64>,
}

/// The update rule: one of these. Default: adamw.
pub struct Optimizer {
    /// Adam with decoupled weight decay.
    pub adamw: Option<AdamW>,
    /// 8-bit Adam: not in this version.
    pub adam8bit: Option<Later>,
    /// Adafactor: not in this version.
    pub adafactor: Option<Later>,
    /// Another name of lr.peak.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub lr: Option<f64>,
}

/// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
pub struct AdamW {
    /// Decay of the first moment. Default: 0.9.
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta1: Option<f32>,
    /// Decay of the second moment. Default: 0.95 (PyTorch's and Megatron's default is 0.999).
    #[schemars(range(min = 0.0, max = 0.999_999))]
    pub beta2: Option<f32>,
    /// Added to the root of the second moment. Default: 1e-8.
    #[schemars(range(min = 1e-20, max = 1.0))]
    pub eps: Option<f32>,
    /// Weight decay of matrices; norms and biases have none. Default: 0.1.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub weight_decay: Option<f32>,
    /// Gradients are scaled down to this global norm (--clip-grad). 0 is off. Default: 1.
    #[schemars(range(min = 0.0, max = 1e9))]
    pub clip: Option<f32>,
}

/// The learning rate: warm-up from 0 to the peak, then a decay to the minimum.
pub struct Lr {
    /// The highest learning rate (--lr).
    #[schemars(required, range(min = 0.0, max = 1000.0))]
    pub peak: Option<f64>,
    /// The lowest after the decay (--min-lr). Default: 0.
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub min: Option<f64>,
    /// Length of the linear warm-up in samples (--lr-warmup-samples). Default: 0.
    #[schemars(range(min = 0, max = 1_000_000_000_000_000u64))]
    pub warmup_samples: Option<u64>,
    /// Length of the warm-up in tokens, instead of warmup_samples.
    #[schemars(range(min = 0, max = 1_000_000_000_000_000u64))]
    pub warmup_tokens: Option<u64>,
    /// The shape after the warm-up: constant, linear, cosine or wsd. Default: cosine, over the
    /// run.
    pub decay: Option<DecayForm>,
}

/// The shape after the warm-up, with its lengths: one of these.
pub struct Decay {
    /// A straight line to the minimum.
    pub linear: Option<Span>,
    /// Half a cosine wave to the minimum.
    pub cosine: Option<Span>,
    /// Warm-up, stable, decay: flat, then a straight line to the minimum at the end.
    pub wsd: Option<Wsd>,
}

/// How far a decay reaches, counted from the start of the run (--lr-decay-samples). Default: the
/// run's length.
pub struct Span {
    /// In samples.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub samples: Option<u64>,
    /// In tokens.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub tokens: Option<u64>,
}

/// Lengths of warm-up, stable, decay.
pub struct Wsd {
    /// Length of the decay at the end, in samples (--lr-wsd-decay-samples). Default: a tenth.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub decay_samples: Option<u64>,
    /// Length of the decay at the end, in tokens.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub decay_tokens: Option<u64>,
    /// Where the decay ends, in samples from the start of the run. Default: the run's length.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub samples: Option<u64>,
    /// Where the decay ends, in tokens.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub tokens: Option<u64>,
}

/// How the work is divided: tensor × pipeline × data ranks.
pub struct Topology {
    /// Ranks that share each matrix (--tensor-model-parallel-size). Default: 1.
    #[schemars(range(min = 1, max = 65_536))]
    pub tensor: Option<usize>,
    /// Stages the layers are cut into (--pipeline-model-parallel-size). Default: 1.
    #[schemars(range(min = 1, max = 65_536))]
    pub pipeline: Option<usize>,
    /// Replicas that share the batch. Default: 1.
    #[schemars(range(min = 1, max = 1_048_576))]
    pub data: Option<usize>,
    /// What replicas keep only a share of: 0 nothing, 1 optimizer states, 2 gradients too,
    /// 3 weights too (--zero-stage); in a pipeline at most 1. Default: 0.
    #[schemars(range(min = 0, max = 3))]
    pub zero: Option<u8>,
    /// Tensor-parallel ranks share norms and dropout along the sequence (--sequence-parallel).
    /// Default: false.
    pub sequence_parallel: Option<bool>,
    /// The order of forwards and backwards in the pipeline. Default: 1f1b.
    pub schedule: Option<Schedule>,
    /// Chunks of layers per stage, for schedule: interleaved. Default: 2.
    #[schemars(range(min = 2, max = 1024))]
    pub chunks: Option<usize>,
    /// How layers are cut into stages: a rule, or a list of layers per stage; with schedule:
    /// interleaved, per chunk in the model's order. Default: uniform.
    pub layer_split: Option<LayerSplitForm>,
    /// Which ranks are neighbours; tensor-parallel ranks always are. Default: data.
    pub neighbours: Option<Neighbours>,
    /// What is thrown away in forward and computed again in backward. Default: none.
    pub recompute: Option<Recompute>,
}

/// Ranks among each other.
pub struct Comm {
    /// Seconds that a rank may wait for others in one operation; then the run ends, and one line
    /// says who was at fault. Default: 300.
    #[schemars(range(min = 0.1, max = 1e6))]
    pub timeout_s: Option<f64>,
    /// Seconds that ranks wait for each other at the start. Default: 120.
    #[schemars(range(min = 0.1, max = 1e6))]
    pub start_timeout_s: Option<f64>,
    /// host:port at which rank 0 is found, instead of what the launcher's variables give; the
    /// variable GPTRAIN_RENDEZVOUS comes before it. Default: from the job.
    pub rendezvous: Option<String>,
    /// What carries tensors between GPUs. Default: nccl.
    pub gpu_transport: Option<GpuTransport>,
}

/// Saving.
pub struct Checkpoint {
    /// Steps between saves (--save-interval); the last step is always saved. Default: 1000.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub interval: Option<u64>,
    /// How many of the newest checkpoints are kept. Default: all.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub keep_last: Option<usize>,
    /// With keep_last: checkpoints whose step is a multiple of this are kept too. Default: none.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub keep_every: Option<u64>,
    /// Saves that may be written at once while training goes on, each with a copy of the run's
    /// state in host memory; with 0, training waits for every save (--async-save). Default: 1.
    #[schemars(range(min = 0, max = 8))]
    pub in_flight: Option<usize>,
}

/// Reporting.
pub struct Log {
    /// The run's folder, from where gptrain is started. Default: runs/NAME.
    pub folder: Option<PathBuf>,
    /// Steps between log lines (--log-interval). Default: 1.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub interval: Option<u64>,
    /// Whether TensorBoard event files are written. Default: true.
    pub tensorboard: Option<bool>,
    /// What all devices together reach at best, in TFLOP/s: with it the log shows MFU. Default: unknown.
    #[schemars(range(min = 1e-6, max = 1e9))]
    pub peak_tflops: Option<f64>,
}

/// What `gptrain estimate` plans for.
pub struct Plan {
    /// A row of the hardware table, such as a100-80g (`gptrain estimate --list-hardware`).
    pub hardware: Option<String>,
    /// Whose memory and time are predicted. Default: gptrain.
    pub framework: Option<Framework>,
    /// Of one device and hour. Default: the hardware table's.
    #[schemars(range(min = 0.0, max = 1e6))]
    pub price: Option<f64>,
    /// Money for the whole run, in the price's currency.
    #[schemars(range(min = 0.0, max = 1e15))]
    pub budget: Option<f64>,
    /// Share of the calendar in which the run makes progress. Default: 1.
    #[schemars(range(min = 0.01, max = 1.0))]
    pub availability: Option<f64>,
}

/// Length, evaluation, seed, machine.
pub struct Train {
    /// Length of the run in samples (--train-samples). One of samples, tokens and steps is given.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub samples: Option<u64>,
    /// Length of the run in tokens.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub tokens: Option<u64>,
    /// Length of the run in optimizer steps (--train-iters).
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub steps: Option<u64>,
    /// Steps between evaluations (--eval-interval); 0 is never. Default: 1000 where there are
    /// validation sets.
    #[schemars(range(min = 0, max = 1_000_000_000_000_000u64))]
    pub eval_interval: Option<u64>,
    /// Samples read from each validation set at an evaluation. Default: 10 × batch.global.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub eval_samples: Option<u64>,
    /// Steps between audits: weights that must be equal on several ranks are compared bit by bit;
    /// 0 is never. Default: 100.
    #[schemars(range(min = 0, max = 1_000_000_000_000_000u64))]
    pub audit_interval: Option<u64>,
    /// Seed of initial weights and dropout. Default: 1234.
    #[schemars(range(min = 0, max = 18_446_744_073_709_551_615u64))]
    pub seed: Option<u64>,
    /// CPU threads of each rank. Default: all there are, shared among the ranks of a machine.
    #[schemars(range(min = 1, max = 65_536))]
    pub threads: Option<usize>,
    /// The machine: cpu, cuda, or what there is. Default: auto.
    pub device: Option<Device>,
}

/// Settings of something this version does not have yet.
pub struct Later {}
}
