//! Adafactor: sums of squares by rows, columns and fused matrices, and the update.

use super::Cuda;
use super::args::{self, Argument, arguments};
use super::elementwise::add_parts;
use super::launch::{Grid, typed};
use crate::{Adafactor, InPlace, MatrixPart, Out, Tensor, op};
use std::ptr::null_mut;

/// Number of blocks that occupy a whole GPU.
const BLOCKS: usize = 1056;
/// Minimum rows of a block.
const CHUNK: usize = 64;
/// Threads of the one block that moves a fused matrix's second moment.
pub(super) const MOMENT_THREADS: usize = 512;

pub(super) fn factor_sums(cuda: &Cuda, op: &op::FactorSums) {
    let op::FactorSums { x, factor, part, rows, cols } = *op;
    let width = part.col_rows() * part.cols;
    let touched = part.touched().len();
    if touched == 0 {
        return;
    }
    if let Some(rows) = rows {
        let arguments = arguments!(FactorRows { x, factor, rows, part });
        cuda.launch("factor_rows", Grid::line(touched, 256), arguments);
    }
    let across = part.cols.div_ceil(32);
    let chunks = (BLOCKS / across).clamp(1, touched.div_ceil(CHUNK));
    let chunk = touched.div_ceil(chunks);
    let chunks = touched.div_ceil(chunk);
    let parts = cuda.scratch(chunks * width * 4);
    let count = part.col_rows();
    let arguments = arguments!(FactorCols { x, factor, parts, chunk, count, part });
    let grid = Grid { blocks: [across, chunks, 1], threads: [32, 8], shared: 0 };
    cuda.launch("factor_cols", grid, arguments);
    add_parts(cuda, parts, width, chunks, [Some(cols)]);
}

pub(super) fn fused_square_sums(cuda: &Cuda, op: &op::FusedSquareSums) {
    let op::FusedSquareSums { x, part, y } = *op;
    let [factor, row, col, mean] = [None::<Tensor>; 4];
    let parts = null_mut();
    let eps = 0.0;
    let arguments = arguments!(FusedSums { x, parts, factor, row, col, mean, eps, part });
    fused_sums(cuda, &part, arguments, y);
}

pub(super) fn scalars(cuda: &Cuda, op: &op::AdafactorScalars) {
    let op::AdafactorScalars { rule, updates, y: out } = *op;
    let Adafactor { lr, beta2_decay, relative_step, .. } = rule;
    let arguments = arguments!(AdafactorScalars { updates, out, lr, beta2_decay, relative_step });
    cuda.launch("adafactor_scalars", Grid::line(1, 1), arguments);
}

pub(super) fn move_second_moment(cuda: &Cuda, op: &op::MoveSecondMoment) {
    let op::MoveSecondMoment { scalars, part, rows, cols, v: InPlace(v) } = *op;
    let row_sums = rows;
    let col_sums = cols;
    let row = v.row();
    let col = v.col();
    let mean = v.mean();
    let arguments = arguments!(SecondMoment { scalars, row_sums, col_sums, row, col, mean, part });
    let grid = Grid::line(part.col_rows(), MOMENT_THREADS);
    cuda.launch("move_second_moment", grid, arguments);
}

pub(super) fn square_sums(cuda: &Cuda, op: &op::AdafactorSquareSums) {
    let op::AdafactorSquareSums { rule, scalars, grad, part, v, y } = *op;
    let arguments = arguments!(FusedSums {
        x: grad,
        parts: null_mut(),
        factor: scalars,
        row: v.row(),
        col: v.col(),
        mean: v.mean(),
        eps: rule.eps,
        part,
    });
    fused_sums(cuda, &part, arguments, y);
}

pub(super) fn update(cuda: &Cuda, op: &op::Adafactor) {
    let op::Adafactor { rule, scalars, grad, part, v, master: InPlace(master), weight, .. } = *op;
    let op::Adafactor { update_squares, weight_squares, .. } = *op;
    let Adafactor { lr_scale, eps, scale_eps, clip_threshold, .. } = rule;
    let arguments = arguments!(Adafactor {
        grad,
        master,
        weight,
        scalars,
        row: v.row(),
        col: v.col(),
        mean: v.mean(),
        update_squares,
        weight_squares,
        keep: rule.keep(),
        lr_scale,
        eps,
        scale_eps,
        clip_threshold,
        part,
    });
    let rows = part.touched().len();
    if rows > 0 {
        let across = part.cols.div_ceil(256);
        let grid = Grid { blocks: [across, rows.min(8 * BLOCKS), 1], threads: [256, 1], shared: 0 };
        cuda.launch(
            typed!("adafactor", weight.map_or(master, |out| out.to).dtype),
            grid,
            arguments,
        );
    }
}

/// Launches the sums, with scratch for those of each block.
fn fused_sums(cuda: &Cuda, part: &MatrixPart, arguments: args::FusedSums, out: Out) {
    let count = part.fused.count();
    let blocks = part.touched().len().min(BLOCKS);
    if blocks == 0 {
        return;
    }
    let parts = cuda.scratch(blocks * 3 * size_of::<f64>());
    let arguments = arguments!(FusedSums { parts, ..arguments });
    cuda.launch("fused_sums", Grid::line(blocks, 256), arguments);
    let arguments = arguments!(FusedFinish { parts, out, blocks, count });
    cuda.launch("fused_finish", Grid::line(1, 256), arguments);
}

impl Argument<args::MatrixPart> for MatrixPart {
    fn argument(self) -> args::MatrixPart {
        let MatrixPart { first, len, rows, cols, fused, .. } = self;
        let [width0, width1, width2] = fused.widths();
        let vector = self.is_vector();
        let [whole_rows, whole_cols] = self.whole;
        arguments!(MatrixPart {
            first,
            len,
            rows,
            cols,
            width0,
            width1,
            width2,
            whole_rows,
            whole_cols,
            vector,
        })
    }
}
