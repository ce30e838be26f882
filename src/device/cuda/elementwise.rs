//! Element by element: copy, dropout, residual; sums of columns.

use super::Cuda;
use super::launch::{Grid, typed, vector, wide};
use crate::base::DType;
use crate::device::{Dropout, Out, Tensor};

#[repr(C)]
#[derive(Clone, Copy)]
struct Copied {
    x: u64,
    y: u64,
    numel: u64,
    add: u32,
    vector: u32,
}

pub(super) fn copy(cuda: &Cuda, x: Tensor, y: Out) {
    assert_eq!(x.numel(), y.to.numel(), "elements of x and y");
    // Eights suit all dtypes.
    let vector = vector(x.numel(), DType::BF16, &[x.addr(), y.to.addr()]);
    let grid = Grid::elements(x.numel(), if vector { 8 } else { 1 });
    let arguments = Copied {
        x: x.addr() as u64,
        y: y.to.addr() as u64,
        numel: x.numel() as u64,
        add: y.add.into(),
        vector: vector.into(),
    };
    cuda.launch(typed!("copy", x.dtype, y.to.dtype), grid, arguments);
}

/// What kernels know of dropout.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Drop {
    key: u64,
    first_sample: u64,
    seq: u64,
    first_row: u64,
    bound: u32,
    kept: f32,
}

impl Drop {
    pub fn new(drop: &Dropout) -> Drop {
        assert!((0.0..1.0).contains(&drop.rate), "dropout rate {}", drop.rate);
        Drop {
            key: drop.key,
            first_sample: drop.first_sample.addr() as u64,
            seq: drop.seq as u64,
            first_row: drop.first_row as u64,
            bound: (drop.rate as f64 * 4_294_967_296.0).ceil() as u32,
            kept: 1.0 / (1.0 - drop.rate),
        }
    }

    fn none() -> Drop {
        Drop { key: 0, first_sample: 0, seq: 0, first_row: 0, bound: 0, kept: 1.0 }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Dropped {
    x: u64,
    y: u64,
    rows: u64,
    cols: u32,
    add: u32,
    vector: u32,
    drop: Drop,
}

pub(super) fn dropout(cuda: &Cuda, x: Tensor, drop: &Dropout, y: Out) {
    assert_eq!((x.rows, x.cols, x.dtype), (y.to.rows, y.to.cols, y.to.dtype), "x and y");
    let vector = vector(x.cols, x.dtype, &[x.addr(), y.to.addr()]);
    let grid = Grid::rows(x.rows, x.cols, if vector { wide(x.dtype) } else { 1 });
    let arguments = Dropped {
        x: x.addr() as u64,
        y: y.to.addr() as u64,
        rows: x.rows as u64,
        cols: x.cols as u32,
        add: y.add.into(),
        vector: vector.into(),
        drop: Drop::new(drop),
    };
    cuda.launch(typed!("dropout", x.dtype), grid, arguments);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Residual {
    x: u64,
    branch: u64,
    bias: u64,
    y: u64,
    rows: u64,
    cols: u32,
    vector: u32,
    drop: Drop,
}

pub(super) fn residual(
    cuda: &Cuda,
    x: Tensor,
    branch: Tensor,
    bias: Tensor,
    drop: &Dropout,
    y: Out,
) {
    assert!(!y.add, "residual overwrites");
    for other in [branch, y.to] {
        assert_eq!((x.rows, x.cols, x.dtype), (other.rows, other.cols, other.dtype), "shapes");
    }
    assert_eq!((bias.numel(), bias.dtype), (x.cols, x.dtype), "bias");
    let addresses = [x.addr(), branch.addr(), bias.addr(), y.to.addr()];
    let vector = vector(x.cols, x.dtype, &addresses);
    let grid = Grid::rows(x.rows, x.cols, if vector { wide(x.dtype) } else { 1 });
    let arguments = Residual {
        x: x.addr() as u64,
        branch: branch.addr() as u64,
        bias: bias.addr() as u64,
        y: y.to.addr() as u64,
        rows: x.rows as u64,
        cols: x.cols as u32,
        vector: vector.into(),
        drop: Drop::new(drop),
    };
    cuda.launch(typed!("residual", x.dtype), grid, arguments);
}

pub(super) fn residual_backward(cuda: &Cuda, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Out) {
    assert!(!dbranch.add && dbias.add, "dbranch is overwritten, dbias accumulated");
    let to = dbranch.to;
    assert_eq!((dy.rows, dy.cols, dy.dtype), (to.rows, to.cols, to.dtype), "dy and dbranch");
    let same = drop.rate == 0.0 && to == dy;
    sum_columns(cuda, dy, (!same).then_some((to, drop)), dbias);
}

pub(super) fn bias_backward(cuda: &Cuda, dy: Tensor, db: Out) {
    sum_columns(cuda, dy, None, db);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ColumnParts {
    x: u64,
    to: u64,
    parts: u64,
    rows: u64,
    cols: u32,
    chunk: u32,
    vector: u32,
    drop: Drop,
}

/// Rows a block sums at least, and blocks to have work for a whole GPU.
const CHUNK: usize = 64;
const BLOCKS: usize = 1056;

/// sums (+)= Σ_rows of x, or of what dropout stores in `to`.
fn sum_columns(cuda: &Cuda, x: Tensor, to: Option<(Tensor, &Dropout)>, sums: Out) {
    assert_eq!((sums.to.numel(), sums.to.dtype), (x.cols, DType::F32), "sums");
    let address = to.map_or(0, |(to, _)| to.addr());
    let vector = vector(x.cols, x.dtype, &[x.addr(), address]);
    let across = x.cols.div_ceil(32 * if vector { wide(x.dtype) } else { 1 });
    let chunks = (BLOCKS / across).clamp(1, x.rows.div_ceil(CHUNK).max(1));
    let chunk = x.rows.div_ceil(chunks).max(1);
    let chunks = x.rows.div_ceil(chunk).max(1);
    let parts = cuda.scratch(chunks * x.cols * 4);
    let arguments = ColumnParts {
        x: x.addr() as u64,
        to: address as u64,
        parts: parts as u64,
        rows: x.rows as u64,
        cols: x.cols as u32,
        chunk: chunk as u32,
        vector: vector.into(),
        drop: to.map_or(Drop::none(), |(_, drop)| Drop::new(drop)),
    };
    let grid = Grid { blocks: [across, chunks, 1], threads: [32, 8], shared: 0 };
    cuda.launch(typed!("column_parts", x.dtype), grid, arguments);
    add_parts(cuda, parts, x.cols, chunks, sums);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ColumnSums {
    parts: u64,
    out: u64,
    stride: u64,
    count: u32,
    cols: u32,
    add: u32,
    unused: u32,
}

/// out (+)= Σ over `count` partial sums of rows, which lie `stride` f32 apart.
pub(super) fn add_parts(cuda: &Cuda, parts: usize, stride: usize, count: usize, out: Out) {
    let cols = out.to.numel();
    let arguments = ColumnSums {
        parts: parts as u64,
        out: out.to.addr() as u64,
        stride: stride as u64,
        count: count as u32,
        cols: cols as u32,
        add: out.add.into(),
        unused: 0,
    };
    let grid = Grid { blocks: [cols.div_ceil(32), 1, 1], threads: [32, 8], shared: 0 };
    cuda.launch("column_sums", grid, arguments);
}
