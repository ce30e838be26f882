//! Muon: momentum, splitting and joining of fused matrices, and the update.

use super::Cuda;
use super::args::arguments;
use super::launch::{Grid, elements_per_move, typed, vector};
use crate::{FusedMatrix, InPlace, Tensor, op};
use base::DType;

pub(super) fn momentum(cuda: &Cuda, op: &op::Momentum) {
    let op::Momentum { rule, factor, grad, m: InPlace(m), y } = *op;
    let crate::Momentum { momentum, nesterov } = rule;
    let numel = grad.numel();
    let vector = vector(numel, DType::BF16, [grad, m, y.to]);
    let arguments =
        arguments!(Momentum { grad, m, out: y, factor, numel, momentum, nesterov, vector });
    let grid = Grid::pieces(numel, if vector { elements_per_move(y.to.dtype) } else { 1 });
    cuda.launch(typed!("momentum", y.to.dtype), grid, arguments);
}

pub(super) fn unfuse(cuda: &Cuda, &op::Unfuse { all, which, one }: &op::Unfuse) {
    copy_rows(cuda, &which, all, one.to, false);
}

pub(super) fn fuse(cuda: &Cuda, &op::Fuse { one, which, all }: &op::Fuse) {
    copy_rows(cuda, &which, all.0, one, true);
}

pub(super) fn scale_to_norm_1(cuda: &Cuda, op: &op::ScaleToNorm1) {
    let op::ScaleToNorm1 { sum, eps, x: InPlace(x) } = *op;
    let (grid, vector) = Grid::elements(x, []);
    let arguments = arguments!(ScaleToNorm { x, sum, numel: x.numel(), eps, vector });
    cuda.launch(typed!("scale_to_norm", x.dtype), grid, arguments);
}

pub(super) fn update(cuda: &Cuda, op: &op::MuonUpdate) {
    let op::MuonUpdate { keep, step, factor, direction, master: InPlace(master), weight } = *op;
    let rounded = weight.map_or(master, |out| out.to);
    let numel = direction.numel();
    let vector = vector(numel, DType::BF16, [direction, master, rounded]);
    let grid = Grid::pieces(numel, if vector { 8 } else { 1 });
    let arguments =
        arguments!(MuonUpdate { direction, master, weight, factor, numel, keep, step, vector });
    cuda.launch(typed!("muon_update", direction.dtype, rounded.dtype), grid, arguments);
}

fn copy_rows(cuda: &Cuda, which: &FusedMatrix, all: Tensor, one: Tensor, back: bool) {
    let share = which.share_cols();
    let vector = vector(share, all.dtype, [all, one]);
    let grid =
        Grid::row_pieces(one.rows, one.cols, if vector { elements_per_move(all.dtype) } else { 1 });
    let arguments = arguments!(FusedRows {
        all,
        one,
        all_rows: which.rows,
        rows: one.rows,
        cols: one.cols,
        share,
        first: which.fused.place(which.number, 0),
        width: which.fused.widths()[which.number],
        period: which.fused.period(),
        back,
        vector,
    });
    cuda.launch(typed!("fused_rows", all.dtype), grid, arguments);
}
