//! Ops by element, and sums of columns.

use super::{Accesses, Spec, assert_like, reads};
use crate::{Out, Tensor, Work};
use base::DType;

/// x = 0.
#[derive(Clone, Copy, Debug)]
pub struct Zero {
    pub x: Tensor,
}

impl Spec for Zero {
    const NAME: &'static str = "zero";
    fn check(&self) {}
    fn cost(&self) -> Work {
        Work::op(0).moving([self.x])
    }
    fn tensors(&self) -> Accesses {
        reads(None).write([self.x.set()])
    }
}

/// y (+)= x, converting between f32, bf16 and f16. Equal numel.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub x: Tensor,
    pub y: Out,
}

impl Spec for Copy {
    const NAME: &'static str = "copy";
    fn check(&self) {
        assert_eq!(self.x.numel(), self.y.to.numel(), "elements of x and y");
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.x]).moving_out(self.y)
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).write([self.y])
    }
}

/// y ← a·x + b·y, with equal float dtypes. x may be y.
#[derive(Clone, Copy, Debug)]
pub struct Blend {
    pub a: f32,
    pub x: Tensor,
    pub b: f32,
    pub y: Tensor,
}

impl Blend {
    /// x ← factor·x.
    pub fn multiply(factor: f32, x: Tensor) -> Blend {
        Blend { a: factor, x, b: 0.0, y: x }
    }
}

impl Spec for Blend {
    const NAME: &'static str = "blend";
    fn check(&self) {
        let Blend { x, y, .. } = self;
        assert_eq!((x.numel(), x.dtype), (y.numel(), y.dtype), "x and y");
    }
    fn cost(&self) -> Work {
        Work::op(3 * self.x.numel()).moving([self.x, self.y, self.y])
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).update([self.y])
    }
}

/// y (+)= dropout(x). Its own backward. In place.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    pub x: Tensor,
    pub drop: crate::Dropout,
    pub y: Out,
}

impl Spec for Dropout {
    const NAME: &'static str = "dropout";
    fn check(&self) {
        assert_like(self.x, &[self.y.to], "x and y");
    }
    fn cost(&self) -> Work {
        if self.drop.rate == 0.0 && self.x.addr() == self.y.to.addr() {
            return Work::default();
        }
        Work::op(self.x.numel()).moving([self.x]).moving_out(self.y)
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).read(self.drop.tensors()).write([self.y])
    }
}

/// y = x + dropout(branch + bias). x, branch, y [n, H]; bias [1, H], if there is one. In place on x
/// or branch.
#[derive(Clone, Copy, Debug)]
pub struct Residual {
    pub x: Tensor,
    pub branch: Tensor,
    pub bias: Option<Tensor>,
    pub drop: crate::Dropout,
    pub y: Out,
}

impl Spec for Residual {
    const NAME: &'static str = "residual";
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
    fn tensors(&self) -> Accesses {
        let Residual { x, branch, bias, drop, y } = *self;
        reads([x, branch])
            .read(bias)
            .read(drop.tensors())
            .write([y])
    }
}

/// dbranch = dropout(dy); dbias += Σ_rows dbranch, if there is a bias. dbias f32. In place (dbranch
/// on dy); with rate 0 in place, only the sum is computed.
#[derive(Clone, Copy, Debug)]
pub struct ResidualBackward {
    pub dy: Tensor,
    pub drop: crate::Dropout,
    pub dbranch: Out,
    pub dbias: Option<Out>,
}

impl ResidualBackward {
    /// Whether dbranch is dy, unchanged.
    pub fn keeps_dy(&self) -> bool {
        self.drop.rate == 0.0 && self.dbranch.to == self.dy
    }
}

impl Spec for ResidualBackward {
    const NAME: &'static str = "residual backward";
    fn check(&self) {
        let ResidualBackward { dy, dbranch, dbias, .. } = *self;
        assert!(!dbranch.add, "dbranch is overwritten");
        assert_like(dy, &[dbranch.to], "dy and dbranch");
        let fits = |db: Out| db.add && (db.to.numel(), db.to.dtype) == (dy.cols, DType::F32);
        assert!(dbias.is_none_or(fits), "dbias accumulates in f32: {dbias:?}");
    }
    fn cost(&self) -> Work {
        let ResidualBackward { dy, drop, dbranch, dbias } = *self;
        let in_place = drop.rate == 0.0 && dy.addr() == dbranch.to.addr();
        if in_place && dbias.is_none() {
            return Work::default();
        }
        let sums = 1 + dbias.is_some() as usize;
        Work::op(sums * dy.numel())
            .moving([dy])
            .moving((!in_place).then_some(dbranch.to))
    }
    fn tensors(&self) -> Accesses {
        let written = (!self.keeps_dy()).then_some(self.dbranch);
        reads([self.dy])
            .read(self.drop.tensors())
            .write(written)
            .write(self.dbias)
    }
}

/// sums (+)= Σ_rows x, f32 [1, columns]: the gradient of a bias.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSums {
    pub x: Tensor,
    pub sums: Out,
}

impl Spec for ColumnSums {
    const NAME: &'static str = "column sums";
    fn check(&self) {
        let to = self.sums.to;
        assert_eq!((to.numel(), to.dtype), (self.x.cols, DType::F32), "sums of columns");
    }
    fn cost(&self) -> Work {
        Work::op(self.x.numel()).moving([self.x, self.sums.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).write([self.sums])
    }
}

/// y = gelu(x). Recomputes the result of the `BiasGelu` epilogue from the stored pre. The bits are
/// equal except on CUDA, where the epilogue uses pre before rounding.
#[derive(Clone, Copy, Debug)]
pub struct Gelu {
    pub x: Tensor,
    pub gelu: base::Gelu,
    pub y: Out,
}

impl Spec for Gelu {
    const NAME: &'static str = "gelu";
    fn check(&self) {
        let x = self.x;
        let y = self.y.to;
        assert_eq!((x.numel(), x.dtype), (y.numel(), y.dtype), "x and y");
    }
    fn cost(&self) -> Work {
        Work::op(8 * self.x.numel()).moving([self.x, self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).write([self.y])
    }
}

/// y = silu(gate)·value, silu(g) = g/(1 + e^−g): columns 2i and 2i + 1 of x [N, 2f] are gate and
/// value of column i of y [N, f] (Shazeer 2020).
#[derive(Clone, Copy, Debug)]
pub struct Swiglu {
    pub x: Tensor,
    pub y: Out,
}

impl Spec for Swiglu {
    const NAME: &'static str = "swiglu";
    fn check(&self) {
        let x = self.x;
        let y = self.y.to;
        assert_eq!((x.rows, x.cols, x.dtype), (y.rows, 2 * y.cols, y.dtype), "x and y");
        assert!(!self.y.add, "y is overwritten");
    }
    fn cost(&self) -> Work {
        Work::op(8 * self.y.to.numel()).moving([self.x, self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).write([self.y])
    }
}

/// dx [N, 2f] from dy [N, f]. Overwrites.
#[derive(Clone, Copy, Debug)]
pub struct SwigluBackward {
    pub dy: Tensor,
    pub x: Tensor,
    pub dx: Out,
}

impl Spec for SwigluBackward {
    const NAME: &'static str = "swiglu backward";
    fn check(&self) {
        let SwigluBackward { dy, x, dx } = *self;
        assert!(!dx.add, "dx is overwritten");
        assert_eq!((x.rows, x.cols, x.dtype), (dy.rows, 2 * dy.cols, dy.dtype), "x and dy");
        assert_like(x, &[dx.to], "x and dx");
    }
    fn cost(&self) -> Work {
        Work::op(14 * self.dy.numel()).moving([self.dy, self.x, self.dx.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.dy, self.x]).write([self.dx])
    }
}
