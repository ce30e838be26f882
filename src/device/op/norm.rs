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
        reads([self.x]).read(self.norm.tensors()).write([self.y, self.stats])
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
        Work::op(12 * x.numel()).moving([dy, x, stats]).moving_out(dx)
    }
    fn tensors(&self) -> Accesses {
        let LayerNormBackward { dy, x, stats, scale, dx, dscale, dshift } = *self;
        reads([dy, x, stats, scale]).write([dx, dscale]).write(dshift)
    }
}

/// `Residual`, then h = `LayerNorm` of y. Fused into one pass over memory if the device supports
/// it.
#[derive(Clone, Copy, Debug)]
pub struct ResidualNorm {
    pub x: Tensor,
    pub branch: Tensor,
    pub bias: Option<Tensor>,
    pub drop: crate::Dropout,
    pub y: Out,
    pub norm: Norm,
    pub h: Out,
    pub stats: Out,
}

impl ResidualNorm {
    pub fn parts(&self) -> (Residual, LayerNorm) {
        let ResidualNorm { x, branch, bias, drop, y, norm, h, stats } = *self;
        (Residual { x, branch, bias, drop, y }, LayerNorm { x: y.to, norm, y: h, stats })
    }
}

impl Spec for ResidualNorm {
    const NAME: &'static str = "residual and layernorm";
    fn check(&self) {
        let (residual, norm) = self.parts();
        residual.check();
        norm.check();
        assert!(!self.h.add, "the norm overwrites");
    }
    fn cost(&self) -> Work {
        let ResidualNorm { x, branch, bias, y, h, stats, .. } = *self;
        let flops = (10 + bias.is_some() as usize) * x.numel();
        Work::op(flops).moving([x, branch, y.to, h.to, stats.to])
    }
    fn tensors(&self) -> Accesses {
        let (residual, norm) = self.parts();
        residual.tensors().read(norm.norm.tensors()).write([norm.y, norm.stats])
    }
}

/// Backward of `ResidualNorm`: `LayerNormBackward`, whose dx accumulates, then `ResidualBackward`
/// of dx.
#[derive(Clone, Copy, Debug)]
pub struct NormResidualBackward {
    pub dy: Tensor,
    pub x: Tensor,
    pub stats: Tensor,
    pub scale: Tensor,
    pub dx: Out,
    pub dscale: Out,
    pub dshift: Option<Out>,
    pub drop: crate::Dropout,
    pub dbranch: Out,
    pub dbias: Option<Out>,
}

impl NormResidualBackward {
    pub fn parts(&self) -> (LayerNormBackward, ResidualBackward) {
        let NormResidualBackward { dy, x, stats, scale, dx, dscale, dshift, .. } = *self;
        let NormResidualBackward { drop, dbranch, dbias, .. } = *self;
        (
            LayerNormBackward { dy, x, stats, scale, dx, dscale, dshift },
            ResidualBackward { dy: dx.to, drop, dbranch, dbias },
        )
    }
}

impl Spec for NormResidualBackward {
    const NAME: &'static str = "layernorm and residual backward";
    fn check(&self) {
        let (norm, residual) = self.parts();
        norm.check();
        residual.check();
        assert!(self.dx.add, "dx accumulates");
    }
    fn cost(&self) -> Work {
        let NormResidualBackward { dy, x, stats, dx, dbranch, dbias, .. } = *self;
        let own = (dbranch.to != dx.to).then_some(dbranch.to);
        let flops = (13 + dbias.is_some() as usize) * x.numel();
        Work::op(flops).moving([dy, x, stats]).moving(own).moving_out(dx)
    }
    fn tensors(&self) -> Accesses {
        let (norm, residual) = self.parts();
        let written = (!residual.keeps_dy()).then_some(residual.dbranch);
        norm.tensors().read(residual.drop.tensors()).write(written).write(residual.dbias)
    }
}
