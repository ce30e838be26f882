//! The table of settings: what may be written, its limits and default, and what it is once checked.
//! Reading, "did you mean", JSON Schema and effective YAML come from it; relations are in `check`.

use super::check::data::{self, Blends, Run};
use super::check::time::Validated;
use super::check::{shape, time};
use super::choices::*;
use super::define::{checked, read, sections, settings, written};
use super::forms::{self, *};
use super::report::Report;
use super::{DataStage, Dataset, Decay, LayerSplit, Objective, Position, RopeScaling, ValidSet};
use base::{Bytes, Gelu};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What is checked, as it is written.
pub trait Written {
    type Raw;
    fn written(&self) -> Option<Self::Raw>;
}

impl<T: Written> Written for BTreeMap<String, T> {
    type Raw = BTreeMap<String, T::Raw>;

    fn written(&self) -> Option<Self::Raw> {
        let one = |(name, of): (&String, &T)| Some((name.clone(), of.written()?));
        Some(self.iter().filter_map(one).collect())
    }
}

impl<T: Written> Written for Option<T> {
    type Raw = T::Raw;

    fn written(&self) -> Option<T::Raw> {
        self.as_ref().and_then(T::written)
    }
}

settings! {
/// The architecture: a decoder of blocks that each normalise before attention and before the
/// feed-forward layer. The parts combine freely.
Model(raw, tensor: usize) {
    /// Whose defaults the other settings take, and whose names the weights have in Hugging Face's
    /// folders. Default: bloom where position is alibi, else gpt2.
    family: Family = Family::of_position(raw.position.as_ref());
    /// Transformer blocks (Megatron's --num-layers).
    layers: usize, required in 1..=10_000;
    /// Width of the residual stream (--hidden-size); a multiple of `heads` without `head_dim`.
    hidden: usize, required in 1..=1_048_576;
    /// Attention heads (--num-attention-heads).
    heads: usize, required in 1..=65_536;
    /// Heads of keys and values, which divide `heads`: each serves so many query heads
    /// (--num-query-groups). Default: heads.
    kv_heads: usize, in 1..=65_536;
    /// Columns of a head (--kv-channels). Default: hidden / heads.
    head_dim: usize, in 1..=256;
    /// The feed-forward layer. Default: gelu, of the Llama families swiglu.
    ffn: Ffn = family.ffn();
    /// Width inside the feed-forward layer (--ffn-hidden-size). Default: 4 × hidden; of swiglu
    /// 8/3 × hidden, rounded up to a multiple of 256.
    ffn_hidden: usize = ffn.hidden(hidden), in 1..=8_388_608;
    /// Number of tokens the tokenizer knows: every token id is below it.
    vocab: usize, required in 2..=2_147_483_647;
    /// Rows of the embedding are rounded up to a multiple of this × topology.tensor
    /// (--make-vocab-size-divisible-by). Default: 128.
    vocab_multiple: usize = 128, in 1..=1_048_576;
    /// Tokens per sample (--seq-length).
    seq_len: usize, required in 1..=16_777_216;
    /// How tokens know their place: learned, alibi, rope, or rope with settings. Default: learned;
    /// of family bloom, alibi; of the Llama families, rope.
    position: PositionForm => Position = shape::position(raw.position, family);
    /// Rows of the table of learned positions, at least seq_len (--max-position-embeddings): of a
    /// model that was made for longer samples. Default: seq_len.
    positions: usize, in 1..=16_777_216;
    /// Keys that a query sees at most, its own among them: a sliding window. Default: all.
    window: usize, in 1..=16_777_216;
    /// Whether each head's queries and keys are normalised by their root mean square. Default:
    /// false, of family qwen3 true.
    qk_norm: bool = family == Family::Qwen3;
    /// Which products of a block add a bias: none, qkv, attention, all. Default: all; of family
    /// qwen2, qkv; of the other Llama families, none.
    bias: Bias = family.bias();
    /// The normalisation: layer or rms. Default: layer, of the Llama families rms.
    norm: NormKind = family.norm();
    /// A norm after the embedding (--embed-layernorm). Default: false, unless family is set to
    /// bloom.
    embedding_layernorm: bool = raw.family == Some(Family::Bloom);
    /// Whether the output layer is the embedding itself. Default: true, of the Llama families
    /// false. False is Megatron's --untie-embeddings-and-output-weights.
    tied_head: bool = !family.is_llama();
    /// Every logit x counts as c·tanh(x/c) of this c, in training as in sampling (Gemma 2: 30).
    /// Default: none.
    logit_softcap: f32, in 1e-3..=1e6;
    /// Which formula of ffn: gelu. Default: tanh, as GPT-2, Megatron and BLOOM.
    gelu: Gelu = Gelu::Tanh;
    /// Added to the variance in every norm (--layernorm-epsilon). Default: 1e-5, of families qwen2
    /// and qwen3 1e-6.
    layernorm_eps: f32 = family.eps(), in 1e-12..=1.0;
    /// Drop rates: one number for all, or one each. Default: 0 (Megatron's default is 0.1).
    dropout: DropoutForm => Dropout = shape::dropout(raw.dropout);
    /// Initial weights.
    init: Init => Init = Init::read(raw.init.unwrap_or_default());
    /// Widths by µP: a learning rate that was found for a narrow model holds for this one.
    /// Default: none.
    mup: Mup => Option<Mup> = raw.mup.map(Mup::read);
} (
    /// Rows of the embedding: `vocab`, rounded up to divide by tensor parallelism and tiles.
    vocab_padded: usize = vocab.next_multiple_of(vocab_multiple * tensor);
)

#[derive(Copy)]
/// Rotary embedding (Su et al. 2021): pairs of columns of queries and keys are turned by angles
/// that grow with the position.
Rope(raw) {
    /// What the angle of a position's pair falls with, from 1 to 1/theta (--rotary-base).
    /// Default: 10_000.
    theta: f64 = 10_000.0, in 1.0..=1e12;
    /// Longer wavelengths for longer samples. Default: none.
    scaling: Scaling => Option<RopeScaling> = shape::scaling(raw.scaling);
}

#[derive(Copy)]
/// Position interpolation (Chen et al. 2023).
Linear(raw) {
    /// What positions are divided by.
    factor: f64, required in 1.0..=1e6;
}

#[derive(Copy)]
/// Llama 3.1's: wavelengths above original_seq_len / low_freq_factor grow by the factor, those
/// below original_seq_len / high_freq_factor do not, and between them by a share.
Llama3(raw) {
    /// What the long wavelengths grow by.
    factor: f64, required in 1.0..=1e6;
    /// Turns in the original length below which a wavelength is long. Default: 1.
    low_freq_factor: f64 = 1.0, in 1e-3..=1e6;
    /// Turns in the original length above which it is short. Default: 4.
    high_freq_factor: f64 = 4.0, in 1e-3..=1e6;
    /// Tokens per sample before the scaling.
    original_seq_len: usize, required in 1..=16_777_216;
}

#[derive(Copy)]
/// YaRN (Peng et al. 2023).
Yarn(raw) {
    /// What the long wavelengths grow by.
    factor: f64, required in 1.0..=1e6;
    /// Tokens per sample before the scaling.
    original_seq_len: usize, required in 1..=16_777_216;
    /// Turns in the original length above which a wavelength is short. Default: 32.
    beta_fast: f64 = 32.0, in 1e-3..=1e6;
    /// Turns in the original length below which it is long. Default: 1.
    beta_slow: f64 = 1.0, in 1e-3..=1e6;
    /// What rotated queries and keys are multiplied with. Default: 0.1·ln(factor) + 1.
    attention_factor: f64, in 1e-3..=1e3;
    /// Whether the pairs between which wavelengths are mixed are whole numbers. Default: true.
    truncate: bool = true;
}

#[derive(Copy)]
/// Drop rates at the three places; each defaults to 0.
Dropout(raw) {
    /// After the embedding.
    embedding: f32 = 0.0, in 0.0..=0.999;
    /// On the attention's weights (--attention-dropout).
    attention: f32 = 0.0, in 0.0..=0.999;
    /// On what each block adds to the residual stream (--hidden-dropout).
    residual: f32 = 0.0, in 0.0..=0.999;
}

/// How weights begin; biases begin at 0 and norms at 1.
Init(raw) {
    /// Standard deviation of the normal distribution (--init-method-std). Default: 0.02.
    std: f32 = 0.02, in 0.0..=10.0;
    /// Projections into the residual stream start smaller by 1/sqrt(2·layers). Default: true.
    scale_residual: bool = true;
}

#[derive(Copy)]
/// Maximal update parametrisation (µP; Yang et al. 2022, Tensor Programs V) of a model r =
/// hidden / base_hidden times as wide as the one for which lr.peak and init.std were found.
/// Matrices of blocks begin smaller by √r, and AdamW's and Adafactor's steps of them are smaller by r.
Mup(raw) {
    /// model.hidden of that one (--mup-base-hidden-size).
    base_hidden: usize, required in 1..=1_048_576;
    /// Columns of a head of that one (--mup-base-head-dim): scores are multiplied by
    /// √base_head_dim / head_dim. Default: as here, which gives 1/√head_dim.
    base_head_dim: usize, in 1..=256;
    /// What the embedding is multiplied by (--mup-embedding-mult). Default: 1.
    embedding_multiplier: f32 = 1.0, in 1e-6..=1e6;
    /// What logits are multiplied by, beside 1/r (--mup-output-mult). Default: 1.
    output_multiplier: f32 = 1.0, in 1e-6..=1e6;
}

/// Datasets in Megatron's format (PREFIX.bin and PREFIX.idx), sample order and masks.
Data(raw, blends: &mut Blends, run: &Run) {
    /// Seed of the sample order. Default: 1234, as Megatron's.
    seed: u64 = 1234, in 0..=4_294_967_295u64;
    /// Whose sample order and split rule is followed. Default: mcore.
    rule: DataRule = DataRule::MegatronCore;
    /// What is trained on: a prefix, or a list of datasets with weights. Relative prefixes start
    /// at the manifest's folder.
    #[schemars(required)]
    train: Blend => Vec<Dataset> = blends.blend(raw.train, "data.train", 0);
    /// Other training datasets or weights from later points of the run on. Each dataset goes on
    /// where it was left: no sample is repeated or skipped. Default: none.
    stages: Vec<forms::DataStage> => Vec<DataStage> = blends.stages(raw.stages, run);
    /// Named validation sets: name → a prefix, or a list of datasets with weights. Default: one
    /// set named `valid`, the valid share of the training datasets (if their split has one).
    #[schemars(with = "Option<BTreeMap<String, Blend>>")]
    valid: Named => Vec<ValidSet> = blends.valid(raw.valid, &train);
    /// Folder for the order of samples where it takes more than a second to build, from where
    /// gptrain is started (--data-cache-path). Default: `order` in the run's folder.
    cache: PathBuf = run.folder.join("order");
    /// The tokenizer.json, for showing text. Default: none.
    tokenizer: PathBuf => Option<PathBuf> = raw.tokenizer.map(|path| blends.resolve(path)),
        written tokenizer.clone();
    /// What an end-of-document token changes. Default: nothing.
    eod: Eod => Option<Eod> = raw.eod.map(Eod::read);
    /// Tokens see only their own document, and positions start again in each, by the bounds of the
    /// index and not by a token: for data without EOD (--dataloader-inter-document-masking). As in
    /// Megatron-Core, a sequence of the index counts as a document. Default: false.
    inter_document_masking: bool = false;
    /// Samples have one token more than seq_len, which is only predicted. Without it the last
    /// position of a sample has no target. Default: true.
    add_extra_token_to_sequence: bool = true;
    /// Tokens at the end of a validation set that do not fill a sample are not read; else they are
    /// one, padded. Default: true.
    drop_last_partial_validation_sequence: bool = true;
    /// What is learned. Default: causal.
    objective: ObjectiveForm => Objective = data::objective(raw.objective);
} [
    /// Shares of train, valid and test, such as `969,30,1` (--split), for every dataset that has
    /// no `split` or `range` of its own. Default: `969,30,1` where `valid` is left out, else the
    /// whole of every dataset.
    split: String;
]

#[derive(Copy)]
/// What an end-of-document token changes.
Eod(raw) {
    /// Its id.
    token: u32, required in 0..=2_147_483_647;
    /// No loss where the input is the EOD token (--eod-mask-loss). Default: false.
    mask_loss: bool = false;
    /// Positions start again after it (--reset-position-ids). Default: false.
    reset_positions: bool = false;
    /// Tokens see only their own document (--reset-attention-mask). Default: false.
    reset_attention: bool = false;
}

#[derive(Copy)]
/// Prefix language modelling: a random prefix of each sample sees itself whole.
PrefixLm(raw) {
    /// No loss inside the prefix (--loss-on-targets-only). Default: true.
    loss_on_targets_only: bool = true;
}

/// Batch sizes, in samples.
Batch(raw, report: &mut Report) {
    /// Samples a rank computes at once (--micro-batch-size).
    micro: usize, required in 1..=1_048_576;
    /// Samples per optimizer step, over all ranks (--global-batch-size); a multiple of
    /// micro × topology.data.
    global: usize, required in 1..=16_777_216;
    /// A smaller global batch at the start. Default: none.
    ramp_up: RampUpForm => Option<RampUp> = time::ramp_up(raw.ramp_up, report);
}

#[derive(Copy)]
/// Growth of the global batch, as Megatron's --rampup-batch-size.
RampUp(raw) {
    /// The first global batch.
    start: usize, required in 1..=16_777_216;
    /// What is added each time; divides global − start.
    increment: usize, required in 1..=16_777_216;
    /// Samples over which the batch grows from start to global.
    samples: u64, required in 1..=1_000_000_000_000_000u64;
}

/// The learning rate: warm-up from 0 to the peak, then a decay to the minimum.
Lr(raw, run: u64, seq_len: usize, report: &mut Report) {
    /// The highest learning rate (--lr).
    peak: f64, required in 0.0..=1000.0;
    /// The lowest after the decay (--min-lr). Default: 0.
    min: f64 = 0.0, in 0.0..=1000.0;
    /// Length of the linear warm-up in samples (--lr-warmup-samples). Default: 0.
    warmup_samples: u64 => u64 = time::warmup(&raw, seq_len, report),
        in 0..=1_000_000_000_000_000u64, written Some(*warmup_samples);
    /// The shape after the warm-up: constant, linear, cosine or wsd. Default: cosine, over the run.
    decay: DecayForm => Decay = time::decay(raw.decay, run, warmup_samples, seq_len, report);
    /// Samples that the rate of a step is of: after it, or before it as Megatron counts. Default:
    /// after; an imported run follows its trainer.
    counted: LrCounted = LrCounted::After;
} [
    /// Length of the warm-up in tokens, instead of warmup_samples.
    warmup_tokens: u64, in 0..=1_000_000_000_000_000u64;
]

/// How the work is divided: tensor × pipeline × data ranks.
Topology(raw) {
    /// Ranks that share each matrix (--tensor-model-parallel-size). Default: 1.
    tensor: usize = 1, in 1..=65_536;
    /// Stages the layers are cut into (--pipeline-model-parallel-size). Default: 1.
    pipeline: usize = 1, in 1..=65_536;
    /// Replicas that share the batch. Default: 1.
    data: usize = 1, in 1..=1_048_576;
    /// What replicas keep only a share of: 0 nothing, 1 optimizer states, 2 gradients too,
    /// 3 weights too (--zero-stage); in a pipeline at most 1. Default: 0.
    zero: u8 = 0, in 0..=3;
    /// Tensor-parallel ranks share norms and dropout along the sequence (--sequence-parallel);
    /// with tensor: 1 it is off. Default: false.
    sequence_parallel: bool = false;
    /// The order of forwards and backwards in the pipeline. Default: 1f1b.
    schedule: Schedule = Schedule::OneFOneB;
    /// Chunks of layers per stage, for schedule: interleaved. Default: 2.
    chunks: usize
        => usize = if schedule == Schedule::Interleaved { raw.chunks.unwrap_or(2) } else { 1 },
        in 2..=1024, written Some(*chunks).filter(|chunks| *chunks > 1);
    /// Messages between stages travel beside the passes of schedule: interleaved, not between them
    /// (--overlap-p2p-communication); on GPUs it needs independent streams. Default: false.
    overlap_p2p: bool = false;
    /// How layers are cut into stages: a rule, or a list of layers per stage; with schedule:
    /// interleaved, per chunk in the model's order. Default: uniform.
    layer_split: LayerSplitForm => LayerSplit = shape::layer_split(raw.layer_split);
    /// Which ranks are neighbours; tensor-parallel ranks always are. Default: data.
    neighbours: RankOrder = RankOrder::Data;
    /// What is thrown away in forward and computed again in backward. Default: none.
    recompute: Recompute = Recompute::None;
    /// What lies in the memory of the host in place of the device's: none, optimizer,
    /// full, or settings. Changes no number, but for delay. Default: none.
    offload: OffloadForm => Offload = shape::offload(raw.offload);
    /// Less to send between replicas, for slow networks: powersgd; with zero at most 1. A single
    /// replica sends nothing and compresses nothing. Default: none.
    compression: CompressionForm => Option<PowerSgd> = shape::compression(raw.compression);
}

#[derive(Copy)]
/// What lies in the memory of the host (ZeRO-Offload: Ren et al. 2021).
Offload(raw) {
    /// Default: none.
    what: OffloadWhat = OffloadWhat::None;
    /// Where gradients wait for the update. Default: auto.
    gradients: GradientHome = GradientHome::Auto;
    /// Steps by which updates come late, while the next step computes: 0 or 1. 1 changes the
    /// training: steps are by stale gradients. Default: 0.
    delay: u8 = 0, in 0..=1;
    /// Steps at the start of a run without delay. Default: 40.
    delay_after: u64 = 40, in 0..=1_000_000_000_000u64;
}

#[derive(Copy)]
/// Replicas sum up low-rank factors of the gradients of the blocks' matrices, and keep what those
/// leave out for the next step (PowerSGD: Vogels, Karimireddy & Jaggi 2019). Another tensor
/// parallelism compresses other shares, so it trains a little differently. At a save replicas take the
/// mean of what they keep, which changes the steps after it by rounding.
PowerSgd(raw) {
    /// Columns of the factors: 4·rank·(rows + columns) bytes stand for a matrix. Default: 4.
    rank: usize = 4, in 1..=32;
    /// Steps at the start of the run that send whole gradients. Default: 1000.
    start_step: u64 = 1000, in 0..=1_000_000_000_000_000u64;
    /// A matrix is compressed if its factors are smaller by more than this. Default: 2.
    min_rate: f64 = 2.0, in 1.0..=1e6;
}

/// Saving.
Checkpoint(raw) {
    /// Steps between saves (--save-interval); the last step is always saved. Default: 1000.
    interval: u64 = 1000, in 1..=1_000_000_000_000_000u64;
    /// How many of the newest checkpoints are kept. Default: all.
    keep_last: usize, in 1..=1_000_000_000;
    /// With keep_last: checkpoints whose step is a multiple of this are kept too. Default: none.
    keep_every: u64, in 1..=1_000_000_000_000_000u64;
    /// Saves that may be written at once while training goes on, each with a copy of the run's
    /// state in host memory; with 0, training waits for every save (--async-save). Default: 1.
    in_flight: usize = 1, in 0..=8;
    /// Seconds for which writes into the run's folder wait while it is full, or its file server is
    /// away; training goes on meanwhile, and what it logs follows. 0 ends the run at once. Default: 600.
    wait_for_storage_s: f64 = 600.0, in 0.0..=1e6;
    /// Another place to which every checkpoint that is durable is copied in the background:
    /// s3://BUCKET/PREFIX, with the credentials of the environment, or file:///FOLDER. keep_last and
    /// keep_every count there too. Default: none.
    also: String;
}

#[derive(Copy)]
/// Loss spikes: steps whose loss or gradient norm is far above those of the last 128 that were not.
Divergence(raw) {
    /// What is done: off, warn, or act. Default: act, where other settings are given.
    action: SpikeAction = SpikeAction::Act;
    /// How far above their median, in units of their scatter. Default: 8.
    sigmas: f64 = 8.0, in 1.0..=1e6;
    /// The least rise of the loss that counts, in nats. Default: 0.5.
    loss_rise: f64 = 0.5, in 0.0..=1e6;
    /// The least rise of the gradient norm that counts, as a factor. Default: 10.
    norm_rise: f64 = 10.0, in 1.0..=1e6;
    /// Updates that are skipped in a row before the run goes back to a checkpoint. Default: 3.
    skips: u32 = 3, in 0..=1000;
    /// Steps that the run goes back at least, and leaves out beyond the spike. Default: 100.
    roll_back: u64 = 100, in 1..=1_000_000_000u64;
    /// How often the run goes back before it stops. Default: 3.
    roll_backs: usize = 3, in 0..=1000;
    /// The least rise of an update's norm (log.update_norm) that is named, as a factor; no more is
    /// done about it. Default: 2.
    update_rise: f64 = 2.0, in 1.0..=1e6;
}

/// Reporting.
Log(raw, name: &str) {
    /// The run's folder, from where gptrain is started. Default: runs/NAME.
    folder: PathBuf = PathBuf::from("runs").join(name);
    /// Steps between log lines (--log-interval). Default: 1.
    interval: u64 = 1, in 1..=1_000_000_000_000_000u64;
    /// What log lines look like. Default: auto, short on a terminal and Megatron's elsewhere.
    format: LogFormat = LogFormat::Auto;
    /// Steps between those whose update's norm is logged and watched: the length of the change of all
    /// weights. 0: none; nor where updates come late (topology.offload). Default: 10.
    update_norm: u64 = 10, in 0..=1_000_000_000_000_000u64;
    /// Whether TensorBoard event files are written. Default: true.
    tensorboard: bool = true;
    /// What all devices together reach at best, in TFLOP/s: with it the log shows MFU.
    /// Default: unknown.
    peak_tflops: f64, in 1e-6..=1e9;
    /// Port of the run's numbers for Prometheus (GET /metrics), on rank 0's node. Default: none.
    metrics_port: u16, in 1..=65_535;
    /// Where it listens; 0.0.0.0 lets everybody read who reaches the node. Default: 127.0.0.1.
    metrics_host: String = "127.0.0.1".to_string();
}

/// What `gptrain estimate` plans for.
Plan(raw) {
    /// A row of the hardware table, such as a100-80g (`gptrain estimate --list-hardware`).
    hardware: String;
    /// Whose memory and time are predicted. Default: gptrain.
    framework: Framework;
    /// Of one device and hour. Default: the hardware table's.
    price: f64, in 0.0..=1e6;
    /// Money for the whole run, in the price's currency.
    budget: f64, in 0.0..=1e15;
    /// Share of the calendar in which the run makes progress. Default: 1.
    availability: f64, in 0.01..=1.0;
}

/// Questions with several answers, of which a model should find the right one likeliest.
EvalTask(raw) {
    /// JSON lines as HellaSwag's, ARC's or PIQA's; a relative path starts at the manifest's folder.
    #[schemars(required)]
    file: PathBuf => PathBuf = raw.file.unwrap_or_default(), written Some(file.clone());
    /// Only the first so many are read. Default: all.
    limit: usize, in 1..=1_000_000_000;
}

/// Length, evaluation, seed, machine.
Train(raw, length: u64, validated: &Validated, batch: &Batch, report: &mut Report) {
    /// Length of the run in samples (--train-samples). One of samples, tokens and steps is given.
    samples: u64 => u64 = length, in 1..=1_000_000_000_000_000u64,
        written Some(*samples);
    /// Tasks by name, whose accuracy is measured at every evaluation; they need data.tokenizer.
    /// Default: none.
    eval_tasks: BTreeMap<String, raw::EvalTask>
        => BTreeMap<String, EvalTask> = validated.tasks(raw.eval_tasks, report);
    /// Steps between evaluations (--eval-interval); 0 is never. Default: 1000 where there are
    /// validation sets or tasks.
    eval_interval: u64
        => Option<u64> = validated.interval(raw.eval_interval, &eval_tasks, report),
        in 0..=1_000_000_000_000_000u64, written eval_interval.or(Some(0));
    /// The run saves and ends when its loss is at most this: at an evaluation the loss on the first
    /// validation set; without one, the mean of the last 16 steps. Default: never.
    stop_at_loss: f64, in 0.0..=1e6;
    /// Samples read from each validation set at an evaluation. Default: 10 × batch.global.
    eval_samples: u64 = 10 * batch.global as u64, in 1..=1_000_000_000_000u64;
    /// Steps between audits: weights that must be equal on several ranks are compared bit by bit;
    /// 0 is never. Default: 100.
    audit_interval: u64
        => Option<u64> = Some(raw.audit_interval.unwrap_or(100)).filter(|steps| *steps > 0),
        in 0..=1_000_000_000_000_000u64, written audit_interval.or(Some(0));
    /// What (ln Σ exp(logit))² adds to each token's loss, so that logits do not drift (PaLM: 1e-4).
    /// Logged by itself; validation is without it. Default: none.
    z_loss: f32, in 1e-12..=1.0;
    /// Seed of initial weights and dropout. Default: 1234.
    seed: u64 = 1234, in 0..=18_446_744_073_709_551_615u64;
    /// CPU threads of each rank. Default: all there are, shared among the ranks of a machine.
    threads: usize, in 1..=1_024;
    /// The machine: cpu, cuda, or what there is. Default: auto.
    device: DeviceChoice = DeviceChoice::Auto;
    /// The most of a device's memory that a rank reserves, such as 30GiB: a rank that needs more
    /// does not start. Default: what is free.
    device_memory: String => Option<Bytes> = time::device_memory(raw.device_memory, report),
        written device_memory.map(Bytes::exact);
} [
    /// Length of the run in tokens.
    tokens: u64, in 1..=1_000_000_000_000_000u64;
    /// Length of the run in optimizer steps (--train-iters).
    steps: u64, in 1..=1_000_000_000_000u64;
]
}
