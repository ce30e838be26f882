//! Trait of a device: its memory, copies, graphs and ops.

use super::{
    AdafactorOps, Attend, Dropout, Epilogue, Fp8Ops, Gemm, Home, Logits, MuonOps, Norm, OpTimes,
    Out, QueryKey, Section, Tensor, ZLoss,
};
use base::{Bytes, DType, Gelu, decayed, div_exact};
use std::sync::Arc;
use std::time::Instant;

/// AdamW update (Loshchilov & Hutter 2019), with decoupled decay first, as in PyTorch.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    pub weight_decay: f32,
    /// Factor of the step; weight decay is not scaled.
    pub lr_scale: f32,
}

/// 8-bit numbers: number i is the value of `codes[i]` in a map of `dynamic_map`, times the scale of
/// its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    /// u8 [1, n].
    pub codes: Tensor,
    /// f32 [1, n / block].
    pub scales: Tensor,
}

impl Coded {
    /// Smallest block, which divides all others.
    pub const SMALLEST: usize = 16;

    /// Panics if the tensors of an update do not fit. Returns the elements of a block: 16, 32 or
    /// 64.
    pub fn check(grad: Tensor, master: Tensor, moments: [Coded; 2], weight: Tensor) -> usize {
        let n = grad.numel();
        assert_eq!(
            [master.numel(), weight.numel()],
            [n; 2],
            "elements of the gradient and weights"
        );
        assert_eq!(master.dtype, DType::F32, "the master weight is f32");
        let block = div_exact(n, moments[0].scales.numel());
        assert!([16, 32, 64].contains(&block), "blocks of {block} elements");
        for Coded { codes, scales } in moments {
            assert_eq!((codes.numel(), codes.dtype), (n, DType::U8), "codes");
            assert_eq!((scales.numel(), scales.dtype), (n / block, DType::F32), "scales");
        }
        block
    }
}

/// Arguments of an AdamW update of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct AdamWUpdate {
    pub rule: AdamW,
    pub grad: Tensor,
    pub master: Tensor,
    pub m: Tensor,
    pub v: Tensor,
    pub weight: Tensor,
}

impl AdamW {
    /// Factor that weight decay applies to a weight, 1 − lr·weight_decay.
    pub fn keep(&self) -> f32 {
        decayed(self.lr, self.weight_decay)
    }
}

/// Rules of the loss scaler (Megatron's DynamicGradScaler). The scale doubles after `window`
/// updates in a row. It halves at each overflow from the `hysteresis`th since it last doubled.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// Factor of an increase: 2, or 1 for a constant scale, whose counters change too.
    pub growth: f32,
    pub window: u64,
    pub hysteresis: u64,
    /// Minimum of the scale. An overflow at the minimum makes the scaler stuck: no later step
    /// updates.
    pub min: f32,
}

/// State of the loss scaler, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Scaler {
    /// f32 [1, 1].
    pub scale: Tensor,
    /// i64 [1, 5]: updates in a row; overflows left before it halves; updates; skipped steps;
    /// whether it is stuck.
    pub counts: Tensor,
}

/// Upper limits of a step's loss and gradient norm. A step above them is skipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLimits {
    pub loss: f32,
    pub norm: f32,
}

impl Scaler {
    /// Address of the counters. Panics if there are not five.
    pub fn counts_address(&self) -> usize {
        assert_eq!(self.counts.numel(), 5, "the loss scaler's counts");
        self.counts.addr()
    }
}

/// Error of a reservation larger than the free memory of the device or its host.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    pub home: Home,
    pub asked: Bytes,
    pub available: Option<Bytes>,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = if self.home == Home::Host { "host memory" } else { "memory" };
        write!(f, "out of {of}: {} asked for", self.asked)?;
        match self.available {
            Some(available) => write!(f, ", {available} available"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OutOfMemory {}

/// `Backend::logits_chunk` of a CPU.
pub const LOGITS_CHUNK: Bytes = Bytes(64 << 20);

/// Repeated pass with the same ops on the same tensors, which a device may capture. Only the
/// contents of the tensors differ between runs.
pub trait Graph {
    /// Runs `enqueue`, or replays a captured graph of it. `enqueue` enqueues ops and collectives
    /// without waiting for the device, and may be called twice. Returns false if the graph was
    /// replayed and `enqueue` was not called.
    fn run(&mut self, enqueue: &mut dyn FnMut()) -> bool;
}

/// Graph of devices that capture nothing.
struct Eager;

impl Graph for Eager {
    fn run(&mut self, enqueue: &mut dyn FnMut()) -> bool {
        enqueue();
        true
    }
}

/// Timestamps on the clock of an asynchronous device, for traces. Only `read` waits.
pub trait Timeline: Send + Sync {
    /// Marks the completion of everything enqueued so far, and returns the index of the mark. None
    /// during a capture.
    fn mark(&self) -> Option<usize>;
    /// Nanoseconds from the start of the timeline to each mark, by index. Waits for the device.
    fn read(&self) -> Vec<i64>;
}

/// Error of `sync` after the device has failed. It runs no further ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// For example "GPU 0 (PCI 0000:3B:00.0, GPU-…)".
    pub device: String,
    /// First call that failed, and its error.
    pub why: String,
}

impl std::fmt::Display for Dead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.device, self.why)
    }
}

impl std::error::Error for Dead {}

/// Copy between the device and its host that is in flight.
#[must_use]
#[derive(Debug)]
pub struct Transfer(pub(super) usize);

/// Device. Ops take inputs first and outputs last, and are asynchronous and in order. A wrong shape
/// or dtype is a bug and panics; a dead device is reported by `sync`. An output may be the same
/// tensor as an input only if the op says "in place". Activations, weights and their gradients in
/// flight are f32, bf16 or f16 (all equal in one op); arithmetic inside an op is f32 or better.
/// Equal inputs give equal bits, for any number of threads.
///
/// Tensors are in device memory. `upload`, `download`, `zero` and `digests` also take host tensors;
/// the ops of `host` take only those.
pub trait Backend: AdafactorOps + MuonOps + Fp8Ops {
    /// Address of a new zeroed region, aligned to 256 bytes, with the lifetime of the backend.
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory>;
    /// Like `reserve`, for host memory, which is page-locked if the device copies to and from it.
    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory>;
    /// The host's processor as a device for host memory. A CPU is its own host.
    fn host(&self) -> &dyn Backend;
    /// Starts to copy a tensor to one of equal size in the other memory. A copy to the host waits
    /// for everything enqueued so far and copies its result; a copy to the device also waits for
    /// all of that. Until the copy is done, `from` must not be written and `to` must not be used.
    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer;
    /// Orders everything enqueued from now on after a copy. The host does not wait.
    fn join_transfer(&self, transfer: Transfer);
    /// Blocks the host until a copy is done.
    fn finish_transfer(&self, transfer: Transfer);
    /// Bytes that all processes of this machine may still touch. None if memory is allocated when
    /// reserved, or if the system does not report it.
    fn shared_memory(&self) -> Option<Bytes> {
        None
    }
    /// Bytes that the device's ops reserve for themselves when it is opened.
    fn workspace(&self) -> Bytes {
        Bytes(0)
    }
    /// Bytes of logits that the head computes at once, enough for full speed of its products.
    fn logits_chunk(&self) -> Bytes {
        LOGITS_CHUNK
    }
    /// Whether tensors have contents: not on a device that only counts.
    fn has_contents(&self) -> bool {
        true
    }
    /// Sets the section of the step that the following ops belong to.
    fn enter(&self, section: Section) {
        let _ = section;
    }
    /// Times each of the following ops until `take_times`. Returns false if the device cannot; a GPU
    /// can if it is `alone`, without collectives between its ops.
    fn time_ops(&self, alone: bool) -> bool {
        let _ = alone;
        false
    }
    /// Stops timing, and returns the seconds of the ops since `time_ops`.
    fn take_times(&self) -> OpTimes {
        OpTimes::default()
    }
    /// Waits until everything enqueued so far is done.
    fn sync(&self) -> anyhow::Result<()>;
    /// Copies `to.bytes()` host bytes to the device.
    fn upload(&self, from: &[u8], to: Tensor);
    /// Like `upload`. The copy overlaps with the ops enqueued before, if the device supports it.
    fn upload_async(&self, from: &[u8], to: Tensor) {
        self.upload(from, to);
    }
    /// Creates the graph of one repeated pass that contains collectives of `groups` groups with
    /// several ranks. It must be dropped before its groups.
    fn graph(&self, groups: usize) -> Box<dyn Graph> {
        let _ = groups;
        Box::new(Eager)
    }
    /// Starts a timeline once everything enqueued so far is done. None if ops are synchronous.
    fn timeline(&self) -> Option<Arc<dyn Timeline>> {
        None
    }
    /// Copies device memory to the host, after everything enqueued so far.
    fn download(&self, from: Tensor, to: &mut [u8]);
    /// Starts to copy a tensor to the host, after everything enqueued so far, and returns at once.
    /// At most 1 MiB; at most two may be in flight.
    fn download_async(&self, from: Tensor);
    /// Waits for the oldest download in flight and takes its bytes. Returns their arrival time,
    /// as estimated by the host: no later than now.
    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Instant>;

    fn zero(&self, x: Tensor);
    /// y (+)= x, converting between f32, bf16 and f16. Equal numel.
    fn copy(&self, x: Tensor, y: Out);

    /// x ← factor·x, for any float dtype.
    fn multiply(&self, factor: f32, x: Tensor) {
        self.blend(factor, x, 0.0, x);
    }

    /// C (+)= A·B in the layout `kind`, then the epilogue. A and B of one dtype; C of theirs, or
    /// f32. With `add` the epilogue must be `Nothing` or `BiasBackward`.
    fn gemm(&self, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue);

    /// y[i] (+)= table[ids[i] − first], or 0 if this share of the table (rows `first ..`) does not
    /// contain it. ids i32 [N, 1], table [v, H], y [N, H].
    fn embed(&self, ids: Tensor, table: Tensor, first: usize, y: Out);
    /// dtable[ids[i] − first] += dy[i], in the order of i. dtable f32 [v, H]; always accumulates.
    fn embed_backward(&self, dy: Tensor, ids: Tensor, first: usize, dtable: Out);

    /// y (+)= dropout(x). Its own backward. In place.
    fn dropout(&self, x: Tensor, drop: &Dropout, y: Out);
    /// y = x + dropout(branch + bias). x, branch, y [n, H]; bias [1, H], if there is one. In place
    /// on x or branch.
    fn residual(&self, x: Tensor, branch: Tensor, bias: Option<Tensor>, drop: &Dropout, y: Out);
    /// dbranch = dropout(dy); dbias += Σ_rows dbranch, if there is a bias. dbias f32. In place
    /// (dbranch on dy); with rate 0 in place, only the sum is computed.
    fn residual_backward(&self, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Option<Out>);

    /// y = gelu(x). Recomputes the result of the `BiasGelu` epilogue from the stored pre. The bits
    /// are equal except on CUDA, where the epilogue uses pre before rounding.
    fn gelu(&self, x: Tensor, gelu: Gelu, y: Out);

    /// y = silu(gate)·value, silu(g) = g/(1 + e^−g): columns 2i and 2i + 1 of x [N, 2f] are gate and
    /// value of column i of y [N, f] (Shazeer 2020).
    fn swiglu(&self, x: Tensor, y: Out);
    /// dx [N, 2f] from dy [N, f]. Overwrites.
    fn swiglu_backward(&self, dy: Tensor, x: Tensor, dx: Out);

    /// y = the norm of each row; stats [n, 2] f32 = the mean (0 for an RMS norm) and 1/std.
    fn layernorm(&self, x: Tensor, norm: &Norm, y: Out, stats: Out);
    /// dx (+)= …; dscale, dshift f32 always accumulate. Without dshift the norm is `Norm::Rms`. In
    /// place with `set` (dx on dy).
    #[allow(clippy::too_many_arguments)]
    fn layernorm_backward(
        &self,
        dy: Tensor,
        x: Tensor,
        stats: Tensor,
        scale: Tensor,
        dx: Out,
        dscale: Out,
        dshift: Option<Out>,
    );

    /// `residual`, then h = `layernorm` of y. Fused into one pass over memory if the device
    /// supports it.
    #[allow(clippy::too_many_arguments)]
    fn residual_norm(
        &self,
        x: Tensor,
        branch: Tensor,
        bias: Option<Tensor>,
        drop: &Dropout,
        y: Out,
        norm: &Norm,
        h: Out,
        stats: Out,
    ) {
        self.residual(x, branch, bias, drop, y);
        self.layernorm(y.to, norm, h, stats);
    }
    /// Backward of `residual_norm`: `layernorm_backward`, whose dx accumulates, then
    /// `residual_backward` of dx.
    fn norm_residual_backward(
        &self,
        [dy, x, stats, scale]: [Tensor; 4],
        [dx, dscale]: [Out; 2],
        dshift: Option<Out>,
        drop: &Dropout,
        dbranch: Out,
        dbias: Option<Out>,
    ) {
        self.layernorm_backward(dy, x, stats, scale, dx, dscale, dshift);
        self.residual_backward(dx.to, drop, dbranch, dbias);
    }

    /// y = qkv with normalised and rotated queries and keys; values are copied. In place.
    fn query_key(&self, qkv: Tensor, how: &QueryKey, y: Out);
    /// dx from dy; the gradients of the norm's scales (query's and key's, f32) accumulate. qkv is
    /// the input of forward, and only needed with a norm. Overwrites. In place (dx on dy).
    fn query_key_backward(
        &self,
        dy: Tensor,
        qkv: Tensor,
        how: &QueryKey,
        dx: Out,
        dscales: Option<[Out; 2]>,
    );

    /// y = softmax(scale·q·kᵀ + bias)·v per head and sample, without a T×T matrix. qkv [N, qkv
    /// width], y [N, query width], lse f32 [N, query heads]: log-sum-exp of each query's scores. A
    /// query without visible keys gives y = 0.
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

    /// Per row of this rank's share of the logits: stats f32 [R, 3] = maximum, Σ exp(logit −
    /// maximum), and the target's logit (−∞ if the target is not in this share).
    fn cross_entropy_stats(&self, logits: &Logits, targets: Tensor, stats: Out);
    /// Losses from the stats of all shares, [shares·R, 3]: losses[r] = weights[r]·(−log p(target)),
    /// f32 [R, 1], and the z-loss if it is on. In place of the logits, writes the scaled gradient
    /// of the sum of both losses, with 0 in the padding; the losses are not scaled. targets i32 [R,
    /// 1], weights f32 [R, 1], scale of the gradient f32 [1, 1]. A weight of 0 gives loss 0 for any
    /// logits.
    #[allow(clippy::too_many_arguments)]
    fn cross_entropy(
        &self,
        logits: &Logits,
        targets: Tensor,
        weights: Tensor,
        stats: Tensor,
        losses: Out,
        z: Option<ZLoss>,
        dlogits: Option<(Tensor, Out)>,
    );
    /// `cross_entropy_stats` of an unsplit vocabulary into `stats` [R, 3], then `cross_entropy`.
    /// Fused if the device supports it, so that a row is read from memory once.
    #[allow(clippy::too_many_arguments)]
    fn cross_entropy_unsplit(
        &self,
        logits: &Logits,
        targets: Tensor,
        weights: Tensor,
        stats: Tensor,
        losses: Out,
        z: Option<ZLoss>,
        dlogits: Option<(Tensor, Out)>,
    ) {
        self.cross_entropy_stats(logits, targets, stats.set());
        self.cross_entropy(logits, targets, weights, stats, losses, z, dlogits);
    }

    /// y (+)= Σ x, f32 [1, 1]; accumulated in f64.
    fn sum(&self, x: Tensor, y: Out);
    /// y (+)= a·factor·x in f32, with fused multiply-add. If a·factor is NaN, y is unchanged.
    /// factor f32 [1, 1]. In place.
    fn axpy(&self, a: f32, factor: Tensor, x: Tensor, y: Out);
    /// Makes the columns of each matrix [n, r] orthonormal, in place and in order. Modified
    /// Gram–Schmidt in f32, with dot products summed in f64. Each column is projected twice, so
    /// columns of a rank-deficient matrix become orthonormal too. A column of zeros becomes the
    /// projected unit vector of its index. A non-finite value makes its column NaN.
    fn orthogonalize(&self, xs: &[Tensor]);
    /// out[0, i] = Σ xᵢ², f32 [1, n]; accumulated in f64.
    fn square_sums(&self, xs: &[Tensor], out: Out);
    /// out[0, i] = digest of the bits of xᵢ: Σ over its elements of `digest_term` mod 2⁶⁴. It does
    /// not depend on the order of the sum, and a change of one element always changes it. xs of
    /// floats or bytes, out i64 [1, n].
    fn digests(&self, xs: &[Tensor], out: Out);
    /// out f32 [1, 2] = norm = √(Σ sums) / scale, and the factor min(1, max_norm / (norm + 1e-6)) /
    /// scale, or NaN if the norm is not finite. scale f32 [1, 1] is the scale of the squared
    /// gradients.
    fn clip(&self, sums: Tensor, scale: Tensor, max_norm: f32, out: Out);
    /// Advances the loss scaler by one step: counts an update, or a skipped step if the factor f32
    /// [1, 1] of `clip` is NaN, and sets the scale of the next step. The factor becomes NaN if the
    /// scale was already stuck. status f32 [1, 1] = 0 after an update, 1 after a skipped step, 2 if
    /// the scale is stuck.
    fn loss_scale_step(&self, scaling: &Scaling, scaler: Scaler, factor: Tensor, status: Tensor);
    /// Turns a step whose loss or norm, f32 [1, 1], exceeds its limit into a skipped one: the
    /// factor becomes NaN, the status 3, and the scaler counts one update less and one skipped step
    /// more. Called after `loss_scale_step`; a step skipped there is unchanged.
    fn skip_above(
        &self,
        limits: StepLimits,
        measured: [Tensor; 2],
        scaler: Scaler,
        factor: Tensor,
        status: Tensor,
    );
    /// out f32 [1, 2] = lr / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ) at update t = updates, i64 [1, 1].
    fn adam_scalars(&self, rule: &AdamW, updates: Tensor, out: Out);
    /// Updates master, m and v (f32) from grad·factor, and rounds master into `weight` if that is
    /// another tensor. scalars f32 [1, 3] = the factor, and the outputs of `adam_scalars`; a factor
    /// of NaN skips the update.
    #[allow(clippy::too_many_arguments)]
    fn adamw(
        &self,
        rule: &AdamW,
        scalars: Tensor,
        grad: Tensor,
        master: Tensor,
        m: Tensor,
        v: Tensor,
        weight: Tensor,
    );
    /// `adamw` of many tensors, by rules that differ only in decay and `lr_scale`. A few launches
    /// if the device supports it.
    fn adamw_all(&self, scalars: Tensor, updates: &[AdamWUpdate]) {
        for AdamWUpdate { rule, grad, master, m, v, weight } in updates {
            self.adamw(rule, scalars, *grad, *master, *m, *v, *weight);
        }
    }
    /// `adamw` with 8-bit m in the map `SIGNED`, and 8-bit √v in `UNSIGNED`. Decodes, updates and
    /// encodes both in one pass. The scale of a block becomes its largest magnitude. A code becomes
    /// the nearest to number / scale, of two the lower; a v above 0 never has code 0. The update
    /// uses the moments before they are encoded. Blocks of 16, 32 or 64 elements. Equal bits on
    /// every device.
    fn adam8bit(
        &self,
        rule: &AdamW,
        scalars: Tensor,
        grad: Tensor,
        master: Tensor,
        moments: [Coded; 2],
        weight: Tensor,
    );
}
