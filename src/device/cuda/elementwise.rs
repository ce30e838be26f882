//! Elementwise ops: zero, copy, blend, dropout, residual; sums of columns.

use super::Cuda;
use super::args::{Argument, DropoutMask, arguments};
use super::launch::{Grid, elements_per_move, typed, vector};
use crate::{Backend, Dropout, InPlace, MemoryKind, Out, Tensor, op};
use base::DType;

pub(super) fn zero(cuda: &Cuda, op: &op::Zero) {
    let x = op.x.to;
    match x.memory() {
        MemoryKind::Device => cuda.memory.clear(&cuda.device, x.addr(), x.bytes()),
        MemoryKind::Host => cuda.host().run(*op),
    }
}

pub(super) fn copy(cuda: &Cuda, &op::Copy { x, y }: &op::Copy) {
    // Eights suit all dtypes.
    let vector = vector(x.numel(), DType::BF16, [x, y.to]);
    let grid = Grid::pieces(x.numel(), if vector { 8 } else { 1 });
    let arguments = arguments!(Copy { x, y, numel: x.numel(), add: y.add, vector });
    cuda.launch(typed!("copy", x.dtype, y.to.dtype), grid, arguments);
}

pub(super) fn blend(cuda: &Cuda, &op::Blend { a, x, b, y: InPlace(y) }: &op::Blend) {
    let (grid, vector) = Grid::elements(x, [y]);
    let arguments = arguments!(Blend { x, y, numel: x.numel(), a, b, vector });
    cuda.launch(typed!("blend", x.dtype), grid, arguments);
}

pub(super) fn dropout(cuda: &Cuda, &op::Dropout { x, drop, y }: &op::Dropout) {
    let (grid, vector) = Grid::rows(x, [y.to]);
    let rows = x.rows;
    let cols = x.cols;
    let add = y.add;
    let arguments = arguments!(Dropout { x, y, rows, cols, add, vector, drop });
    cuda.launch(typed!("dropout", x.dtype), grid, arguments);
}

pub(super) fn residual(cuda: &Cuda, op: &op::Residual) {
    let op::Residual { x, branch, bias, drop, y } = *op;
    let (grid, vector) = Grid::rows(x, [branch, y.to].into_iter().chain(bias));
    let rows = x.rows;
    let cols = x.cols;
    let arguments = arguments!(Residual { x, branch, bias, y, rows, cols, vector, drop });
    cuda.launch(typed!("residual", x.dtype), grid, arguments);
}

pub(super) fn residual_backward(cuda: &Cuda, op: &op::ResidualBackward) {
    let op::ResidualBackward { dy, drop, dbranch, dbias } = *op;
    match (dbranch, dbias) {
        (_, Some(dbias)) => sum_columns(cuda, dy, dbranch.map(|out| (out.to, &drop)), dbias),
        (Some(y), None) => dropout(cuda, &op::Dropout { x: dy, drop, y }),
        (None, None) => {}
    }
}

pub(super) fn column_sums(cuda: &Cuda, op: &op::ColumnSums) {
    sum_columns(cuda, op.x, None, op.sums);
}

/// Minimum rows of a block, and number of blocks that occupy a whole GPU.
const CHUNK: usize = 64;
const BLOCKS: usize = 1056;

/// sums (+)= Σ_rows of x, or of dropout(x), which is stored in the given tensor.
fn sum_columns(cuda: &Cuda, x: Tensor, dropped: Option<(Tensor, &Dropout)>, sums: Out) {
    let to = dropped.map(|(to, _)| to);
    let vector = vector(x.cols, x.dtype, std::iter::once(x).chain(to));
    let across = x
        .cols
        .div_ceil(32 * if vector { elements_per_move(x.dtype) } else { 1 });
    let chunks = (BLOCKS / across).clamp(1, x.rows.div_ceil(CHUNK).max(1));
    let chunk = x.rows.div_ceil(chunks).max(1);
    let chunks = x.rows.div_ceil(chunk).max(1);
    let parts = cuda.scratch(chunks * x.cols * 4);
    let drop = dropped.map_or(DropoutMask::none(), |(_, drop)| DropoutMask::new(drop));
    let rows = x.rows;
    let cols = x.cols;
    let arguments = arguments!(ColumnParts { x, to, parts, rows, cols, chunk, vector, drop });
    let grid = Grid { blocks: [across, chunks, 1], threads: [32, 8], shared: 0 };
    cuda.launch(typed!("column_parts", x.dtype), grid, arguments);
    add_parts(cuda, parts, x.cols, chunks, [Some(sums)]);
}

/// outs[k] (+)= Σ over `count` partial sums, which are `stride` f32 apart: a row of them has those of each
/// output, one after the other, also of one that is None. All outputs have the same size.
pub(super) fn add_parts<const N: usize>(
    cuda: &Cuda,
    parts: usize,
    stride: usize,
    count: usize,
    outs: [Option<Out>; N],
) {
    let Some(first) = outs.iter().flatten().next() else { return };
    let cols = first.to.numel();
    let of = |k: usize| outs.get(k).copied().flatten();
    let add = std::array::from_fn(|k| u32::from(of(k).is_some_and(|out| out.add)));
    let outs = std::array::from_fn(|k| of(k).argument());
    let arguments = arguments!(ColumnSums { parts, outs, stride, count, cols, add });
    let grid = Grid { blocks: [cols.div_ceil(32), N, 1], threads: [32, 8], shared: 0 };
    cuda.launch("column_sums", grid, arguments);
}
