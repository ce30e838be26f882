//! Adafactor: sums of squares by rows, columns and fused matrices, and the update.

use super::Cuda;
use super::args;
use super::elementwise::add_parts;
use super::launch::{Grid, typed};
use crate::{MatrixPart, Out, SecondMoment, Tensor, op};
use std::ptr::{null, null_mut};

/// Blocks to have work for a whole GPU.
const BLOCKS: usize = 1056;
/// Rows that a block sums at least.
const CHUNK: usize = 64;
/// Threads of the one block that moves a fused matrix's second moment.
const MOMENT_THREADS: usize = 512;

pub(super) fn factor_sums(cuda: &Cuda, op: &op::FactorSums) {
    let op::FactorSums { x, factor, part, rows, cols } = *op;
    let width = part.col_rows() * part.cols;
    let touched = part.touched().len();
    if touched == 0 {
        return;
    }
    let (x, factor) = (x.addr() as _, factor.addr() as _);
    if let Some(rows) = rows {
        let (rows, part) = (rows.to.addr() as _, args::MatrixPart::new(&part));
        let arguments = args::FactorRows { x, factor, rows, part };
        cuda.launch("factor_rows", Grid::line(touched, 256), arguments);
    }
    let across = part.cols.div_ceil(32);
    let chunks = (BLOCKS / across).clamp(1, touched.div_ceil(CHUNK));
    let chunk = touched.div_ceil(chunks);
    let chunks = touched.div_ceil(chunk);
    let parts = cuda.scratch(chunks * width * 4);
    let arguments = args::FactorCols {
        x,
        factor,
        parts: parts as _,
        chunk: chunk as u64,
        count: part.col_rows() as u32,
        part: args::MatrixPart::new(&part),
    };
    let grid = Grid { blocks: [across, chunks, 1], threads: [32, 8], shared: 0 };
    cuda.launch("factor_cols", grid, arguments);
    add_parts(cuda, parts, width, chunks, cols);
}

pub(super) fn fused_square_sums(cuda: &Cuda, op: &op::FusedSquareSums) {
    let op::FusedSquareSums { x, part, y } = *op;
    let none = args::FusedSums {
        x: x.addr() as _,
        parts: null_mut(),
        factor: null(),
        row: null(),
        col: null(),
        mean: null(),
        eps: 0.0,
        part: args::MatrixPart::new(&part),
    };
    fused_sums(cuda, &part, none, y);
}

pub(super) fn scalars(cuda: &Cuda, op: &op::AdafactorScalars) {
    let op::AdafactorScalars { rule, updates, y } = *op;
    let arguments = args::AdafactorScalars {
        updates: updates.addr() as _,
        out: y.to.addr() as _,
        lr: rule.lr,
        beta2_decay: rule.beta2_decay,
        relative_step: rule.relative_step.into(),
    };
    cuda.launch("adafactor_scalars", Grid::line(1, 1), arguments);
}

pub(super) fn move_second_moment(cuda: &Cuda, op: &op::MoveSecondMoment) {
    let op::MoveSecondMoment { scalars, part, rows, cols, v } = *op;
    let [row, col, mean] = addresses(v);
    let arguments = args::SecondMoment {
        scalars: scalars.addr() as _,
        row_sums: rows.map_or(0, Tensor::addr) as _,
        col_sums: cols.addr() as _,
        row: row as _,
        col: col as _,
        mean: mean as _,
        part: args::MatrixPart::new(&part),
    };
    let grid = Grid::line(part.col_rows(), MOMENT_THREADS);
    cuda.launch("move_second_moment", grid, arguments);
}

pub(super) fn square_sums(cuda: &Cuda, op: &op::AdafactorSquareSums) {
    let op::AdafactorSquareSums { rule, scalars, grad, part, v, y } = *op;
    let [row, col, mean] = addresses(v);
    let arguments = args::FusedSums {
        x: grad.addr() as _,
        parts: null_mut(),
        factor: scalars.addr() as _,
        row: row as _,
        col: col as _,
        mean: mean as _,
        eps: rule.eps,
        part: args::MatrixPart::new(&part),
    };
    fused_sums(cuda, &part, arguments, y);
}

pub(super) fn update(cuda: &Cuda, op: &op::Adafactor) {
    let op::Adafactor { rule, scalars, grad, part, v, master, weight, .. } = *op;
    let [row, col, mean] = addresses(v);
    let arguments = args::Adafactor {
        grad: grad.addr() as _,
        master: master.addr() as _,
        live: if weight == master { null_mut() } else { weight.addr() as _ },
        scalars: scalars.addr() as _,
        row: row as _,
        col: col as _,
        mean: mean as _,
        update: op.update_squares.addr() as _,
        weight: op.weight_squares.map_or(0, Tensor::addr) as _,
        keep: rule.keep(),
        lr_scale: rule.lr_scale,
        eps: rule.eps,
        scale_eps: rule.scale_eps,
        clip_threshold: rule.clip_threshold,
        part: args::MatrixPart::new(&part),
    };
    let rows = part.touched().len();
    if rows > 0 {
        let across = part.cols.div_ceil(256);
        let grid = Grid { blocks: [across, rows.min(8 * BLOCKS), 1], threads: [256, 1], shared: 0 };
        cuda.launch(typed!("adafactor", weight.dtype), grid, arguments);
    }
}

/// Fills in the scratch.
fn fused_sums(cuda: &Cuda, part: &MatrixPart, arguments: args::FusedSums, out: Out) {
    let count = part.fused.count();
    let blocks = part.touched().len().min(BLOCKS);
    if blocks == 0 {
        return;
    }
    let parts = cuda.scratch(blocks * 3 * size_of::<f64>());
    let arguments = args::FusedSums { parts: parts as _, ..arguments };
    cuda.launch("fused_sums", Grid::line(blocks, 256), arguments);
    let (blocks, count) = (blocks as u32, count as u32);
    let arguments = args::FusedFinish { parts: parts as _, out: out.to.addr() as _, blocks, count };
    cuda.launch("fused_finish", Grid::line(1, 256), arguments);
}

/// Addresses of the means by row, by column, and over the whole; 0 where there are none.
fn addresses(v: SecondMoment) -> [usize; 3] {
    [v.row(), Some(v.col()), v.mean()].map(|x| x.map_or(0, Tensor::addr))
}

impl args::MatrixPart {
    fn new(part: &MatrixPart) -> args::MatrixPart {
        let [width0, width1, width2] = part.fused.widths().map(|width| width as u32);
        let [whole_rows, whole_cols] = part.whole;
        args::MatrixPart {
            first: part.first as u64,
            len: part.len as u64,
            rows: part.rows as u64,
            cols: part.cols as u32,
            width0,
            width1,
            width2,
            whole_rows: whole_rows as u64,
            whole_cols: whole_cols as u32,
            vector: part.is_vector().into(),
        }
    }
}
