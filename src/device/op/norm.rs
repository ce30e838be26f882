//! Normalisation of rows, and its fusion with the residual sum.

use super::elementwise::{Residual, ResidualBackward};
use super::{Accesses, Spec, assert_like, reads};
use crate::{Norm, Out, Tensor, Work};
use base::DType;

/// y = the norm of each row; stats [n, 2] f32 = the mean (0 for an RMS norm) and 1/std.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    pub x: Tensor,
    pub norm: Norm,
    pub y: Out,
    pub stats: Out,
}

impl Spec for LayerNorm {
    const NAME: &'static str = "layernorm";
    fn check(&self) {
        let LayerNorm { x, norm, y, stats } = *self;
        norm.check(x);
        assert_like(x, &[y.to], "x and y");
        let Out { to, add } = stats;
        assert_eq!((to.numel(), to.dtype, add), (2 * x.rows, DType::F32, false), "stats");
    }
    fn cost(&self) -> Work {
        Work::op(8 * self.x.numel()).moving([self.x, self.y.to, self.stats.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.x])
            .read(self.norm.tensors())
            .write([self.y, self.stats])
    }
}

/// dx (+)= …; dscale, dshift f32 always accumulate. Without dshift the norm is `Norm::Rms`. In
/// place with `set` (dx on dy).
#[derive(Clone, Copy, Debug)]
pub struct LayerNormBackward {
    pub dy: Tensor,
    pub x: Tensor,
    pub stats: Tensor,
    pub scale: Tensor,
    pub dx: Out,
    pub dscale: Out,
    pub dshift: Option<Out>,
}

impl Spec for LayerNormBackward {
    const NAME: &'static str = "layernorm backward";
    fn check(&self) {
        let LayerNormBackward { dy, x, stats, scale, dx, dscale, dshift } = *self;
        assert_like(x, &[dy, dx.to], "x, dy and dx");
        assert_eq!((stats.numel(), scale.numel()), (2 * x.rows, x.cols), "stats and scale");
        let accumulate = dscale.add && dshift.is_none_or(|dshift| dshift.add);
        assert!(accumulate, "the gradients of scale and shift accumulate");
    }
    fn cost(&self) -> Work {
        let LayerNormBackward { dy, x, stats, dx, .. } = *self;
        Work::op(12 * x.numel())
            .moving([dy, x, stats])
            .moving_out(dx)
    }
    fn tensors(&self) -> Accesses {
        let LayerNormBackward { dy, x, stats, scale, dx, dscale, dshift } = *self;
        reads([dy, x, stats, scale])
            .write([dx, dscale])
            .write(dshift)
    }
}

/// `Residual`, then `LayerNorm` of its y. Fused into one pass over memory if the device supports it.
#[derive(Clone, Copy, Debug)]
pub struct ResidualNorm {
    pub residual: Residual,
    pub norm: LayerNorm,
}

impl Spec for ResidualNorm {
    const NAME: &'static str = "residual and layernorm";
    fn check(&self) {
        let ResidualNorm { residual, norm } = self;
        residual.check();
        norm.check();
        assert!(norm.x == residual.y.to && !norm.y.add, "the norm of the sum overwrites");
    }
    fn cost(&self) -> Work {
        let ResidualNorm { residual: Residual { x, branch, bias, y, .. }, norm } = *self;
        let flops = (10 + bias.is_some() as usize) * x.numel();
        Work::op(flops).moving([x, branch, y.to, norm.y.to, norm.stats.to])
    }
    fn tensors(&self) -> Accesses {
        let ResidualNorm { residual, norm } = self;
        residual
            .tensors()
            .read(norm.norm.tensors())
            .write([norm.y, norm.stats])
    }
}

/// Backward of `ResidualNorm`: `LayerNormBackward`, whose dx accumulates, then `ResidualBackward`
/// of dx.
#[derive(Clone, Copy, Debug)]
pub struct NormResidualBackward {
    pub norm: LayerNormBackward,
    pub residual: ResidualBackward,
}

impl Spec for NormResidualBackward {
    const NAME: &'static str = "layernorm and residual backward";
    fn check(&self) {
        let NormResidualBackward { norm, residual } = self;
        norm.check();
        residual.check();
        assert!(residual.dy == norm.dx.to && norm.dx.add, "the gradient of the sum accumulates");
    }
    fn cost(&self) -> Work {
        let LayerNormBackward { dy, x, stats, dx, .. } = self.norm;
        let ResidualBackward { dbranch, dbias, .. } = self.residual;
        let own = (dbranch.to != dx.to).then_some(dbranch.to);
        let flops = (13 + dbias.is_some() as usize) * x.numel();
        Work::op(flops)
            .moving([dy, x, stats])
            .moving(own)
            .moving_out(dx)
    }
    fn tensors(&self) -> Accesses {
        let NormResidualBackward { norm, residual } = self;
        let written = (!residual.keeps_dy()).then_some(residual.dbranch);
        norm.tensors()
            .read(residual.drop.tensors())
            .write(written)
            .write(residual.dbias)
    }
}
