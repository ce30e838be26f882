//! Everything the model and the engine ask of a device.

use super::{Out, Tensor};
use crate::base::Bytes;
use std::time::Instant;

/// Operand layout of a matrix product: `C = A·Bᵀ`, `C = A·B`, `C = Aᵀ·B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gemm {
    NT,
    NN,
    TN,
}

/// What is done to a matrix product before it is stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    Nothing,
    /// C = A·B + bias, bias [1, n].
    Bias(Tensor),
    /// pre = A·B + bias is stored, C = gelu(pre). bias [1, n], pre like C.
    BiasGelu {
        bias: Tensor,
        pre: Tensor,
        gelu: Gelu,
    },
    /// C = (A·B) ⊙ gelu'(pre): the way back. pre like C.
    GeluBackward {
        pre: Tensor,
        gelu: Gelu,
    },
    /// Beside C (+)= Aᵀ·B, db (+)= Σ_rows A, since A is read anyway: the gradients of a weight and of
    /// its bias. Only of `TN` into f32. db f32 [1, m].
    BiasBackward(Out),
}

/// What a layer normalisation is by.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    pub scale: Tensor,
    pub shift: Tensor,
    pub eps: f32,
}

/// Hendrycks & Gimpel 2016: x·Φ(x), exactly or by its tanh approximation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    Tanh,
    Exact,
}

/// Inverted dropout without a stored mask: whether an element is kept is a function of its place in
/// the whole run, so recompute, resume and every way of cutting the model agree.
///
/// Element (row, column) of a tensor whose first row is row `first_row` of the micro-batch: with
/// g = first_sample·seq + first_row + row, it is dropped when word `column % 4` of
/// `philox(key, g << 64 | head << 32 | column / 4)` is below rate·2³² (head 0 outside attention;
/// inside, the column is the key's position in its sample). Kept elements grow by 1/(1 − rate).
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// In [0, 1). At 0 nothing is drawn.
    pub rate: f32,
    /// Of this layer and place (`base::rng::key`).
    pub key: u64,
    /// i64 [1, 1] in device memory: number of the micro-batch's first sample in the run.
    pub first_sample: Tensor,
    /// Rows per sample.
    pub seq: usize,
    /// Row of the micro-batch at which the tensor starts (sequence parallelism).
    pub first_row: usize,
}

/// Which keys each query sees.
#[derive(Clone, Copy, Debug)]
pub enum Visible {
    /// Key ≤ query.
    Causal,
    /// i32 [N, 2]: for each query the half-open range of keys, as positions in its own sample.
    Ranges(Tensor),
}

/// Self-attention over packed samples. The columns of qkv are laid out head by head, `[q k v]` per
/// head, so that a tensor-parallel share of whole heads is a contiguous range of columns.
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Heads in this tensor.
    pub heads: usize,
    /// Which head of the whole model the first one is.
    pub first_head: usize,
    /// Rows per sample.
    pub seq: usize,
    pub visible: Visible,
    /// ALiBi, f32 [1, heads]: slope·(key − query) is added to the scores.
    pub slopes: Option<Tensor>,
    pub dropout: Dropout,
}

/// One AdamW update (Loshchilov & Hutter 2019), decoupled decay first as PyTorch does it.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    pub weight_decay: f32,
}

/// When the scale of the loss changes (Megatron's DynamicGradScaler): it doubles after `window`
/// updates in a row; it halves at each overflow from the `hysteresis`th since it last doubled.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// 2, or 1 for a scale that stays; what else a doubling does is done all the same.
    pub growth: f32,
    pub window: u64,
    pub hysteresis: u64,
    /// The scale does not go below. An overflow that should make it do so leaves it stuck: no later
    /// step updates.
    pub min: f32,
}

/// Where the scale of the loss stands, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Scaler {
    /// f32 [1, 1].
    pub scale: Tensor,
    /// i64 [1, 5]: updates in a row; overflows left before it halves; updates; steps skipped;
    /// whether it is stuck.
    pub counts: Tensor,
}

/// A device that cannot give the memory asked for.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    pub asked: Bytes,
    pub available: Option<Bytes>,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "out of memory: {} asked for", self.asked)?;
        match self.available {
            Some(available) => write!(f, ", {available} available"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OutOfMemory {}

/// A piece of work that is asked for again and again: the same ops on the same tensors each time. What
/// differs between two times lies in tensors.
pub trait Repeat {
    /// Does it, in order with all ops. `ask` asks for the ops, a group's too; it does not wait for the
    /// device, and may be called twice. False where it was not called: the device knew them by heart.
    fn again(&mut self, ask: &mut dyn FnMut()) -> bool;
}

/// For devices that gain nothing by remembering.
struct EachTime;

impl Repeat for EachTime {
    fn again(&mut self, ask: &mut dyn FnMut()) -> bool {
        ask();
        true
    }
}

/// A device that does nothing any more: what `sync` fails with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// "GPU 0 (PCI 0000:3B:00.0, GPU-…)".
    pub device: String,
    /// What it was asked for when it failed, and how.
    pub why: String,
}

impl std::fmt::Display for Dead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.device, self.why)
    }
}

impl std::error::Error for Dead {}

/// A device. Inputs first, outputs last; every op is asynchronous and in order. A wrong shape or
/// dtype is a bug and panics; a dead device surfaces at `sync`. An output may be the same tensor as
/// an input only where the op says "in place". Activations, weights and their gradients in flight
/// are f32, bf16 or f16 (all alike in one op); arithmetic inside an op is f32 or better. For equal
/// inputs an op gives equal bits, whatever the number of threads.
pub trait Backend {
    /// Address of a fresh zeroed region, aligned to 256 bytes, that lives as long as the backend.
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory>;
    /// What all who reserve here may still touch between them; None where memory is taken when it
    /// is reserved, or the system does not say.
    fn shared_memory(&self) -> Option<Bytes> {
        None
    }
    /// Memory that the device's ops hold for themselves from the start.
    fn workspace(&self) -> Bytes {
        Bytes(0)
    }
    /// Waits for everything asked so far.
    fn sync(&self) -> anyhow::Result<()>;
    /// Host bytes to device, `to.bytes()` of them.
    fn upload(&self, from: &[u8], to: Tensor);
    /// As `upload`; the bytes travel while what was asked before still goes on, if the device can.
    fn feed(&self, from: &[u8], to: Tensor) {
        self.upload(from, to);
    }
    /// For one piece of work that will be asked for again and again; `with_others`: as part of a
    /// group. It is dropped before the groups it asks.
    fn repeat(&self, with_others: bool) -> Box<dyn Repeat> {
        let _ = with_others;
        Box::new(EachTime)
    }
    /// What a person should know of the device, each said once.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
    /// Device to host, after everything asked so far.
    fn download(&self, from: Tensor, to: &mut [u8]);
    /// Begins to copy a tensor to the host, as it is after everything asked so far, and returns at
    /// once. At most 1 MiB; at most two may be under way.
    fn send(&self, from: Tensor);
    /// Waits for the oldest `send` under way and takes its bytes. When they arrived, as far as the
    /// host knows: no later than now.
    fn receive(&self, to: &mut [u8]) -> anyhow::Result<Instant>;

    fn zero(&self, x: Tensor);
    /// y (+)= x, converting between f32, bf16 and f16. Equal numel.
    fn copy(&self, x: Tensor, y: Out);

    /// C (+)= A·B in the layout `kind`, then the epilogue. A and B of one dtype; C of theirs, or f32.
    /// With `add` the epilogue must be `Nothing` or `BiasBackward`.
    fn gemm(&self, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue);

    /// y[i] (+)= table[ids[i] − first], or 0 where this share of the table (rows `first ..`) does
    /// not have it. ids i32 [N, 1], table [v, H], y [N, H].
    fn embed(&self, ids: Tensor, table: Tensor, first: usize, y: Out);
    /// dtable[ids[i] − first] += dy[i], in the order of i. dtable f32 [v, H]; always accumulates.
    fn embed_backward(&self, dy: Tensor, ids: Tensor, first: usize, dtable: Out);

    /// y (+)= dropout(x). Its own backward. In place.
    fn dropout(&self, x: Tensor, drop: &Dropout, y: Out);
    /// y = x + dropout(branch + bias). x, branch, y [n, H]; bias [1, H]. In place on x or branch.
    fn residual(&self, x: Tensor, branch: Tensor, bias: Tensor, drop: &Dropout, y: Out);
    /// dbranch = dropout(dy); dbias += Σ_rows dbranch. dbias f32. In place (dbranch on dy); with
    /// rate 0 and dbranch on dy only the sum is left to do.
    fn residual_backward(&self, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Out);

    /// y = gelu(x). What the `BiasGelu` epilogue does, to rebuild y from the stored pre: the same bits
    /// but on CUDA, where the epilogue sees pre before it is rounded.
    fn gelu(&self, x: Tensor, gelu: Gelu, y: Out);

    /// y = (x − mean)·rstd·scale + shift over each row; stats [n, 2] f32 keeps mean and rstd.
    fn layernorm(&self, x: Tensor, norm: &Norm, y: Out, stats: Out);
    /// dx (+)= …; dscale, dshift f32 always accumulate. In place with `set` (dx on dy).
    #[allow(clippy::too_many_arguments)]
    fn layernorm_backward(
        &self,
        dy: Tensor,
        x: Tensor,
        stats: Tensor,
        scale: Tensor,
        dx: Out,
        dscale: Out,
        dshift: Out,
    );

    /// `residual`, then h = `layernorm` of y: what a device does in one pass if it can.
    #[allow(clippy::too_many_arguments)]
    fn residual_norm(
        &self,
        x: Tensor,
        branch: Tensor,
        bias: Tensor,
        drop: &Dropout,
        y: Out,
        norm: &Norm,
        h: Out,
        stats: Out,
    ) {
        self.residual(x, branch, bias, drop, y);
        self.layernorm(y.to, norm, h, stats);
    }
    /// The way back: `layernorm_backward`, whose dx accumulates, then `residual_backward` of dx.
    fn norm_residual_backward(
        &self,
        [dy, x, stats, scale]: [Tensor; 4],
        [dx, dscale, dshift]: [Out; 3],
        drop: &Dropout,
        dbranch: Out,
        dbias: Out,
    ) {
        self.layernorm_backward(dy, x, stats, scale, dx, dscale, dshift);
        self.residual_backward(dx.to, drop, dbranch, dbias);
    }

    /// y = softmax(q·kᵀ/√d + bias)·v per head and sample, never holding a T×T matrix.
    /// qkv [N, 3h], y [N, h], lse f32 [N, heads]: log-sum-exp of each query's scores. A query that
    /// sees no key gives y = 0.
    fn attention(&self, qkv: Tensor, how: &Attend, y: Out, lse: Out);
    /// dqkv from dy, with y and lse of forward. Overwrites.
    fn attention_backward(
        &self,
        dy: Tensor,
        qkv: Tensor,
        y: Tensor,
        lse: Tensor,
        how: &Attend,
        dqkv: Out,
    );

    /// Per row of this rank's share of the logits: stats f32 [R, 3] = maximum, Σ exp(logit − maximum),
    /// and the target's logit (−∞ if the target is not in this share). logits [R, v] cover vocabulary
    /// entries `first ..`; entries at or above `vocab` are padding and do not count.
    fn cross_entropy_stats(
        &self,
        logits: Tensor,
        targets: Tensor,
        first: usize,
        vocab: usize,
        stats: Out,
    );
    /// From the stats of all shares, [shares·R, 3]: losses[r] = weights[r]·(−log p(target)), f32 [R, 1];
    /// and, in place of the logits, dlogits = scale·weights[r]·(p − onehot), 0 in the padding; the
    /// losses are not scaled. targets i32 [R, 1], weights f32 [R, 1], the gradient's scale f32 [1, 1].
    /// A weight of 0 gives loss 0 whatever the logits.
    #[allow(clippy::too_many_arguments)]
    fn cross_entropy(
        &self,
        logits: Tensor,
        targets: Tensor,
        weights: Tensor,
        stats: Tensor,
        first: usize,
        vocab: usize,
        losses: Out,
        dlogits: Option<(Tensor, Out)>,
    );

    /// y (+)= Σ x, f32 [1, 1]; accumulated in f64 inside.
    fn sum(&self, x: Tensor, y: Out);
    /// out[0, i] = Σ xᵢ², f32 [1, n]; accumulated in f64 inside.
    fn square_sums(&self, xs: &[Tensor], out: Out);
    /// out[0, i] = a digest of xᵢ's bits: Σ over its elements of `digest_term` mod 2⁶⁴, which comes out
    /// the same in any order, and which one changed element always changes. xs of floats, out i64 [1, n].
    fn digests(&self, xs: &[Tensor], out: Out);
    /// out f32 [1, 2] = norm = √(Σ sums) / scale, and the factor min(1, max_norm / (norm + 1e-6)) /
    /// scale, or NaN if the norm is not finite. scale f32 [1, 1]: of the gradients that were squared.
    fn clip(&self, sums: Tensor, scale: Tensor, max_norm: f32, out: Out);
    /// What follows from a step's factor, which is NaN after an overflow: counts it as an update or
    /// as skipped, and changes the scale for the next step. pace f32 [1, 4] = the factor, made NaN if
    /// the scale was stuck before; lr / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ) at update t; 0 after an update,
    /// 1 after a step that was skipped, 2 where the scale is stuck.
    fn pace(&self, rule: &AdamW, scaling: &Scaling, scaler: Scaler, pace: Tensor);
    /// Updates master, m and v (f32) from grad·factor, and rounds master into `live` where that is
    /// another tensor. pace f32 [1, 4] as `pace` leaves it; a factor of NaN skips the update.
    #[allow(clippy::too_many_arguments)]
    fn adamw(
        &self,
        rule: &AdamW,
        pace: Tensor,
        grad: Tensor,
        master: Tensor,
        m: Tensor,
        v: Tensor,
        live: Tensor,
    );
}

/// What element `at` with those bits, as many as its dtype has, adds to a digest: the finalizer of
/// splitmix64 (Steele et al. 2014) of both, each spread by an odd number. For one place it is a
/// bijection of the bits.
pub fn digest_term(at: u64, bits: u32) -> u64 {
    let spread = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut x = spread ^ (bits as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
