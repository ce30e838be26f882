//! Table of settings: types, limits, defaults, and the checked types. Reading, "did you mean", JSON
//! Schema and effective YAML come from it. Relations between settings are in `check`.

use super::check::data::{Blends, Run};
use super::check::{shape, time, time::Validated};
use super::choices::*;
use super::define::{
    OneOf, Written, checked, forms, kinds, one_of, read, sections, settings, written,
};
use super::family::Family;
use super::forms::{self, *};
use super::layers::{self, LayerForm, LayerKind};
use super::lr::{self, Decay, DecayForm};
use super::report::Report;
use super::rope::{Position, PositionForm};
use super::{DataStage, Dataset, LayerSplit, ValidSet};
use base::{Bytes, Gelu};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

kinds! {
#[derive(Copy)]
/// Training objective.
Objective() at "data.objective", ObjectiveName, ObjectiveForm, ObjectiveSection = "Objective" {
    /// Predict the next token from all before it.
    Causal = "causal";
} settings {
    /// Prefix language modelling: all tokens of a random prefix attend to each other; the loss is on the
    /// rest.
    #[schemars(required)]
    PrefixLm = "prefix_lm", prefix_lm: PrefixLm();
}
}

kinds! {
#[derive(Copy)]
/// Compression of gradients between replicas.
Compression() at "topology.compression",
    CompressionName, CompressionForm, CompressionSection = "Compression" {
    /// Whole gradients.
    None = "none";
} settings {
    /// Low-rank factors of the blocks' matrices, with error feedback.
    #[schemars(required)]
    PowerSgd = "powersgd", powersgd: PowerSgd();
}
}

impl Compression {
    fn powersgd(self) -> Option<PowerSgd> {
        match self {
            Compression::None => None,
            Compression::PowerSgd(settings) => Some(settings),
        }
    }
}

settings! {
/// Architecture: a decoder whose blocks normalise before attention and before the feed-forward layer.
/// All parts can be combined.
Model(raw, tensor: usize) {
    /// Model family: it sets the defaults of the other settings, and the names of the weights in
    /// Hugging Face folders. Default: bloom if position is alibi, else gpt2.
    family: Family = Family::of_position(raw.position.as_ref());
    /// Transformer blocks (Megatron's --num-layers).
    layers: usize, required in 1..=10_000;
    /// Width of the residual stream (--hidden-size); a multiple of `heads` without `head_dim`.
    hidden: usize, required in 1..=1_048_576;
    /// Attention heads (--num-attention-heads).
    heads: usize, required in 1..=65_536;
    /// Heads of keys and values. `heads` must be divisible by it; each serves heads / kv_heads query
    /// heads (--num-query-groups). Default: heads.
    kv_heads: usize, in 1..=65_536;
    /// Columns of a head (--kv-channels). Default: hidden / heads.
    head_dim: usize, in 1..=256;
    /// Feed-forward layer: gelu or swiglu. Default: gelu; swiglu for the Llama families.
    ffn: Ffn = family.defaults().ffn;
    /// Inner width of the feed-forward layer (--ffn-hidden-size). Default: 4 × hidden; for swiglu
    /// 8/3 × hidden, rounded up to a multiple of 256.
    ffn_hidden: usize = ffn.hidden(hidden), in 1..=8_388_608;
    /// Size of the tokenizer's vocabulary: every token id is below it.
    vocab: usize, required in 2..=2_147_483_647;
    /// The embedding's rows are rounded up to a multiple of this × topology.tensor
    /// (--make-vocab-size-divisible-by). Default: 128.
    vocab_multiple: usize = 128, in 1..=1_048_576;
    /// Tokens per sample (--seq-length).
    seq_len: usize, required in 1..=16_777_216;
    /// Position encoding: learned, alibi, rope, or rope with settings. Default: learned; alibi for
    /// family bloom; rope for the Llama families.
    position: PositionForm => Position
        = Position::read(raw.position, family.defaults().position);
    /// Rows of the table of learned positions (--max-position-embeddings). Default: seq_len.
    positions: usize, in 1..=16_777_216;
    /// Sliding window: most keys that a query attends to, including its own. Default: all.
    window: usize, in 1..=16_777_216;
    /// Kinds of layers, which repeat from the first layer to the last: full, window, or settings, as in
    /// [window, window, full]. Default: all layers alike.
    pattern: Vec<LayerForm> => Vec<LayerKind> = layers::pattern(raw.pattern),
        written layers::written(pattern);
    /// Whether each head's queries and keys are normalised by their root mean square. Default: false;
    /// true for family qwen3.
    qk_norm: bool = family.defaults().qk_norm;
    /// Matrix products of a block that add a bias: none, qkv, attention, all. Default: all; qkv for
    /// family qwen2; none for the other Llama families.
    bias: Bias = family.defaults().bias;
    /// Normalisation: layer or rms. Default: layer; rms for the Llama families.
    norm: NormKind = family.defaults().norm;
    /// Whether a norm follows the embedding (--embed-layernorm). Default: false; true if family is set
    /// to bloom.
    embedding_layernorm: bool = raw.family.is_some() && family.defaults().embedding_layernorm;
    /// Whether the output layer shares the embedding's weights. False is Megatron's
    /// --untie-embeddings-and-output-weights. Default: true; false for the Llama families.
    tied_head: bool = family.defaults().tied_head;
    /// Soft cap c of logits: each logit x becomes c·tanh(x/c), in training and sampling (Gemma 2: 30).
    /// Default: none.
    logit_softcap: f32, in 1e-3..=1e6;
    /// Formula of GELU, for ffn: gelu. Default: tanh, as in GPT-2, Megatron and BLOOM.
    gelu: Gelu = Gelu::Tanh;
    /// Added to the variance in every norm (--layernorm-epsilon). Default: 1e-5; 1e-6 for families
    /// qwen2 and qwen3.
    layernorm_eps: f32 = family.defaults().layernorm_eps, in 1e-12..=1.0;
    /// Dropout rates: one number for all places, or one each. Default: 0 (Megatron's default is 0.1).
    dropout: DropoutForm => Dropout = shape::dropout(raw.dropout);
    /// Initial weights.
    init: Init => Init = Init::read(raw.init.unwrap_or_default());
    /// Scaling by µP, with which a learning rate found for a narrow model is valid for this one.
    /// Default: none.
    mup: Mup => Option<Mup> = raw.mup.map(Mup::read);
} (
    /// Rows of the embedding: `vocab`, rounded up to be divisible among tensor-parallel ranks and tiles.
    vocab_padded: usize = vocab.next_multiple_of(vocab_multiple * tensor);
)

#[derive(Copy)]
/// Dropout rates at three places; each defaults to 0.
Dropout(raw) {
    /// After the embedding.
    embedding: f32 = 0.0, in 0.0..=0.999;
    /// On attention weights (--attention-dropout).
    attention: f32 = 0.0, in 0.0..=0.999;
    /// On the output of each branch before it is added to the residual stream (--hidden-dropout).
    residual: f32 = 0.0, in 0.0..=0.999;
}

/// Initial weights. Biases start at 0 and norms at 1.
Init(raw) {
    /// Standard deviation of the normal distribution (--init-method-std). Default: 0.02.
    std: f32 = 0.02, in 0.0..=10.0;
    /// Whether initial projections into the residual stream are scaled by 1/sqrt(2·layers). Default:
    /// true.
    scale_residual: bool = true;
}

#[derive(Copy)]
/// Maximal update parametrisation (µP; Yang et al. 2022, Tensor Programs V) of a model that is r =
/// hidden / base_hidden times as wide as the base model, for which lr.peak and init.std were found.
/// Initial block matrices are divided by √r, and AdamW's and Adafactor's steps of them by r.
Mup(raw) {
    /// model.hidden of the base model (--mup-base-hidden-size).
    base_hidden: usize, required in 1..=1_048_576;
    /// Columns of a head in the base model (--mup-base-head-dim): scores are multiplied by
    /// √base_head_dim / head_dim. Default: head_dim, which gives 1/√head_dim.
    base_head_dim: usize, in 1..=256;
    /// Factor of the embedding (--mup-embedding-mult). Default: 1.
    embedding_multiplier: f32 = 1.0, in 1e-6..=1e6;
    /// Factor of logits, in addition to 1/r (--mup-output-mult). Default: 1.
    output_multiplier: f32 = 1.0, in 1e-6..=1e6;
}

/// Datasets in Megatron's format (PREFIX.bin and PREFIX.idx), sample order and masks.
Data(raw, blends: &mut Blends, run: &Run) {
    /// Seed of the sample order. Default: 1234, as Megatron's.
    seed: u64 = 1234, in 0..=4_294_967_295u64;
    /// Trainer whose sample order and split rule is used. Default: mcore.
    rule: DataRule = DataRule::MegatronCore;
    /// Training data: a prefix, or a list of datasets with weights. Relative prefixes start at the
    /// manifest's folder.
    #[schemars(required)]
    train: Blend => Vec<Dataset> = blends.blend(raw.train, "data.train", 0);
    /// Changes of the training datasets or weights at later points of the run. Each dataset continues
    /// at its next sample: no sample is repeated or skipped. Default: none.
    stages: Vec<forms::DataStage> => Vec<DataStage> = blends.stages(raw.stages, run);
    /// Named validation sets: name → a prefix, or a list of datasets with weights. Default: one
    /// set named `valid`, the valid share of the training datasets (if their split has one).
    #[schemars(with = "Option<BTreeMap<String, Blend>>")]
    valid: Named => Vec<ValidSet> = blends.valid(raw.valid, &train);
    /// Folder that caches the sample order if it takes more than a second to build; a relative path
    /// starts at the working folder (--data-cache-path). Default: `order` in the run's folder.
    cache: PathBuf = run.folder.join("order");
    /// Path of tokenizer.json, which is used to show text. Default: none.
    tokenizer: PathBuf => Option<PathBuf> = raw.tokenizer.map(|path| blends.resolve(path)),
        written tokenizer.clone();
    /// Handling of the end-of-document token. Default: none.
    eod: Eod => Option<Eod> = raw.eod.map(Eod::read);
    /// Whether tokens attend only to their own document, and positions restart in each. The bounds come
    /// from the index and not from a token: for data without EOD
    /// (--dataloader-inter-document-masking). As in Megatron-Core, a sequence of the index counts as a
    /// document. Default: false.
    inter_document_masking: bool = false;
    /// Whether samples have one token more than seq_len, which is only a target. Without it the last
    /// position of a sample has no target. Default: true.
    add_extra_token_to_sequence: bool = true;
    /// Whether the last tokens of a validation set that do not fill a sample are dropped. If false,
    /// they become a padded sample. Default: true.
    drop_last_partial_validation_sequence: bool = true;
    /// Training objective. Default: causal.
    objective: ObjectiveForm => Objective
        = Objective::read(raw.objective, ObjectiveName::Causal);
} [
    /// Shares of train, valid and test, such as `969,30,1` (--split), for every dataset without its own
    /// `split` or `range`. Default: `969,30,1` without `valid`, else the whole of every dataset.
    split: String;
]

#[derive(Copy)]
/// Handling of the end-of-document (EOD) token.
Eod(raw) {
    /// Id of the token.
    token: u32, required in 0..=2_147_483_647;
    /// Whether positions whose input is the EOD token have no loss (--eod-mask-loss). Default: false.
    mask_loss: bool = false;
    /// Whether positions restart after the token (--reset-position-ids). Default: false.
    reset_positions: bool = false;
    /// Whether tokens attend only to their own document (--reset-attention-mask). Default: false.
    reset_attention: bool = false;
}

#[derive(Copy)]
/// Prefix language modelling: all tokens of a random prefix of each sample attend to each other.
PrefixLm(raw) {
    /// Whether the prefix has no loss (--loss-on-targets-only). Default: true.
    loss_on_targets_only: bool = true;
}

/// Batch sizes, in samples.
Batch(raw, report: &mut Report) {
    /// Samples that a rank computes at once (--micro-batch-size).
    micro: usize, required in 1..=1_048_576;
    /// Samples per optimizer step, over all ranks (--global-batch-size); a multiple of
    /// micro × topology.data.
    global: usize, required in 1..=16_777_216;
    /// Smaller global batches at the start. Default: none.
    ramp_up: RampUpForm => Option<RampUp> = time::ramp_up(raw.ramp_up, report);
}

#[derive(Copy)]
/// Growth of the global batch, as Megatron's --rampup-batch-size.
RampUp(raw) {
    /// First global batch.
    start: usize, required in 1..=16_777_216;
    /// Samples added at each growth; global − start must be divisible by it.
    increment: usize, required in 1..=16_777_216;
    /// Samples over which the batch grows from start to global.
    samples: u64, required in 1..=1_000_000_000_000_000u64;
}

/// Learning rate: warm-up from 0 to the peak, then a decay to the minimum.
Lr(raw, run: u64, seq_len: usize, report: &mut Report) {
    /// Highest learning rate (--lr).
    peak: f64, required in 0.0..=1000.0;
    /// Learning rate after the decay (--min-lr). Default: 0.
    min: f64 = 0.0, in 0.0..=1000.0;
    /// Length of the linear warm-up in samples (--lr-warmup-samples). Default: 0.
    warmup_samples: u64 => u64 = lr::warmup(&raw, seq_len, report),
        in 0..=1_000_000_000_000_000u64, written Some(*warmup_samples);
    /// Shape after the warm-up: constant, linear, cosine or wsd. Default: cosine, over the run.
    decay: DecayForm => Decay = lr::decay(raw.decay, run, warmup_samples, seq_len, report);
    /// Sample count that sets the learning rate of a step: that after the step, or that before it as
    /// in Megatron. Default: after; an imported run follows its trainer.
    counted: LrCounted = LrCounted::After;
} [
    /// Length of the warm-up in tokens, instead of warmup_samples.
    warmup_tokens: u64, in 0..=1_000_000_000_000_000u64;
]

/// Division of the work: tensor × pipeline × data ranks.
Topology(raw) {
    /// Ranks that share each matrix (--tensor-model-parallel-size). Default: 1.
    tensor: usize = 1, in 1..=65_536;
    /// Pipeline stages (--pipeline-model-parallel-size). Default: 1.
    pipeline: usize = 1, in 1..=65_536;
    /// Replicas that share the batch. Default: 1.
    data: usize = 1, in 1..=1_048_576;
    /// State that is sharded among replicas: 0 nothing, 1 optimizer states, 2 also gradients, 3 also
    /// weights (--zero-stage); at most 1 with a pipeline. Default: 0.
    zero: u8 = 0, in 0..=3;
    /// Whether tensor-parallel ranks divide norms and dropout along the sequence
    /// (--sequence-parallel); with tensor: 1 it is off. Default: false.
    sequence_parallel: bool = false;
    /// Order of forward and backward passes in the pipeline. Default: 1f1b.
    schedule: Schedule = Schedule::OneFOneB;
    /// Chunks of layers per stage, for schedule: interleaved. Default: 2.
    chunks: usize
        => usize = if schedule == Schedule::Interleaved { raw.chunks.unwrap_or(2) } else { 1 },
        in 2..=1024, written Some(*chunks).filter(|chunks| *chunks > 1);
    /// Whether messages between stages overlap with the passes of schedule: interleaved
    /// (--overlap-p2p-communication); on GPUs this needs independent streams. Default: false.
    overlap_p2p: bool = false;
    /// Layers of the stages: a rule, or a list of layers per stage; with schedule: interleaved, per
    /// chunk in the model's order. Default: uniform.
    layer_split: LayerSplitForm => LayerSplit = shape::layer_split(raw.layer_split);
    /// Ranks with adjacent numbers, next after tensor-parallel ranks. Default: data.
    neighbours: RankOrder = RankOrder::Data;
    /// Activations that forward drops and backward recomputes. Default: none.
    recompute: Recompute = Recompute::None;
    /// State in the host's memory instead of the device's: none, optimizer, full, or settings. The
    /// results are the same. Default: none.
    offload: OffloadForm => Offload = shape::offload(raw.offload);
    /// Compression of gradients between replicas, for slow networks: powersgd; with zero at most 1. A
    /// single replica sends and compresses nothing. Default: none.
    compression: CompressionForm => Option<PowerSgd>
        = Compression::read(raw.compression, CompressionName::None).powersgd(),
        written compression.and_then(|settings| Compression::PowerSgd(settings).written());
}

#[derive(Copy)]
/// State in the memory of the host (ZeRO-Offload: Ren et al. 2021).
Offload(raw) {
    /// State to offload. Default: none.
    what: OffloadWhat = OffloadWhat::None;
    /// Memory of gradients that wait for the update. Default: auto.
    gradients: GradientHome = GradientHome::Auto;
}

#[derive(Copy)]
/// Replicas sum low-rank factors of the gradients of block matrices, and add the error to the next
/// step's gradients (PowerSGD: Vogels, Karimireddy & Jaggi 2019). A different tensor parallelism
/// compresses different shards, so it trains slightly differently. A save averages the errors of the
/// replicas, which changes later steps by rounding.
PowerSgd(raw) {
    /// Columns of the factors: a matrix becomes 4·rank·(rows + columns) bytes. Default: 4.
    rank: usize = 4, in 1..=32;
    /// Steps at the start of the run without compression. Default: 1000.
    start_step: u64 = 1000, in 0..=1_000_000_000_000_000u64;
    /// Compression rate above which a matrix is compressed. Default: 2.
    min_rate: f64 = 2.0, in 1.0..=1e6;
}

/// Checkpoints.
Checkpoint(raw) {
    /// Steps between saves (--save-interval); the last step is always saved. Default: 1000.
    interval: u64 = 1000, in 1..=1_000_000_000_000_000u64;
    /// Number of newest checkpoints to keep. Default: all.
    keep_last: usize, in 1..=1_000_000_000;
    /// With keep_last: also keeps checkpoints whose step is a multiple of this. Default: none.
    keep_every: u64, in 1..=1_000_000_000_000_000u64;
    /// Maximum number of saves that are written while training continues, each with a copy of the
    /// run's state in host memory; with 0, training waits for every save (--async-save). Default: 1.
    in_flight: usize = 1, in 0..=8;
    /// Seconds for which writes into the run's folder wait while the disk is full or the file server
    /// is unreachable. Training continues meanwhile, and its logs are written later. 0 ends the run at
    /// once. Default: 600.
    wait_for_storage_s: f64 = 600.0, in 0.0..=1e6;
    /// Second location, to which every durable checkpoint is copied in the background:
    /// s3://BUCKET/PREFIX, with the credentials of the environment, or file:///FOLDER. keep_last and
    /// keep_every also apply there. Default: none.
    also: String;
}

#[derive(Copy)]
/// Loss spikes: steps whose loss or gradient norm is far above that of the last 128 normal steps.
Divergence(raw) {
    /// Reaction: off, warn, or act. Default: act, if other settings of the section are given.
    action: SpikeAction = SpikeAction::Act;
    /// Threshold: distance above the median, in units of the scatter. Default: 8.
    sigmas: f64 = 8.0, in 1.0..=1e6;
    /// Minimum rise of the loss that counts as a spike, in nats. Default: 0.5.
    loss_rise: f64 = 0.5, in 0.0..=1e6;
    /// Minimum rise of the gradient norm that counts as a spike, as a factor. Default: 10.
    norm_rise: f64 = 10.0, in 1.0..=1e6;
    /// Updates that are skipped in a row before the run rolls back to a checkpoint. Default: 3.
    skips: u32 = 3, in 0..=1000;
    /// Minimum number of steps of a rollback, and number of steps skipped after the spike. Default: 100.
    roll_back: u64 = 100, in 1..=1_000_000_000u64;
    /// Maximum number of rollbacks; then the run stops. Default: 3.
    roll_backs: usize = 3, in 0..=1000;
}

/// Logs, metrics and the run's folder.
Log(raw, name: &str) {
    /// Folder of the run; a relative path starts at the working folder. Default: runs/NAME.
    folder: PathBuf = PathBuf::from("runs").join(name);
    /// Steps between log lines (--log-interval). Default: 1.
    interval: u64 = 1, in 1..=1_000_000_000_000_000u64;
    /// Format of log lines. Default: auto, which is short on a terminal and Megatron's elsewhere.
    format: LogFormat = LogFormat::Auto;
    /// Whether TensorBoard event files are written. Default: true.
    tensorboard: bool = true;
    /// Peak performance of all devices together, in TFLOP/s, with which the log shows MFU. Default:
    /// unknown.
    peak_tflops: f64, in 1e-6..=1e9;
    /// Folder of node_exporter's textfile collector on rank 0's node, in which the run keeps
    /// gptrain-NAME.prom until it ends. Default: none; log.folder always has metrics.prom.
    prometheus: PathBuf;
}

/// Assumptions of `gptrain estimate`.
Plan(raw) {
    /// Row of the hardware table, such as a100-80g (`gptrain estimate --list-hardware`).
    hardware: String;
    /// Trainer whose memory and time are predicted. Default: gptrain.
    framework: Framework;
    /// Price of one device for one hour. Default: the hardware table's.
    price: f64, in 0.0..=1e6;
    /// Budget of the whole run, in the price's currency.
    budget: f64, in 0.0..=1e15;
    /// Share of the wall-clock time in which the run makes progress. Default: 1.
    availability: f64, in 0.01..=1.0;
}

/// Multiple-choice questions: the model should give the right answer the highest likelihood.
EvalTask(raw) {
    /// File of JSON lines in the format of HellaSwag, ARC or PIQA; a relative path starts at the
    /// manifest's folder.
    #[schemars(required)]
    file: PathBuf => PathBuf = raw.file.unwrap_or_default(), written Some(file.clone());
    /// Number of questions to read. Default: all.
    limit: usize, in 1..=1_000_000_000;
}

/// Length, evaluation, seed, machine.
Train(raw, length: u64, validated: &Validated, batch: &Batch, report: &mut Report) {
    /// Length of the run in samples (--train-samples). Give one of samples, tokens and steps.
    samples: u64 => u64 = length, in 1..=1_000_000_000_000_000u64,
        written Some(*samples);
    /// Tasks by name, whose accuracy is measured at every evaluation. Requires data.tokenizer.
    /// Default: none.
    eval_tasks: BTreeMap<String, raw::EvalTask>
        => BTreeMap<String, EvalTask> = validated.tasks(raw.eval_tasks, report);
    /// Steps between evaluations (--eval-interval); 0 is never. Default: 1000 with validation sets or
    /// tasks.
    eval_interval: u64
        => Option<u64> = validated.interval(raw.eval_interval, &eval_tasks, report),
        in 0..=1_000_000_000_000_000u64, written eval_interval.or(Some(0));
    /// Loss at which the run saves and ends: at an evaluation that on the first validation set; without
    /// one, the mean of the last 16 steps. Default: never.
    stop_at_loss: f64, in 0.0..=1e6;
    /// Samples read from each validation set at an evaluation. Default: 10 × batch.global.
    eval_samples: u64 = 10 * batch.global as u64, in 1..=1_000_000_000_000u64;
    /// Steps between audits: weights that must be equal on several ranks are compared bit by bit;
    /// 0 is never. Default: 100.
    audit_interval: u64
        => Option<u64> = Some(raw.audit_interval.unwrap_or(100)).filter(|steps| *steps > 0),
        in 0..=1_000_000_000_000_000u64, written audit_interval.or(Some(0));
    /// Weight of (ln Σ exp(logit))² in each token's loss, which keeps logits from drifting (PaLM:
    /// 1e-4). Logged separately; validation losses exclude it. Default: none.
    z_loss: f32, in 1e-12..=1.0;
    /// Seed of initial weights and dropout. Default: 1234.
    seed: u64 = 1234, in 0..=18_446_744_073_709_551_615u64;
    /// CPU threads of each rank. Default: all, divided among the ranks of a machine.
    threads: usize, in 1..=1_024;
    /// Device: cpu, cuda, or auto. Default: auto.
    device: DeviceChoice = DeviceChoice::Auto;
    /// Maximum device memory of a rank, such as 30GiB: a rank that needs more does not start. Default:
    /// the free memory.
    device_memory: String => Option<Bytes> = time::device_memory(raw.device_memory, report),
        written device_memory.map(Bytes::exact);
} [
    /// Length of the run in tokens.
    tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// Length of the run in optimizer steps (--train-iters).
    steps: u64, in 1..=1_000_000_000_000u64;
]
}
