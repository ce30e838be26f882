//! Ops by element, and sums of columns.

use super::{
    Blend, ColumnSums, Copy, Dropout, Gelu, InPlace, Residual, ResidualBackward, Spec, Swiglu,
    SwigluBackward, Zero, assert_like,
};
use crate::{Out, Tensor, Work};
use base::DType;

impl Spec for Zero {
    fn check(&self) {
        assert!(!self.x.add, "zeros overwrite");
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.x.to])
    }
}

impl Spec for Copy {
    fn check(&self) {
        assert_eq!(self.x.numel(), self.y.to.numel(), "elements of x and y");
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.x]).moving_out(self.y)
    }
}

impl Blend {
    /// x ← factor·x.
    pub fn multiply(factor: f32, x: Tensor) -> Blend {
        Blend { a: factor, x, b: 0.0, y: InPlace(x) }
    }
}

impl Spec for Blend {
    fn check(&self) {
        let Blend { x, y: InPlace(y), .. } = *self;
        assert_eq!((x.numel(), x.dtype), (y.numel(), y.dtype), "x and y");
    }
    fn cost(&self) -> Work {
        Work::op(3 * self.x.numel()).moving([self.x, self.y.0, self.y.0])
    }
}

impl Spec for Dropout {
    fn check(&self) {
        assert_like(self.x, &[self.y.to], "x and y");
    }
    fn cost(&self) -> Work {
        if self.drop.rate == 0.0 && self.x.addr() == self.y.to.addr() {
            return Work::default();
        }
        Work::op(self.x.numel()).moving([self.x]).moving_out(self.y)
    }
}

impl Spec for Residual {
    fn check(&self) {
        let Residual { x, branch, bias, y, .. } = *self;
        assert!(!y.add, "residual overwrites");
        assert_like(x, &[branch, y.to], "x, branch and y");
        let fits = |bias: Tensor| (bias.numel(), bias.dtype) == (x.cols, x.dtype);
        assert!(bias.is_none_or(fits), "bias {bias:?} of {x:?}");
    }
    fn cost(&self) -> Work {
        let sums = 2 + self.bias.is_some() as usize;
        Work::op(sums * self.x.numel()).moving([self.x, self.branch, self.y.to])
    }
}

impl Spec for ResidualBackward {
    fn check(&self) {
        let ResidualBackward { dy, drop, dbranch, dbias } = *self;
        match dbranch {
            Some(Out { to, add }) => {
                assert!(!add && (drop.rate > 0.0 || to != dy), "dbranch is overwritten");
                assert_like(dy, &[to], "dy and dbranch");
            }
            None => assert!(drop.rate == 0.0, "dbranch is dy, without dropout"),
        }
        let fits = |db: Out| db.add && (db.to.numel(), db.to.dtype) == (dy.cols, DType::F32);
        assert!(dbias.is_none_or(fits), "dbias accumulates in f32: {dbias:?}");
    }
    fn cost(&self) -> Work {
        let ResidualBackward { dy, dbranch, dbias, .. } = *self;
        if dbranch.is_none() && dbias.is_none() {
            return Work::default();
        }
        let sums = 1 + dbias.is_some() as usize;
        Work::op(sums * dy.numel())
            .moving([dy])
            .moving(dbranch.map(|out| out.to))
    }
}

impl Spec for ColumnSums {
    fn check(&self) {
        let to = self.sums.to;
        assert_eq!((to.numel(), to.dtype), (self.x.cols, DType::F32), "sums of columns");
    }
    fn cost(&self) -> Work {
        Work::op(self.x.numel()).moving([self.x, self.sums.to])
    }
}

impl Spec for Gelu {
    fn check(&self) {
        let x = self.x;
        let y = self.y.to;
        assert_eq!((x.numel(), x.dtype), (y.numel(), y.dtype), "x and y");
    }
    fn cost(&self) -> Work {
        Work::op(8 * self.x.numel()).moving([self.x, self.y.to])
    }
}

impl Spec for Swiglu {
    fn check(&self) {
        let x = self.x;
        let y = self.y.to;
        assert_eq!((x.rows, x.cols, x.dtype), (y.rows, 2 * y.cols, y.dtype), "x and y");
        assert!(!self.y.add, "y is overwritten");
    }
    fn cost(&self) -> Work {
        Work::op(8 * self.y.to.numel()).moving([self.x, self.y.to])
    }
}

impl Spec for SwigluBackward {
    fn check(&self) {
        let SwigluBackward { dy, x, dx } = *self;
        assert!(!dx.add, "dx is overwritten");
        assert_eq!((x.rows, x.cols, x.dtype), (dy.rows, 2 * dy.cols, dy.dtype), "x and dy");
        assert_like(x, &[dx.to], "x and dx");
    }
    fn cost(&self) -> Work {
        Work::op(14 * self.dy.numel()).moving([self.dy, self.x, self.dx.to])
    }
}
