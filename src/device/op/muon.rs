//! Ops of Muon.

use super::{Fuse, InPlace, Momentum, MuonUpdate, ScaleToNorm1, Spec, Unfuse};
use crate::{FusedMatrix, Tensor, Work};
use base::DType;

impl Spec for Momentum {
    fn check(&self) {
        let Momentum { grad, m: InPlace(m), y, .. } = *self;
        assert_eq!([m.numel(), y.to.numel()], [grad.numel(); 2], "elements of the gradient");
        assert_eq!([grad.dtype, m.dtype], [DType::F32; 2], "gradient and momentum are f32");
        assert!(!y.add, "the direction is overwritten");
    }
    fn cost(&self) -> Work {
        let Momentum { grad, m: InPlace(m), y, .. } = *self;
        Work::op(5 * grad.numel()).moving([grad, m, m, y.to])
    }
}

impl Spec for Unfuse {
    fn check(&self) {
        assert!(!self.one.add, "a matrix is overwritten");
        check_fused(&self.which, self.all, self.one.to);
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.one.to; 2])
    }
}

impl Spec for Fuse {
    fn check(&self) {
        check_fused(&self.which, self.all.0, self.one);
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.one; 2])
    }
}

fn check_fused(which: &FusedMatrix, all: Tensor, one: Tensor) {
    assert_eq!(all.numel(), which.rows * which.cols, "elements of the fused matrices");
    assert_eq!([one.rows, one.cols], which.size(), "shape of one of them");
    assert_eq!(all.dtype, one.dtype, "dtypes");
}

impl Spec for ScaleToNorm1 {
    fn check(&self) {
        assert_eq!((self.sum.numel(), self.sum.dtype), (1, DType::F32), "the sum of squares");
    }
    fn cost(&self) -> Work {
        Work::op(self.x.0.numel()).moving([self.x.0; 2])
    }
}

impl Spec for MuonUpdate {
    fn check(&self) {
        let MuonUpdate { direction, master: InPlace(master), weight, .. } = *self;
        let weight = weight.map_or(master, |out| out.to);
        let numels = [master, weight].map(Tensor::numel);
        assert_eq!(numels, [direction.numel(); 2], "elements of the direction");
        assert_eq!(master.dtype, DType::F32, "the master weight is f32");
    }
    fn cost(&self) -> Work {
        let MuonUpdate { direction, master: InPlace(master), weight, .. } = *self;
        Work::op(3 * direction.numel())
            .moving([direction, master, master])
            .moving(weight.map(|out| out.to))
    }
}
