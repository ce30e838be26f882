//! Ops of Muon.

use super::{Accesses, Spec, reads, rounded};
use crate::{FusedMatrix, Out, Tensor, Work};
use base::DType;

/// Moves m, f32 [1, n], towards grad·factor, and writes the direction to `y`, of any float dtype.
/// grad f32 [1, n], factor f32 [1, 1]. A factor of NaN keeps m and gives the direction 0.
#[derive(Clone, Copy, Debug)]
pub struct Momentum {
    pub rule: crate::Momentum,
    pub factor: Tensor,
    pub grad: Tensor,
    pub m: Tensor,
    pub y: Out,
}

impl Spec for Momentum {
    const NAME: &'static str = "momentum";
    fn check(&self) {
        let Momentum { grad, m, y, .. } = *self;
        assert_eq!([m.numel(), y.to.numel()], [grad.numel(); 2], "elements of the gradient");
        assert_eq!([grad.dtype, m.dtype], [DType::F32; 2], "gradient and momentum are f32");
        assert!(!y.add, "the direction is overwritten");
    }
    fn cost(&self) -> Work {
        let Momentum { grad, m, y, .. } = *self;
        Work::op(5 * grad.numel()).moving([grad, m, m, y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.factor, self.grad])
            .update([self.m])
            .write([self.y])
    }
}

/// one = its rows of `all`.
#[derive(Clone, Copy, Debug)]
pub struct Unfuse {
    pub all: Tensor,
    pub which: FusedMatrix,
    pub one: Out,
}

impl Spec for Unfuse {
    const NAME: &'static str = "fused rows";
    fn check(&self) {
        assert!(!self.one.add, "a matrix is overwritten");
        check_fused(&self.which, self.all, self.one.to);
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.one.to; 2])
    }
    fn tensors(&self) -> Accesses {
        reads([self.all]).write([self.one])
    }
}

/// Its rows of `all` = one.
#[derive(Clone, Copy, Debug)]
pub struct Fuse {
    pub one: Tensor,
    pub which: FusedMatrix,
    pub all: Out,
}

impl Spec for Fuse {
    const NAME: &'static str = "fused rows";
    fn check(&self) {
        assert!(!self.all.add, "rows are overwritten");
        check_fused(&self.which, self.all.to, self.one);
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.one; 2])
    }
    fn tensors(&self) -> Accesses {
        reads([self.one]).update([self.all.to])
    }
}

fn check_fused(which: &FusedMatrix, all: Tensor, one: Tensor) {
    assert_eq!(all.numel(), which.rows * which.cols, "elements of the fused matrices");
    assert_eq!([one.rows, one.cols], which.size(), "shape of one of them");
    assert_eq!(all.dtype, one.dtype, "dtypes");
}

/// x ← x / max(√sum, eps), in place; the root of sum, f32 [1, 1], is computed in f64.
#[derive(Clone, Copy, Debug)]
pub struct ScaleToNorm1 {
    pub x: Tensor,
    pub sum: Tensor,
    pub eps: f32,
}

impl Spec for ScaleToNorm1 {
    const NAME: &'static str = "scale to norm 1";
    fn check(&self) {
        assert_eq!((self.sum.numel(), self.sum.dtype), (1, DType::F32), "the sum of squares");
    }
    fn cost(&self) -> Work {
        Work::op(self.x.numel()).moving([self.x; 2])
    }
    fn tensors(&self) -> Accesses {
        reads([self.sum]).update([self.x])
    }
}

/// Updates master (f32) to keep·master − step·direction, and rounds it into `weight` if that is
/// another tensor. factor f32 [1, 1]: NaN skips the update.
#[derive(Clone, Copy, Debug)]
pub struct MuonUpdate {
    pub keep: f32,
    pub step: f32,
    pub factor: Tensor,
    pub direction: Tensor,
    pub master: Tensor,
    pub weight: Tensor,
}

impl Spec for MuonUpdate {
    const NAME: &'static str = "muon update";
    fn check(&self) {
        let MuonUpdate { direction, master, weight, .. } = *self;
        let numels = [master, weight].map(Tensor::numel);
        assert_eq!(numels, [direction.numel(); 2], "elements of the direction");
        assert_eq!(master.dtype, DType::F32, "the master weight is f32");
    }
    fn cost(&self) -> Work {
        let MuonUpdate { direction, master, weight, .. } = *self;
        let work = Work::op(3 * direction.numel()).moving([direction, master, master]);
        work.moving(rounded(weight, master))
    }
    fn tensors(&self) -> Accesses {
        let MuonUpdate { factor, direction, master, weight, .. } = *self;
        let written = rounded(weight, master).map(Tensor::set);
        reads([factor, direction]).update([master]).write(written)
    }
}
