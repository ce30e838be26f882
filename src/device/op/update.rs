//! Sums, clipping, the loss scaler, AdamW, and the ops of low-rank gradients.

use super::{
    Adam8bit, AdamScalars, AdamW, Axpy, Clip, CountZeros, Digests, InPlace, LossScaleStep,
    Orthogonalize, SkipAbove, Spec, SquareSums, Sum,
};
use crate::{AdamWUpdate, Coded, Out, Tensor, Work};
use base::{DType, div_exact};

impl Spec for Sum {
    fn check(&self) {
        let y = self.y.to;
        assert_eq!((y.numel(), y.dtype), (1, DType::F32), "the sum");
    }
    fn cost(&self) -> Work {
        Work::op(self.x.numel()).moving([self.x, self.y.to])
    }
}

impl Spec for SquareSums<'_> {
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
}

/// Zeros for each unit of `CountZeros::highs`.
pub const ZEROS_PER_HIGH: u64 = 4096;

impl Spec for CountZeros<'_> {
    fn check(&self) {
        for Out { to, add } in [self.lows, self.highs] {
            let one_each = (self.xs.len(), DType::F32, false);
            assert_eq!((to.numel(), to.dtype, add), one_each, "a count for each tensor");
        }
    }
    fn cost(&self) -> Work {
        let numel: usize = self.xs.iter().map(|x| x.numel()).sum();
        Work::op(numel)
            .moving(self.xs.iter().copied())
            .moving([self.lows.to, self.highs.to])
    }
}

impl Spec for Digests<'_> {
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
}

impl Spec for Axpy {
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
}

impl Spec for Orthogonalize<'_> {
    fn check(&self) {
        let InPlace(xs) = self.xs;
        assert!(xs.iter().all(|x| x.dtype == DType::F32), "matrices in f32");
        for (i, x) in xs.iter().enumerate() {
            assert!(!xs[i + 1..].iter().any(|y| y.overlaps(*x)), "the matrices overlap");
        }
    }
    fn cost(&self) -> Work {
        // Each column against those before it, twice: a product and an update of each row.
        let InPlace(xs) = self.xs;
        let flops = xs.iter().map(|x| 4 * x.cols * x.numel()).sum();
        let passes = xs.iter().flat_map(|x| std::iter::repeat_n(*x, 2 * x.cols));
        Work::op(flops).moving(passes)
    }
}

impl Spec for Clip {
    fn check(&self) {
        assert_eq!((self.y.to.numel(), self.y.add), (2, false), "norm and factor");
    }
    fn cost(&self) -> Work {
        Work::op(4).moving([self.sums, self.y.to])
    }
}

impl Spec for LossScaleStep {
    fn check(&self) {
        assert_eq!(self.scaler.0.counts.numel(), 5, "the loss scaler's counts");
    }
    fn cost(&self) -> Work {
        Work::op(4).moving([self.factor.0, self.status.to])
    }
}

impl Spec for SkipAbove {
    fn check(&self) {
        assert_eq!(self.counts.0.numel(), 5, "the loss scaler's counts");
    }
    fn cost(&self) -> Work {
        Work::op(2).moving([self.loss, self.norm, self.factor.0, self.status.0])
    }
}

impl Spec for AdamScalars {
    fn check(&self) {
        assert_eq!((self.y.to.numel(), self.y.add), (2, false), "AdamW's step scalars");
    }
    fn cost(&self) -> Work {
        Work::op(8).moving([self.updates, self.y.to])
    }
}

impl Spec for AdamW<'_> {
    fn check(&self) {
        let rule = |update: &AdamWUpdate| {
            let crate::AdamW { lr, beta1, beta2, eps, .. } = update.rule;
            [lr, beta1, beta2, eps]
        };
        for update in self.updates {
            let AdamWUpdate { grad, master, m, v, .. } = *update;
            let [InPlace(master), InPlace(m), InPlace(v)] = [master, m, v];
            let weight = update.weight();
            assert_eq!(rule(update), rule(&self.updates[0]), "one rule for all");
            let numels = [master, m, v, weight].map(Tensor::numel);
            assert_eq!(numels, [grad.numel(); 4], "elements of the gradient and of the rest");
            assert!([master, m, v].iter().all(|x| x.dtype == DType::F32), "the state is f32");
        }
    }
    fn cost(&self) -> Work {
        if self.updates.is_empty() {
            return Work::default();
        }
        let mut work = Work::op(0);
        for AdamWUpdate { grad, master, m, v, weight, .. } in self.updates {
            work = work
                .with_flops(14 * grad.numel())
                .moving([*grad, master.0, master.0, m.0, m.0, v.0, v.0])
                .moving(weight.map(|out| out.to));
        }
        work
    }
}

impl Adam8bit {
    /// Elements of a block.
    pub fn block(&self) -> usize {
        div_exact(self.grad.numel(), self.m.0.scales.numel())
    }
}

impl Spec for Adam8bit {
    fn check(&self) {
        let Adam8bit { grad, master: InPlace(master), m, v, weight, .. } = *self;
        let n = grad.numel();
        let weight = weight.map_or(master, |out| out.to);
        let numels = [master.numel(), weight.numel()];
        assert_eq!(numels, [n; 2], "elements of the gradient and weights");
        assert_eq!(master.dtype, DType::F32, "the master weight is f32");
        let block = self.block();
        assert!([16, 32, 64].contains(&block), "blocks of {block} elements");
        for InPlace(Coded { codes, scales }) in [m, v] {
            assert_eq!((codes.numel(), codes.dtype), (n, DType::U8), "codes");
            assert_eq!((scales.numel(), scales.dtype), (n / block, DType::F32), "scales");
        }
    }
    fn cost(&self) -> Work {
        let Adam8bit { grad, master: InPlace(master), m, v, weight, .. } = *self;
        let coded = [m.0.codes, m.0.scales, v.0.codes, v.0.scales];
        Work::op(24 * grad.numel())
            .moving([grad, master, master])
            .moving(weight.map(|out| out.to))
            .moving(coded)
            .moving(coded)
    }
}
