//! Muon: momentum, fused matrices apart and together again, and the update.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::muon::check_descend;
use crate::{FusedMatrix, Momentum, MuonOps, Out, Tensor};
use base::DType;
use std::ptr::null_mut;

impl MuonOps for Cuda {
    fn momentum(&self, rule: &Momentum, factor: Tensor, grad: Tensor, m: Tensor, out: Out) {
        Momentum::check(grad, m, out);
        let vector = vector(grad.numel(), DType::BF16, &[grad.addr(), m.addr(), out.to.addr()]);
        let arguments = args::Momentum {
            grad: grad.addr() as _,
            m: m.addr() as _,
            out: out.to.addr() as _,
            factor: factor.addr() as _,
            numel: grad.numel() as u64,
            momentum: rule.momentum,
            nesterov: rule.nesterov.into(),
            vector: vector.into(),
        };
        let grid = Grid::elements(grad.numel(), if vector { wide(out.to.dtype) } else { 1 });
        self.launch(typed!("momentum", out.to.dtype), grid, arguments);
    }

    fn unfuse(&self, all: Tensor, which: &FusedMatrix, one: Out) {
        assert!(!one.add, "a matrix is overwritten");
        copy_rows(self, which, all, one.to, false);
    }

    fn fuse(&self, one: Tensor, which: &FusedMatrix, all: Out) {
        assert!(!all.add, "rows are overwritten");
        copy_rows(self, which, all.to, one, true);
    }

    fn scale_to_norm_1(&self, x: Tensor, sum: Tensor, eps: f32) {
        let vector = vector(x.numel(), x.dtype, &[x.addr()]);
        let arguments = args::ScaleToNorm {
            x: x.addr() as _,
            sum: sum.addr() as _,
            numel: x.numel() as u64,
            eps,
            vector: vector.into(),
        };
        let grid = Grid::elements(x.numel(), if vector { wide(x.dtype) } else { 1 });
        self.launch(typed!("scale_to_norm", x.dtype), grid, arguments);
    }

    fn blend(&self, a: f32, x: Tensor, b: f32, y: Tensor) {
        assert_eq!((x.numel(), x.dtype), (y.numel(), y.dtype), "x and y");
        let vector = vector(x.numel(), x.dtype, &[x.addr(), y.addr()]);
        let arguments = args::Blend {
            x: x.addr() as _,
            y: y.addr() as _,
            numel: x.numel() as u64,
            a,
            b,
            vector: vector.into(),
        };
        let grid = Grid::elements(x.numel(), if vector { wide(x.dtype) } else { 1 });
        self.launch(typed!("blend", x.dtype), grid, arguments);
    }

    fn descend(
        &self,
        [keep, step]: [f32; 2],
        factor: Tensor,
        direction: Tensor,
        master: Tensor,
        weight: Tensor,
    ) {
        let len = check_descend(direction, master, weight);
        let addresses = [direction.addr(), master.addr(), weight.addr()];
        let vector = vector(len, DType::BF16, &addresses);
        let arguments = args::Descend {
            direction: direction.addr() as _,
            master: master.addr() as _,
            live: if weight == master { null_mut() } else { weight.addr() as _ },
            factor: factor.addr() as _,
            numel: len as u64,
            keep,
            step,
            vector: vector.into(),
        };
        let kernel = typed!("descend", direction.dtype, weight.dtype);
        self.launch(kernel, Grid::elements(len, if vector { 8 } else { 1 }), arguments);
    }
}

fn copy_rows(cuda: &Cuda, which: &FusedMatrix, all: Tensor, one: Tensor, back: bool) {
    let share = which.check(all, one);
    let vector = vector(share, all.dtype, &[all.addr(), one.addr()]);
    let width = which.fused.widths()[which.number];
    let arguments = args::FusedRows {
        all: all.addr() as _,
        one: one.addr() as _,
        all_rows: which.rows as u64,
        rows: one.rows as u64,
        cols: one.cols as u32,
        share: share as u32,
        first: which.fused.place(which.number, 0) as u32,
        width: width as u32,
        period: which.fused.period() as u32,
        back: back.into(),
        vector: vector.into(),
    };
    let grid = Grid::rows(one.rows, one.cols, if vector { wide(all.dtype) } else { 1 });
    cuda.launch(typed!("fused_rows", all.dtype), grid, arguments);
}
