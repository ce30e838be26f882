//! Muon: momentum, fused matrices apart and together again, and the update.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::{FusedMatrix, Tensor, op};
use base::DType;
use std::ptr::null_mut;

pub(super) fn momentum(cuda: &Cuda, op: &op::Momentum) {
    let op::Momentum { rule, factor, grad, m, y } = *op;
    let vector = vector(grad.numel(), DType::BF16, &[grad.addr(), m.addr(), y.to.addr()]);
    let arguments = args::Momentum {
        grad: grad.addr() as _,
        m: m.addr() as _,
        out: y.to.addr() as _,
        factor: factor.addr() as _,
        numel: grad.numel() as u64,
        momentum: rule.momentum,
        nesterov: rule.nesterov.into(),
        vector: vector.into(),
    };
    let grid = Grid::elements(grad.numel(), if vector { wide(y.to.dtype) } else { 1 });
    cuda.launch(typed!("momentum", y.to.dtype), grid, arguments);
}

pub(super) fn unfuse(cuda: &Cuda, &op::Unfuse { all, which, one }: &op::Unfuse) {
    copy_rows(cuda, &which, all, one.to, false);
}

pub(super) fn fuse(cuda: &Cuda, &op::Fuse { one, which, all }: &op::Fuse) {
    copy_rows(cuda, &which, all.to, one, true);
}

pub(super) fn scale_to_norm_1(cuda: &Cuda, &op::ScaleToNorm1 { x, sum, eps }: &op::ScaleToNorm1) {
    let vector = vector(x.numel(), x.dtype, &[x.addr()]);
    let arguments = args::ScaleToNorm {
        x: x.addr() as _,
        sum: sum.addr() as _,
        numel: x.numel() as u64,
        eps,
        vector: vector.into(),
    };
    let grid = Grid::elements(x.numel(), if vector { wide(x.dtype) } else { 1 });
    cuda.launch(typed!("scale_to_norm", x.dtype), grid, arguments);
}

pub(super) fn descend(cuda: &Cuda, op: &op::Descend) {
    let op::Descend { keep, step, factor, direction, master, weight } = *op;
    let len = direction.numel();
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
    cuda.launch(kernel, Grid::elements(len, if vector { 8 } else { 1 }), arguments);
}

fn copy_rows(cuda: &Cuda, which: &FusedMatrix, all: Tensor, one: Tensor, back: bool) {
    let share = which.share_cols();
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
