//! Element by element: zero, copy, blend, dropout, residual; sums of columns.

use super::Cuda;
use super::args::{self, DropoutMask};
use super::launch::{Grid, typed, vector, wide};
use crate::{Backend, Dropout, Home, Out, Tensor, op};
use base::DType;

pub(super) fn zero(cuda: &Cuda, op: &op::Zero) {
    match op.x.home() {
        Home::Device => cuda.memory.clear(&cuda.device, op.x.addr(), op.x.bytes()),
        Home::Host => cuda.host().run(*op),
    }
}

pub(super) fn copy(cuda: &Cuda, &op::Copy { x, y }: &op::Copy) {
    // Eights suit all dtypes.
    let vector = vector(x.numel(), DType::BF16, &[x.addr(), y.to.addr()]);
    let grid = Grid::elements(x.numel(), if vector { 8 } else { 1 });
    let arguments = args::Copy {
        x: x.addr() as _,
        y: y.to.addr() as _,
        numel: x.numel() as u64,
        add: y.add.into(),
        vector: vector.into(),
    };
    cuda.launch(typed!("copy", x.dtype, y.to.dtype), grid, arguments);
}

pub(super) fn blend(cuda: &Cuda, &op::Blend { a, x, b, y }: &op::Blend) {
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
    cuda.launch(typed!("blend", x.dtype), grid, arguments);
}

pub(super) fn dropout(cuda: &Cuda, &op::Dropout { x, drop, y }: &op::Dropout) {
    let vector = vector(x.cols, x.dtype, &[x.addr(), y.to.addr()]);
    let grid = Grid::rows(x.rows, x.cols, if vector { wide(x.dtype) } else { 1 });
    let arguments = args::Dropout {
        x: x.addr() as _,
        y: y.to.addr() as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        add: y.add.into(),
        vector: vector.into(),
        drop: DropoutMask::new(&drop),
    };
    cuda.launch(typed!("dropout", x.dtype), grid, arguments);
}

pub(super) fn residual(cuda: &Cuda, op: &op::Residual) {
    let op::Residual { x, branch, bias, drop, y } = *op;
    let bias = bias.map_or(0, Tensor::addr);
    let vector = vector(x.cols, x.dtype, &[x.addr(), branch.addr(), bias, y.to.addr()]);
    let grid = Grid::rows(x.rows, x.cols, if vector { wide(x.dtype) } else { 1 });
    let arguments = args::Residual {
        x: x.addr() as _,
        branch: branch.addr() as _,
        bias: bias as _,
        y: y.to.addr() as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        vector: vector.into(),
        drop: DropoutMask::new(&drop),
    };
    cuda.launch(typed!("residual", x.dtype), grid, arguments);
}

pub(super) fn residual_backward(cuda: &Cuda, op: &op::ResidualBackward) {
    let op::ResidualBackward { dy, drop, dbranch, dbias } = *op;
    let same = op.keeps_dy();
    match dbias {
        Some(dbias) => sum_columns(cuda, dy, (!same).then_some((dbranch.to, &drop)), dbias),
        None if same => {}
        None => dropout(cuda, &op::Dropout { x: dy, drop, y: dbranch }),
    }
}

pub(super) fn column_sums(cuda: &Cuda, op: &op::ColumnSums) {
    sum_columns(cuda, op.x, None, op.sums);
}

/// Rows a block sums at least, and blocks to have work for a whole GPU.
const CHUNK: usize = 64;
const BLOCKS: usize = 1056;

/// sums (+)= Σ_rows of x, or of what dropout stores in `to`.
fn sum_columns(cuda: &Cuda, x: Tensor, to: Option<(Tensor, &Dropout)>, sums: Out) {
    let address = to.map_or(0, |(to, _)| to.addr());
    let vector = vector(x.cols, x.dtype, &[x.addr(), address]);
    let across = x.cols.div_ceil(32 * if vector { wide(x.dtype) } else { 1 });
    let chunks = (BLOCKS / across).clamp(1, x.rows.div_ceil(CHUNK).max(1));
    let chunk = x.rows.div_ceil(chunks).max(1);
    let chunks = x.rows.div_ceil(chunk).max(1);
    let parts = cuda.scratch(chunks * x.cols * 4);
    let arguments = args::ColumnParts {
        x: x.addr() as _,
        to: address as _,
        parts: parts as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        chunk: chunk as u32,
        vector: vector.into(),
        drop: to.map_or(DropoutMask::none(), |(_, drop)| DropoutMask::new(drop)),
    };
    let grid = Grid { blocks: [across, chunks, 1], threads: [32, 8], shared: 0 };
    cuda.launch(typed!("column_parts", x.dtype), grid, arguments);
    add_parts(cuda, parts, x.cols, chunks, sums);
}

/// out (+)= Σ over `count` partial sums of rows, which are `stride` f32 apart.
pub(super) fn add_parts(cuda: &Cuda, parts: usize, stride: usize, count: usize, out: Out) {
    let cols = out.to.numel();
    let arguments = args::ColumnSums {
        parts: parts as _,
        out: out.to.addr() as _,
        stride: stride as u64,
        count: count as u32,
        cols: cols as u32,
        add: out.add.into(),
    };
    let grid = Grid { blocks: [cols.div_ceil(32), 1, 1], threads: [32, 8], shared: 0 };
    cuda.launch("column_sums", grid, arguments);
}
