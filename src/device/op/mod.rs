//! Ops of a step as values: a table of them, each with the name of its work in profiles, the
//! function that computes it in the modules of every backend, and its arguments, whose types state
//! what it reads and writes.
//!
//! A new op is a row of the table, its check and its cost in one of the files of this folder, and
//! a function in each backend.

mod access;
mod adafactor;
mod attention;
mod define;
mod elementwise;
mod fp8;
mod loss;
mod muon;
mod norm;
mod product;
mod update;

pub use access::{Access, Accesses, Arg};
pub use update::ZEROS_PER_HIGH;

use super::{
    AdamWUpdate, Attend, Coded, Epilogue, FusedMatrix, InPlace, Logits, LossLogits, MatrixPart,
    Norm, Out, Quantized, QuantizedBy, Scaler, Scaling, SecondMoment, StepLimits, Tensor, Work,
    ZLoss,
};
use define::ops;

/// Statements of an op about itself.
pub trait Spec {
    /// Panics if a shape or dtype is wrong, which is a bug.
    fn check(&self);
    /// FLOPs and memory traffic, as the planner counts them. No call if the op does nothing.
    fn cost(&self) -> Work;
}

ops! { $
    /// x = 0.
    Zero("zero") => elementwise::zero { x: Out }

    /// y (+)= x, converting between f32, bf16 and f16. Equal numel.
    Copy("copy") => elementwise::copy { x: Tensor, y: Out }

    /// y ← a·x + b·y, with equal float dtypes. x may be y.
    Blend("blend") => elementwise::blend { a: f32, x: Tensor, b: f32, y: InPlace }

    /// y (+)= dropout(x). Its own backward. In place.
    Dropout("dropout") => elementwise::dropout { x: Tensor, drop: crate::Dropout, y: Out }

    /// y = x + dropout(branch + bias). x, branch, y [n, H]; bias [1, H], if there is one. In place
    /// on x or branch.
    Residual("residual") => elementwise::residual {
        x: Tensor,
        branch: Tensor,
        bias: Option<Tensor>,
        drop: crate::Dropout,
        y: Out,
    }

    /// dbranch = dropout(dy); dbias += Σ_rows dbranch, if there is a bias. dbias f32. In place
    /// (dbranch on dy).
    ResidualBackward("residual backward") => elementwise::residual_backward {
        dy: Tensor,
        drop: crate::Dropout,
        /// None if dbranch is dy, of which nothing is dropped: only the sum is computed.
        dbranch: Option<Out>,
        dbias: Option<Out>,
    }

    /// sums (+)= Σ_rows x, f32 [1, columns]: the gradient of a bias.
    ColumnSums("column sums") => elementwise::column_sums { x: Tensor, sums: Out }

    /// y = gelu(x). Recomputes the result of the `BiasGelu` epilogue from the stored pre. The bits
    /// are equal except on CUDA, where the epilogue uses pre before rounding.
    Gelu("gelu") => gelu::gelu { x: Tensor, gelu: base::Gelu, y: Out }

    /// y = silu(gate)·value, silu(g) = g/(1 + e^−g): columns 2i and 2i + 1 of x [N, 2f] are gate
    /// and value of column i of y [N, f] (Shazeer 2020).
    Swiglu("swiglu") => gelu::swiglu { x: Tensor, y: Out }

    /// dx [N, 2f] from dy [N, f]. Overwrites.
    SwigluBackward("swiglu backward") => gelu::swiglu_backward { dy: Tensor, x: Tensor, dx: Out }

    /// C (+)= A·B in the layout `kind`, then the epilogue. A and B of one dtype; C of theirs, or
    /// f32. With `add` the epilogue must be `Nothing` or `BiasBackward`.
    Gemm("gemm") => gemm::gemm { kind: crate::Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue }

    /// y[i] (+)= table[ids[i] − first], or 0 if this share of the table (rows `first ..`) does not
    /// contain it. ids i32 [N, 1], table [v, H], y [N, H].
    Embed("embed") => embed::forward { ids: Tensor, table: Tensor, first: usize, y: Out }

    /// dtable[ids[i] − first] += dy[i], in the order of i. dtable f32 [v, H]; always accumulates.
    EmbedBackward("embed backward") => embed::backward {
        dy: Tensor,
        ids: Tensor,
        first: usize,
        dtable: Out,
    }

    /// y = the norm of each row; stats [n, 2] f32 = the mean (0 for an RMS norm) and 1/std.
    LayerNorm("layernorm") => layernorm::forward { x: Tensor, norm: Norm, y: Out, stats: Out }

    /// dx (+)= …; dscale, dshift f32 always accumulate. Without dshift the norm is `Norm::Rms`. In
    /// place with `set` (dx on dy).
    LayerNormBackward("layernorm backward") => layernorm::backward {
        dy: Tensor,
        x: Tensor,
        stats: Tensor,
        scale: Tensor,
        dx: Out,
        dscale: Out,
        dshift: Option<Out>,
    }

    /// `Residual`, then `LayerNorm` of its y. Fused into one pass over memory if the device
    /// supports it.
    ResidualNorm("residual and layernorm") => layernorm::residual_norm {
        residual: Residual,
        norm: LayerNorm,
    }

    /// Backward of `ResidualNorm`: `LayerNormBackward`, whose dx accumulates, then
    /// `ResidualBackward` of dx.
    NormResidualBackward("layernorm and residual backward") => layernorm::norm_residual_backward {
        norm: LayerNormBackward,
        residual: ResidualBackward,
    }

    /// y = qkv with normalised and rotated queries and keys; values are copied. In place.
    QueryKey("queries and keys") => query_key::forward {
        qkv: Tensor,
        transform: crate::QueryKey,
        y: Out,
    }

    /// dx from dy; the gradients of the norm's scales, f32, accumulate. Overwrites. In place (dx on
    /// dy).
    QueryKeyBackward("queries and keys backward") => query_key::backward {
        dy: Tensor,
        /// Input of forward, with a norm.
        qkv: Option<Tensor>,
        transform: crate::QueryKey,
        dx: Out,
        /// Gradient of `QkNorm::query`.
        dquery: Option<Out>,
        /// Gradient of `QkNorm::key`.
        dkey: Option<Out>,
    }

    /// y = softmax(scale·q·kᵀ + bias)·v per head and sample, without a T×T matrix. qkv [N, qkv
    /// width], y [N, query width], lse f32 [N, query heads]: log-sum-exp of each query's scores. A
    /// query without visible keys gives y = 0.
    Attention(crate::ATTENTION) => attention::forward {
        qkv: Tensor,
        attend: Attend,
        y: Out,
        lse: Out,
    }

    /// dqkv from dy, with y and lse of forward. Overwrites.
    AttentionBackward(crate::ATTENTION_BACKWARD) => attention::backward {
        dy: Tensor,
        qkv: Tensor,
        y: Tensor,
        lse: Tensor,
        attend: Attend,
        dqkv: Out,
    }

    /// Per row of this rank's share of the logits: stats f32 [R, 3] = maximum, Σ exp(logit −
    /// maximum), and the target's logit (−∞ if the target is not in this share).
    CrossEntropyStats("cross entropy") => cross_entropy::stats {
        logits: Logits,
        targets: Tensor,
        stats: Out,
    }

    /// Losses from the stats of all shares, [shares·R, 3]: losses[r] = weights[r]·(−log p(target)),
    /// f32 [R, 1], and the z-loss if it is on. With a scale, also replaces the logits by the
    /// gradient of the sum of both losses times the scale, with 0 in the padding; the losses are
    /// not scaled. targets i32 [R, 1], weights f32 [R, 1]. A weight of 0 gives loss 0 for any
    /// logits.
    CrossEntropy("cross entropy") => cross_entropy::losses {
        targets: Tensor,
        weights: Tensor,
        stats: Tensor,
        losses: Out,
        z: Option<ZLoss>,
        logits: LossLogits,
    }

    /// `CrossEntropyStats` of an unsplit vocabulary, then `CrossEntropy`. Fused if the device
    /// supports it, so that a row is read from memory once.
    CrossEntropyUnsplit("cross entropy") => cross_entropy::unsplit {
        stats: CrossEntropyStats,
        losses: CrossEntropy,
    }

    /// y (+)= Σ x, f32 [1, 1]; accumulated in f64.
    Sum("sum") => optimizer::sum { x: Tensor, y: Out }

    /// y[0, i] = Σ xᵢ², f32 [1, n]; accumulated in f64.
    SquareSums<'a>("square sums") => optimizer::square_sums { xs: &'a [Tensor], y: Out }

    /// Number of zeros in each xᵢ: lows[0, i] + 4096·highs[0, i], f32 [1, n]. Both parts and their
    /// sums over 4096 tensors are exact.
    CountZeros<'a>("zeros") => optimizer::count_zeros { xs: &'a [Tensor], lows: Out, highs: Out }

    /// y[0, i] = digest of the bits of xᵢ: Σ over its elements of `digest_term` mod 2⁶⁴. It does
    /// not depend on the order of the sum, and a change of one element always changes it. xs of
    /// floats or bytes, y i64 [1, n].
    Digests<'a>("digests") => optimizer::digests { xs: &'a [Tensor], y: Out }

    /// y (+)= a·factor·x in f32, with fused multiply-add. If a·factor is NaN, y is unchanged.
    /// factor f32 [1, 1]. In place.
    Axpy("axpy") => low_rank::axpy { a: f32, factor: Tensor, x: Tensor, y: Out }

    /// Makes the columns of each matrix [n, r] orthonormal, in place and in order. Modified
    /// Gram–Schmidt in f32, with dot products summed in f64. Each column is projected twice, so
    /// columns of a rank-deficient matrix become orthonormal too. A column of zeros becomes the
    /// projected unit vector of its index. A non-finite value makes its column NaN.
    Orthogonalize<'a>("orthogonalize") => low_rank::orthogonalize { xs: InPlace<&'a [Tensor]> }

    /// y f32 [1, 2] = norm = √(Σ sums) / scale, and the factor min(1, max_norm / (norm + 1e-6)) /
    /// scale, or NaN if the norm is not finite. scale f32 [1, 1] is the scale of the squared
    /// gradients.
    Clip("clip") => optimizer::clip { sums: Tensor, scale: Tensor, max_norm: f32, y: Out }

    /// Advances the loss scaler by one step: counts an update, or a skipped step if the factor f32
    /// [1, 1] of `Clip` is NaN, and sets the scale of the next step. The factor becomes NaN if the
    /// scale was already stuck. status f32 [1, 1] = 0 after an update, 1 after a skipped step, 2 if
    /// the scale is stuck.
    LossScaleStep("loss scale step") => optimizer::loss_scale_step {
        scaling: Scaling,
        scaler: InPlace<Scaler>,
        factor: InPlace,
        status: Out,
    }

    /// Turns a step whose loss or norm, f32 [1, 1], exceeds its limit into a skipped one: the
    /// factor becomes NaN, the status 3, and the scaler's counts have one update less and one
    /// skipped step more. Called after `LossScaleStep`; a step skipped there is unchanged.
    SkipAbove("skip above") => optimizer::skip_above {
        limits: StepLimits,
        loss: Tensor,
        norm: Tensor,
        /// `Scaler::counts`.
        counts: InPlace,
        factor: InPlace,
        status: InPlace,
    }

    /// y f32 [1, 2] = lr / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ) at update t = updates, i64 [1, 1].
    AdamScalars("adam scalars") => optimizer::adam_scalars {
        rule: crate::AdamW,
        updates: Tensor,
        y: Out,
    }

    /// Updates master, m and v (f32) of each tensor from grad·factor, and rounds master into
    /// `weight`. scalars f32 [1, 3] = the factor, and the outputs of `AdamScalars`; a factor of NaN
    /// skips the update. The rules differ only in decay and `lr_scale`.
    AdamW<'a>("adamw") => optimizer::adamw { scalars: Tensor, updates: &'a [AdamWUpdate] }

    /// `AdamW` of one tensor with 8-bit m in the map `SIGNED`, and 8-bit √v in `UNSIGNED`. Decodes,
    /// updates and encodes both in one pass. The scale of a block becomes its largest magnitude. A
    /// code becomes the nearest to number / scale, of two the lower; a v above 0 never has code 0.
    /// The update uses the moments before they are encoded. Blocks of 16, 32 or 64 elements. Equal
    /// bits on every device.
    Adam8bit("adam8bit") => adam8bit::adam8bit {
        rule: crate::AdamW,
        scalars: Tensor,
        grad: Tensor,
        master: InPlace,
        m: InPlace<Coded>,
        v: InPlace<Coded>,
        /// None if it is the master weight.
        weight: Option<Out>,
    }

    /// rows[r] += Σ (factor·x)² over row r; cols[p, c] += Σ (factor·x)² over the rows of fused
    /// matrix p (of a vector: its one row). Sums cover the part only. x f32 [1, len], factor f32
    /// [1, 1], rows f32 [rows, 1], cols f32 [fused, cols]; always accumulates.
    FactorSums("factor sums") => adafactor::factor_sums {
        x: Tensor,
        factor: Tensor,
        part: MatrixPart,
        rows: Option<Out>,
        cols: Out,
    }

    /// y[p] += Σ x² over the part's elements of fused matrix p. x f32 [1, len], y f32 [1, fused];
    /// always accumulates.
    FusedSquareSums("square sums") => adafactor::fused_square_sums {
        x: Tensor,
        part: MatrixPart,
        y: Out,
    }

    /// y f32 [1, 2] = 1 − β̂ = t^beta2_decay and ρ at update t = updates, i64 [1, 1].
    AdafactorScalars("adafactor scalars") => adafactor::scalars {
        rule: crate::Adafactor,
        updates: Tensor,
        y: Out,
    }

    /// Moves a second moment by 1 − β̂ towards the mean of g². `rows` and `cols` are sums over the
    /// whole matrix (`FactorSums`); a vector has no row sums. Recomputes `mean`: from `col` if the
    /// share has all columns, else from `row`. scalars f32 [1, 3] = the factor, and the outputs of
    /// `AdafactorScalars`; a factor of NaN changes nothing.
    MoveSecondMoment("second moment") => adafactor::move_second_moment {
        scalars: Tensor,
        part: MatrixPart,
        cols: Tensor,
        rows: Option<Tensor>,
        v: InPlace<SecondMoment>,
    }

    /// y[p] += Σ U² over the part's elements of fused matrix p. y f32 [1, fused].
    AdafactorSquareSums("adafactor square sums") => adafactor::square_sums {
        rule: crate::Adafactor,
        scalars: Tensor,
        grad: Tensor,
        part: MatrixPart,
        v: SecondMoment,
        y: Out,
    }

    /// Updates the part of the master weight, f32 [1, len], and rounds it into `weight`. A factor
    /// of NaN skips the update.
    Adafactor("adafactor") => adafactor::update {
        rule: crate::Adafactor,
        scalars: Tensor,
        grad: Tensor,
        part: MatrixPart,
        /// Σ U² of each fused matrix, f32 [1, fused].
        update_squares: Tensor,
        /// Σ θ² of each fused matrix, if steps are scaled by it.
        weight_squares: Option<Tensor>,
        v: SecondMoment,
        master: InPlace,
        /// None if it is the master weight.
        weight: Option<Out>,
    }

    /// Moves m, f32 [1, n], towards grad·factor, and writes the direction to `y`, of any float
    /// dtype. grad f32 [1, n], factor f32 [1, 1]. A factor of NaN keeps m and gives the direction
    /// 0.
    Momentum("momentum") => muon::momentum {
        rule: crate::Momentum,
        factor: Tensor,
        grad: Tensor,
        m: InPlace,
        y: Out,
    }

    /// one = its rows of `all`.
    Unfuse("fused rows") => muon::unfuse { all: Tensor, which: FusedMatrix, one: Out }

    /// Its rows of `all` = one; the others remain.
    Fuse("fused rows") => muon::fuse { one: Tensor, which: FusedMatrix, all: InPlace }

    /// x ← x / max(√sum, eps); the root of sum, f32 [1, 1], is computed in f64.
    ScaleToNorm1("scale to norm 1") => muon::scale_to_norm_1 {
        sum: Tensor,
        eps: f32,
        x: InPlace,
    }

    /// Updates master (f32) to keep·master − step·direction, and rounds it into `weight`. factor
    /// f32 [1, 1]: NaN skips the update.
    MuonUpdate("muon update") => muon::update {
        keep: f32,
        step: f32,
        factor: Tensor,
        direction: Tensor,
        master: InPlace,
        /// None if it is the master weight.
        weight: Option<Out>,
    }

    /// rows[0, i] = the largest magnitude in row i, or NaN if it contains a NaN, f32 [1, rows]; the
    /// same for columns. Reads x once.
    LineMaxima("quantize") => fp8::line_maxima {
        x: Tensor,
        rows: Option<Out>,
        columns: Option<Out>,
    }

    /// Quantizes the rows of x, its columns or both, and overwrites codes and scales. Each comes
    /// with the maxima of all shares, of which it uses the largest: scale = maximum / largest
    /// number of the format, at least `SMALLEST` / that; code = `Fp8::encode` of number · (1 /
    /// scale), in f32. Equal bits on every device. A non-finite number makes its line
    /// (`TensorWise`: the matrix) give NaN in products. Reads x once.
    Quantize("quantize") => fp8::quantize {
        x: Tensor,
        rows: Option<QuantizedBy>,
        columns: Option<QuantizedBy>,
    }

    /// Quantizes rows, `RowWise`, by their own maxima. Also computes the maxima of columns, f32 [1,
    /// columns]. Reads x once.
    QuantizeRows("quantize") => fp8::quantize_rows {
        x: Tensor,
        to: Out<Quantized>,
        columns: Option<Out>,
    }

    /// C (+)= A·Bᵀ, summed in f32, then the epilogue, which cannot be `BiasBackward`. C bf16 or
    /// f32; accumulates only without epilogue. At most one of A and B is E5M2. m, n and k are
    /// multiples of 16 on GPUs.
    Fp8Gemm(crate::FP8_PRODUCT) => gemm::fp8 { a: Quantized, b: Quantized, c: Out, then: Epilogue }
}

/// Panics unless all are like x in shape and dtype.
fn assert_like(x: Tensor, others: &[Tensor], names: &str) {
    for y in others {
        let [a, b] = [x, *y].map(|x| (x.rows, x.cols, x.dtype));
        assert_eq!(a, b, "{names}");
    }
}
