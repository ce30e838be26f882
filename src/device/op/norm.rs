//! Normalisation of rows, and its fusion with the residual sum.

use super::{
    LayerNorm, LayerNormBackward, NormResidualBackward, Residual, ResidualBackward, ResidualNorm,
    Spec, assert_like,
};
use crate::{Out, Work};
use base::DType;

impl Spec for LayerNorm {
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
}

impl Spec for LayerNormBackward {
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
}

impl Spec for ResidualNorm {
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
}

impl Spec for NormResidualBackward {
    fn check(&self) {
        let NormResidualBackward { norm, residual } = self;
        norm.check();
        residual.check();
        assert!(residual.dy == norm.dx.to && norm.dx.add, "the gradient of the sum accumulates");
    }
    fn cost(&self) -> Work {
        let LayerNormBackward { dy, x, stats, dx, .. } = self.norm;
        let ResidualBackward { dbranch, dbias, .. } = self.residual;
        let apart = dbranch.map(|out| out.to).filter(|to| *to != dx.to);
        let flops = (13 + dbias.is_some() as usize) * x.numel();
        Work::op(flops)
            .moving([dy, x, stats])
            .moving(apart)
            .moving_out(dx)
    }
}
