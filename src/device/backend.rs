//! The trait of a device: its memory, its copies, its graphs and its ops.

use super::{
    AdafactorOps, Attend, Dropout, Epilogue, Fp8Ops, Gemm, Home, Logits, MuonOps, Norm, Out,
    QueryKey, Tensor, ZLoss,
};
use base::{Bytes, DType, Gelu, decayed, div_exact};
use std::sync::Arc;
use std::time::Instant;

/// One AdamW update (Loshchilov & Hutter 2019), decoupled decay first as PyTorch does it.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    pub weight_decay: f32,
    /// The step is multiplied by this, but not the decay.
    pub lr_scale: f32,
}

/// Numbers in 8 bits: number i is what `codes[i]` stands for in a map of `dynamic_map`, times the
/// scale of the block that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    /// u8 [1, n].
    pub codes: Tensor,
    /// f32 [1, n / block].
    pub scales: Tensor,
}

impl Coded {
    /// The shortest block, which divides all others.
    pub const SMALLEST: usize = 16;

    /// Panics if the tensors of an update do not belong together; returns the elements of a block:
    /// 16, 32 or 64.
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

/// A tensor that AdamW updates.
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
    /// What the decay leaves of a weight, 1 − lr·weight_decay.
    pub fn keep(&self) -> f32 {
        decayed(self.lr, self.weight_decay)
    }
}

/// When the scale of the loss changes (Megatron's DynamicGradScaler): it doubles after `window`
/// updates in a row; it halves at each overflow from the `hysteresis`th since it last doubled.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// Factor of a doubling: 2, or 1 for a constant scale, whose counters change all the same.
    pub growth: f32,
    pub window: u64,
    pub hysteresis: u64,
    /// The scale does not go below. An overflow that should make it do so leaves it stuck: no later
    /// step updates.
    pub min: f32,
}

/// State of the loss scaler, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Scaler {
    /// f32 [1, 1].
    pub scale: Tensor,
    /// i64 [1, 5]: updates in a row; overflows left before it halves; updates; steps skipped;
    /// whether it is stuck.
    pub counts: Tensor,
}

/// What a step's loss and gradient norm may be at most for its update to be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLimits {
    pub loss: f32,
    pub norm: f32,
}

impl Scaler {
    /// Where the counts lie. Panics if they are not five.
    pub fn counts_address(&self) -> usize {
        assert_eq!(self.counts.numel(), 5, "the loss scaler's counts");
        self.counts.addr()
    }
}

/// A reservation that is larger than the free memory of the device, or of its host.
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

/// A pass that runs again and again with the same ops on the same tensors, so that a device may
/// capture it; only the tensors' contents differ between runs.
pub trait Graph {
    /// Runs `enqueue`, which enqueues the ops and collectives and does not wait for the device, or
    /// replays a captured graph of it. Returns false when the graph was replayed and `enqueue` was
    /// not called; it may be called twice.
    fn run(&mut self, enqueue: &mut dyn FnMut()) -> bool;
}

/// For devices that capture nothing.
struct Eager;

impl Graph for Eager {
    fn run(&mut self, enqueue: &mut dyn FnMut()) -> bool {
        enqueue();
        true
    }
}

/// Points on the clock of a device that works on its own, for traces. Nothing waits but `read`.
pub trait Timeline: Send + Sync {
    /// Marks the point at which everything enqueued so far is done; its number. None in a capture.
    fn mark(&self) -> Option<usize>;
    /// Nanoseconds from the timeline's start to each point, by number. Waits for the device.
    fn read(&self) -> Vec<i64>;
}

/// Error of `sync` after the device has failed: it runs no op any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// "GPU 0 (PCI 0000:3B:00.0, GPU-…)".
    pub device: String,
    /// The call that failed first, and its error.
    pub why: String,
}

impl std::fmt::Display for Dead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.device, self.why)
    }
}

impl std::error::Error for Dead {}

/// A copy between the device and its host that was begun and is not yet waited for.
#[must_use]
#[derive(Debug)]
pub struct Transfer(pub(super) usize);

/// A device. Inputs first, outputs last; every op is asynchronous and in order. A wrong shape or
/// dtype is a bug and panics; a dead device surfaces at `sync`. An output may be the same tensor as
/// an input only where the op says "in place". Activations, weights and their gradients in flight
/// are f32, bf16 or f16 (all alike in one op); arithmetic inside an op is f32 or better. For equal
/// inputs an op gives equal bits, whatever the number of threads.
///
/// Tensors lie on the device. `upload`, `download`, `zero` and `digests` also take tensors at home
/// on the host; the ops of `host` take only those.
pub trait Backend: AdafactorOps + MuonOps + Fp8Ops {
    /// Address of a fresh zeroed region, aligned to 256 bytes, that lives as long as the backend.
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory>;
    /// As `reserve`, of the host's memory, page-locked where the device copies to and from it.
    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory>;
    /// The processor of the host as a device, for what lies in its memory. A CPU is its own host.
    fn host(&self) -> &dyn Backend;
    /// Runs `work` with the host's processor, on a thread of its own, while `meanwhile` runs on this
    /// one; returns when both are done. `work` may use only tensors of the host that `meanwhile` does
    /// not.
    fn beside(&self, work: &mut (dyn FnMut(&dyn Backend) + Send), meanwhile: &mut dyn FnMut());
    /// Begins to copy the bytes of a tensor to one as large in the other memory: to the host as the
    /// tensor is after everything enqueued so far; to the device once all of that is done. Nobody
    /// may write the one tensor or use the other until the copy is done.
    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer;
    /// What is enqueued from now on comes after a copy; the host does not wait.
    fn join_transfer(&self, transfer: Transfer);
    /// The host waits until a copy is done.
    fn finish_transfer(&self, transfer: Transfer);
    /// Bytes that all processes of this machine may still touch; None where memory is taken when it
    /// is reserved, or the system does not report it.
    fn shared_memory(&self) -> Option<Bytes> {
        None
    }
    /// Memory that the device's ops reserve for themselves when it is opened.
    fn workspace(&self) -> Bytes {
        Bytes(0)
    }
    /// Bytes of logits that the head holds at once: so many that its products have full speed.
    fn logits_chunk(&self) -> Bytes {
        LOGITS_CHUNK
    }
    /// Waits until everything enqueued so far is done.
    fn sync(&self) -> anyhow::Result<()>;
    /// Host bytes to device, `to.bytes()` of them.
    fn upload(&self, from: &[u8], to: Tensor);
    /// As `upload`; where the device can, the copy overlaps with the ops enqueued before.
    fn upload_async(&self, from: &[u8], to: Tensor) {
        self.upload(from, to);
    }
    /// For one pass that will run again and again, with collectives of so many groups of several
    /// ranks. It is dropped before its groups.
    fn graph(&self, groups: usize) -> Box<dyn Graph> {
        let _ = groups;
        Box::new(Eager)
    }
    /// A timeline that starts now, once everything enqueued so far is done. None where an op is done
    /// when it returns.
    fn timeline(&self) -> Option<Arc<dyn Timeline>> {
        None
    }
    /// Device to host, after everything enqueued so far.
    fn download(&self, from: Tensor, to: &mut [u8]);
    /// Begins to copy a tensor to the host, as it is after everything enqueued so far, and returns
    /// at once. At most 1 MiB; at most two may be in flight.
    fn download_async(&self, from: Tensor);
    /// Waits for the oldest download in flight and takes its bytes. Returns when they arrived, as
    /// far as the host knows: no later than now.
    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Instant>;

    fn zero(&self, x: Tensor);
    /// y (+)= x, converting between f32, bf16 and f16. Equal numel.
    fn copy(&self, x: Tensor, y: Out);

    /// x ← factor·x, of any float.
    fn multiply(&self, factor: f32, x: Tensor) {
        self.blend(factor, x, 0.0, x);
    }

    /// C (+)= A·B in the layout `kind`, then the epilogue. A and B of one dtype; C of theirs, or
    /// f32. With `add` the epilogue must be `Nothing` or `BiasBackward`.
    fn gemm(&self, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue);

    /// y[i] (+)= table[ids[i] − first], or 0 where this share of the table (rows `first ..`) does
    /// not have it. ids i32 [N, 1], table [v, H], y [N, H].
    fn embed(&self, ids: Tensor, table: Tensor, first: usize, y: Out);
    /// dtable[ids[i] − first] += dy[i], in the order of i. dtable f32 [v, H]; always accumulates.
    fn embed_backward(&self, dy: Tensor, ids: Tensor, first: usize, dtable: Out);

    /// y (+)= dropout(x). Its own backward. In place.
    fn dropout(&self, x: Tensor, drop: &Dropout, y: Out);
    /// y = x + dropout(branch + bias). x, branch, y [n, H]; bias [1, H], if there is one. In place
    /// on x or branch.
    fn residual(&self, x: Tensor, branch: Tensor, bias: Option<Tensor>, drop: &Dropout, y: Out);
    /// dbranch = dropout(dy); dbias += Σ_rows dbranch, if there is a bias. dbias f32. In place
    /// (dbranch on dy); with rate 0 and dbranch on dy only the sum is left to do.
    fn residual_backward(&self, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Option<Out>);

    /// y = gelu(x). What the `BiasGelu` epilogue does, to rebuild y from the stored pre: the same
    /// bits but on CUDA, where the epilogue sees pre before it is rounded.
    fn gelu(&self, x: Tensor, gelu: Gelu, y: Out);

    /// y = silu(gate)·value, silu(g) = g/(1 + e^−g): columns 2i and 2i + 1 of x [N, 2f] are gate and
    /// value of column i of y [N, f] (Shazeer 2020).
    fn swiglu(&self, x: Tensor, y: Out);
    /// dx [N, 2f] from dy [N, f]. Overwrites.
    fn swiglu_backward(&self, dy: Tensor, x: Tensor, dx: Out);

    /// y = the norm of each row; stats [n, 2] f32 keeps the mean (0 of an RMS norm) and rstd.
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

    /// `residual`, then h = `layernorm` of y; fused into one pass over memory where the device can.
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
    /// Its backward pass: `layernorm_backward`, whose dx accumulates, then `residual_backward` of
    /// dx.
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

    /// y = qkv with its queries and keys normalised and turned; values as they are. In place.
    fn query_key(&self, qkv: Tensor, how: &QueryKey, y: Out);
    /// dx from dy; the gradients of the norm's scales (query's and key's, f32) accumulate. qkv is
    /// what forward read, and only needed with a norm. Overwrites. In place (dx on dy).
    fn query_key_backward(
        &self,
        dy: Tensor,
        qkv: Tensor,
        how: &QueryKey,
        dx: Out,
        dscales: Option<[Out; 2]>,
    );

    /// y = softmax(scale·q·kᵀ + bias)·v per head and sample, never holding a T×T matrix. qkv [N, qkv
    /// width], y [N, query width], lse f32 [N, query heads]: log-sum-exp of each query's scores. A
    /// query that sees no key gives y = 0.
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
    /// From the stats of all shares, [shares·R, 3]: losses[r] = weights[r]·(−log p(target)), f32
    /// [R, 1], and the second loss where there is one; and, in place of the logits, the gradient of
    /// the sum of both losses, scaled, 0 in the padding; the losses are not scaled. targets i32
    /// [R, 1], weights f32 [R, 1], the gradient's scale f32 [1, 1]. A weight of 0 gives loss 0
    /// whatever the logits.
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
    /// `cross_entropy_stats` of a vocabulary that is not split, into `stats` [R, 3], then
    /// `cross_entropy`; fused where the device can, so that a row is read from memory once.
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

    /// y (+)= Σ x, f32 [1, 1]; accumulated in f64 inside.
    fn sum(&self, x: Tensor, y: Out);
    /// y (+)= a·factor·x in f32, a fused multiply and add; a product a·factor that is NaN leaves y as
    /// it is. factor f32 [1, 1]. In place.
    fn axpy(&self, a: f32, factor: Tensor, x: Tensor, y: Out);
    /// Makes the columns of each matrix [n, r] orthonormal, in place and in their order, by modified
    /// Gram–Schmidt in f32 whose products are summed in f64; each column is projected twice, so that
    /// the columns of a matrix of lower rank are orthonormal too. A column of zeros becomes the unit
    /// vector of its number, projected likewise. What is not finite makes NaN of its column.
    fn orthogonalize(&self, xs: &[Tensor]);
    /// out[0, i] = Σ xᵢ², f32 [1, n]; accumulated in f64 inside.
    fn square_sums(&self, xs: &[Tensor], out: Out);
    /// out[0, i] = a digest of xᵢ's bits: Σ over its elements of `digest_term` mod 2⁶⁴, which comes
    /// out the same in any order, and which one changed element always changes. xs of floats or
    /// bytes, out i64 [1, n].
    fn digests(&self, xs: &[Tensor], out: Out);
    /// out f32 [1, 2] = norm = √(Σ sums) / scale, and the factor min(1, max_norm / (norm + 1e-6)) /
    /// scale, or NaN if the norm is not finite. scale f32 [1, 1]: of the gradients that were
    /// squared.
    fn clip(&self, sums: Tensor, scale: Tensor, max_norm: f32, out: Out);
    /// Advances the loss scaler by one step: counts it as an update, or as skipped where the factor
    /// f32 [1, 1] of `clip` is NaN, and changes the scale for the next step. The factor becomes NaN
    /// if the scale was stuck before. status f32 [1, 1] = 0 after an update, 1 after a skipped
    /// step, 2 where the scale is stuck.
    fn loss_scale_step(&self, scaling: &Scaling, scaler: Scaler, factor: Tensor, status: Tensor);
    /// Takes back the update of a step whose loss or norm, f32 [1, 1], is above its limit: the factor
    /// becomes NaN, status 3, and the scaler has counted one update less and one skipped step more.
    /// After `loss_scale_step`; a step that was skipped there stays as it is.
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
    /// Updates master, m and v (f32) from grad·factor, and rounds master into `weight` where that
    /// is another tensor. scalars f32 [1, 3] = the factor, and what `adam_scalars` gives; a factor
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
    /// `adamw` of many tensors, by rules that differ in decay and `lr_scale` alone; in a few launches
    /// where the device can.
    fn adamw_all(&self, scalars: Tensor, updates: &[AdamWUpdate]) {
        for AdamWUpdate { rule, grad, master, m, v, weight } in updates {
            self.adamw(rule, scalars, *grad, *master, *m, *v, *weight);
        }
    }
    /// `adamw` where m is in 8 bits by the map `SIGNED`, and the root of v by `UNSIGNED`. Both are
    /// decoded, updated and encoded again in one pass: the scale of a block becomes the largest
    /// magnitude in it, a code the nearest one of number / scale, of two the lower; a v above 0 never
    /// has code 0. The update is by the moments before they are encoded. Blocks of 16, 32 or 64
    /// elements. Equal bits on every device.
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
