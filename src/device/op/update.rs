//! Sums, clipping, the loss scaler, AdamW, and the ops of low-rank gradients.

use super::{Accesses, Spec, reads, rounded};
use crate::{AdamWUpdate, Coded, Out, Scaler, Scaling, StepLimits, Tensor, Work};
use base::{DType, div_exact};

/// y (+)= Σ x, f32 [1, 1]; accumulated in f64.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    pub x: Tensor,
    pub y: Out,
}

impl Spec for Sum {
    const NAME: &'static str = "sum";
    fn check(&self) {
        let y = self.y.to;
        assert_eq!((y.numel(), y.dtype), (1, DType::F32), "the sum");
    }
    fn cost(&self) -> Work {
        Work::op(self.x.numel()).moving([self.x, self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).write([self.y])
    }
}

/// y[0, i] = Σ xᵢ², f32 [1, n]; accumulated in f64.
#[derive(Clone, Copy, Debug)]
pub struct SquareSums<'a> {
    pub xs: &'a [Tensor],
    pub y: Out,
}

impl Spec for SquareSums<'_> {
    const NAME: &'static str = "square sums";
    fn check(&self) {
        let Out { to, add } = self.y;
        assert_eq!((to.numel(), to.dtype), (self.xs.len(), DType::F32), "one sum for each tensor");
        assert!(!add, "square sums overwrite");
    }
    fn cost(&self) -> Work {
        let numel: usize = self.xs.iter().map(|x| x.numel()).sum();
        Work::op(2 * numel)
            .moving(self.xs.iter().copied())
            .moving([self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads(self.xs.iter().copied()).write([self.y])
    }
}

/// y[0, i] = digest of the bits of xᵢ: Σ over its elements of `digest_term` mod 2⁶⁴. It does not
/// depend on the order of the sum, and a change of one element always changes it. xs of floats or
/// bytes, y i64 [1, n].
#[derive(Clone, Copy, Debug)]
pub struct Digests<'a> {
    pub xs: &'a [Tensor],
    pub y: Out,
}

impl Spec for Digests<'_> {
    const NAME: &'static str = "digests";
    fn check(&self) {
        let Out { to, add } = self.y;
        assert_eq!((to.numel(), to.dtype), (self.xs.len(), DType::I64), "one digest for each");
        assert!(!add, "digests overwrite");
    }
    fn cost(&self) -> Work {
        let numel: usize = self.xs.iter().map(|x| x.numel()).sum();
        Work::op(8 * numel)
            .moving(self.xs.iter().copied())
            .moving([self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads(self.xs.iter().copied()).write([self.y])
    }
}

/// y (+)= a·factor·x in f32, with fused multiply-add. If a·factor is NaN, y is unchanged. factor
/// f32 [1, 1]. In place.
#[derive(Clone, Copy, Debug)]
pub struct Axpy {
    pub a: f32,
    pub factor: Tensor,
    pub x: Tensor,
    pub y: Out,
}

impl Spec for Axpy {
    const NAME: &'static str = "axpy";
    fn check(&self) {
        let Axpy { factor, x, y, .. } = *self;
        assert_eq!((x.numel(), x.dtype), (y.to.numel(), DType::F32), "x and y");
        assert_eq!((factor.numel(), y.to.dtype), (1, DType::F32), "the factor, and y");
    }
    fn cost(&self) -> Work {
        Work::op(2 * self.x.numel())
            .moving([self.x])
            .moving_out(self.y)
    }
    fn tensors(&self) -> Accesses {
        reads([self.factor, self.x]).write([self.y])
    }
}

/// Makes the columns of each matrix [n, r] orthonormal, in place and in order. Modified
/// Gram–Schmidt in f32, with dot products summed in f64. Each column is projected twice, so columns
/// of a rank-deficient matrix become orthonormal too. A column of zeros becomes the projected unit
/// vector of its index. A non-finite value makes its column NaN.
#[derive(Clone, Copy, Debug)]
pub struct Orthogonalize<'a> {
    pub xs: &'a [Tensor],
}

impl Spec for Orthogonalize<'_> {
    const NAME: &'static str = "orthogonalize";
    fn check(&self) {
        let xs = self.xs;
        assert!(xs.iter().all(|x| x.dtype == DType::F32), "matrices in f32");
        let apart = |i: usize| !xs[i + 1..].iter().any(|x| x.overlaps(xs[i]));
        assert!((0..xs.len()).all(apart), "the matrices overlap");
    }
    fn cost(&self) -> Work {
        // Each column against those before it, twice: a product and an update of each row.
        let flops = self.xs.iter().map(|x| 4 * x.cols * x.numel()).sum();
        let passes = self
            .xs
            .iter()
            .flat_map(|x| std::iter::repeat_n(*x, 2 * x.cols));
        Work::op(flops).moving(passes)
    }
    fn tensors(&self) -> Accesses {
        reads(None).update(self.xs.iter().copied())
    }
}

/// y f32 [1, 2] = norm = √(Σ sums) / scale, and the factor min(1, max_norm / (norm + 1e-6)) /
/// scale, or NaN if the norm is not finite. scale f32 [1, 1] is the scale of the squared gradients.
#[derive(Clone, Copy, Debug)]
pub struct Clip {
    pub sums: Tensor,
    pub scale: Tensor,
    pub max_norm: f32,
    pub y: Out,
}

impl Spec for Clip {
    const NAME: &'static str = "clip";
    fn check(&self) {
        assert_eq!((self.y.to.numel(), self.y.add), (2, false), "norm and factor");
    }
    fn cost(&self) -> Work {
        Work::op(4).moving([self.sums, self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.sums, self.scale]).write([self.y])
    }
}

/// Advances the loss scaler by one step: counts an update, or a skipped step if the factor f32
/// [1, 1] of `Clip` is NaN, and sets the scale of the next step. The factor becomes NaN if the
/// scale was already stuck. status f32 [1, 1] = 0 after an update, 1 after a skipped step, 2 if the
/// scale is stuck.
#[derive(Clone, Copy, Debug)]
pub struct LossScaleStep {
    pub scaling: Scaling,
    pub scaler: Scaler,
    pub factor: Tensor,
    pub status: Tensor,
}

impl Spec for LossScaleStep {
    const NAME: &'static str = "loss scale step";
    fn check(&self) {
        assert_eq!(self.scaler.counts.numel(), 5, "the loss scaler's counts");
    }
    fn cost(&self) -> Work {
        Work::op(4).moving([self.factor, self.status])
    }
    fn tensors(&self) -> Accesses {
        let Scaler { scale, counts } = self.scaler;
        reads(None)
            .update([scale, counts, self.factor])
            .write([self.status.set()])
    }
}

/// Turns a step whose loss or norm, f32 [1, 1], exceeds its limit into a skipped one: the factor
/// becomes NaN, the status 3, and the scaler counts one update less and one skipped step more.
/// Called after `LossScaleStep`; a step skipped there is unchanged.
#[derive(Clone, Copy, Debug)]
pub struct SkipAbove {
    pub limits: StepLimits,
    pub loss: Tensor,
    pub norm: Tensor,
    pub scaler: Scaler,
    pub factor: Tensor,
    pub status: Tensor,
}

impl Spec for SkipAbove {
    const NAME: &'static str = "skip above";
    fn check(&self) {
        assert_eq!(self.scaler.counts.numel(), 5, "the loss scaler's counts");
    }
    fn cost(&self) -> Work {
        Work::op(2).moving([self.loss, self.norm, self.factor, self.status])
    }
    fn tensors(&self) -> Accesses {
        reads([self.loss, self.norm]).update([self.scaler.counts, self.factor, self.status])
    }
}

/// y f32 [1, 2] = lr / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ) at update t = updates, i64 [1, 1].
#[derive(Clone, Copy, Debug)]
pub struct AdamScalars {
    pub rule: crate::AdamW,
    pub updates: Tensor,
    pub y: Out,
}

impl Spec for AdamScalars {
    const NAME: &'static str = "adam scalars";
    fn check(&self) {
        assert_eq!((self.y.to.numel(), self.y.add), (2, false), "AdamW's step scalars");
    }
    fn cost(&self) -> Work {
        Work::op(8).moving([self.updates, self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.updates]).write([self.y])
    }
}

/// Updates master, m and v (f32) of each tensor from grad·factor, and rounds master into `weight`
/// if that is another tensor. scalars f32 [1, 3] = the factor, and the outputs of `AdamScalars`; a
/// factor of NaN skips the update. The rules differ only in decay and `lr_scale`.
#[derive(Clone, Copy, Debug)]
pub struct AdamW<'a> {
    pub scalars: Tensor,
    pub updates: &'a [AdamWUpdate],
}

impl Spec for AdamW<'_> {
    const NAME: &'static str = "adamw";
    fn check(&self) {
        let rule = |update: &AdamWUpdate| {
            let crate::AdamW { lr, beta1, beta2, eps, .. } = update.rule;
            [lr, beta1, beta2, eps]
        };
        for update in self.updates {
            let AdamWUpdate { grad, master, m, v, weight, .. } = *update;
            assert_eq!(rule(update), rule(&self.updates[0]), "one rule for all");
            let numels = [master, m, v, weight].map(Tensor::numel);
            assert_eq!(numels, [grad.numel(); 4], "elements of the gradient and of the rest");
            assert!([master, m, v].iter().all(|x| x.dtype == DType::F32), "the state is f32");
        }
    }
    fn cost(&self) -> Work {
        let Some((first, others)) = self.updates.split_first() else { return Work::default() };
        let one = |work: Work, update: &AdamWUpdate| {
            let AdamWUpdate { grad, master, m, v, weight, .. } = *update;
            let state = [grad, master, master, m, m, v, v];
            work.with_flops(14 * grad.numel())
                .moving(state)
                .moving(rounded(weight, master))
        };
        others.iter().fold(one(Work::op(0), first), one)
    }
    fn tensors(&self) -> Accesses {
        self.updates
            .iter()
            .fold(reads([self.scalars]), |all, update| {
                let AdamWUpdate { grad, master, m, v, weight, .. } = *update;
                let all = all.read([grad]).update([master, m, v]);
                all.write(rounded(weight, master).map(Tensor::set))
            })
    }
}

/// `AdamW` of one tensor with 8-bit m in the map `SIGNED`, and 8-bit √v in `UNSIGNED`. Decodes,
/// updates and encodes both in one pass. The scale of a block becomes its largest magnitude. A code
/// becomes the nearest to number / scale, of two the lower; a v above 0 never has code 0. The
/// update uses the moments before they are encoded. Blocks of 16, 32 or 64 elements. Equal bits on
/// every device.
#[derive(Clone, Copy, Debug)]
pub struct Adam8bit {
    pub rule: crate::AdamW,
    pub scalars: Tensor,
    pub grad: Tensor,
    pub master: Tensor,
    pub m: Coded,
    pub v: Coded,
    pub weight: Tensor,
}

impl Adam8bit {
    /// Elements of a block.
    pub fn block(&self) -> usize {
        div_exact(self.grad.numel(), self.m.scales.numel())
    }
}

impl Spec for Adam8bit {
    const NAME: &'static str = "adam8bit";
    fn check(&self) {
        let Adam8bit { grad, master, m, v, weight, .. } = *self;
        let n = grad.numel();
        let numels = [master.numel(), weight.numel()];
        assert_eq!(numels, [n; 2], "elements of the gradient and weights");
        assert_eq!(master.dtype, DType::F32, "the master weight is f32");
        let block = self.block();
        assert!([16, 32, 64].contains(&block), "blocks of {block} elements");
        for Coded { codes, scales } in [m, v] {
            assert_eq!((codes.numel(), codes.dtype), (n, DType::U8), "codes");
            assert_eq!((scales.numel(), scales.dtype), (n / block, DType::F32), "scales");
        }
    }
    fn cost(&self) -> Work {
        let Adam8bit { grad, master, m, v, weight, .. } = *self;
        let coded = [m.codes, m.scales, v.codes, v.scales];
        let work = Work::op(24 * grad.numel()).moving([grad, master, master]);
        work.moving(rounded(weight, master))
            .moving(coded)
            .moving(coded)
    }
    fn tensors(&self) -> Accesses {
        let Adam8bit { scalars, grad, master, m, v, weight, .. } = *self;
        let all = reads([scalars, grad]).update([master, m.codes, m.scales, v.codes, v.scales]);
        all.write(rounded(weight, master).map(Tensor::set))
    }
}
