//! Rows of a table by their number. An id that is negative names no row.

use super::Cuda;
use super::launch::{Grid, typed, vector, wide};
use crate::base::DType;
use crate::device::{Out, Tensor};

#[repr(C)]
#[derive(Clone, Copy)]
struct Embed {
    ids: u64,
    table: u64,
    y: u64,
    count: u64,
    first: i64,
    table_rows: i64,
    cols: u32,
    add: u32,
    vector: u32,
    unused: u32,
}

pub(super) fn forward(cuda: &Cuda, ids: Tensor, table: Tensor, first: usize, y: Out) {
    assert_eq!((ids.numel(), table.cols), (y.to.rows, y.to.cols), "ids, table and y");
    assert_eq!((ids.dtype, table.dtype), (DType::I32, y.to.dtype), "ids; table and y");
    let cols = table.cols;
    let vector = vector(cols, table.dtype, &[table.addr(), y.to.addr()]);
    let grid = Grid::rows(y.to.rows, cols, if vector { wide(table.dtype) } else { 1 });
    let arguments = Embed {
        ids: ids.addr() as u64,
        table: table.addr() as u64,
        y: y.to.addr() as u64,
        count: y.to.rows as u64,
        first: first as i64,
        table_rows: table.rows as i64,
        cols: cols as u32,
        add: y.add.into(),
        vector: vector.into(),
        unused: 0,
    };
    cuda.launch(typed!("embed", table.dtype), grid, arguments);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Chain {
    ids: u64,
    next: u64,
    first: u64,
    count: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct EmbedBackward {
    dy: u64,
    ids: u64,
    next: u64,
    first_place: u64,
    dtable: u64,
    count: u64,
    first: i64,
    table_rows: i64,
    cols: u32,
    vector: u32,
}

pub(super) fn backward(cuda: &Cuda, dy: Tensor, ids: Tensor, first: usize, dtable: Out) {
    assert!(dtable.add, "the gradient of a table accumulates");
    assert_eq!((ids.numel(), dtable.to.cols), (dy.rows, dy.cols), "ids, dtable and dy");
    assert_eq!((ids.dtype, dtable.to.dtype), (DType::I32, DType::F32), "ids and dtable");
    let (count, cols) = (dy.rows, dy.cols);
    let next = cuda.scratch(8 * count);
    let first_place = next + 4 * count;
    let chain = Chain {
        ids: ids.addr() as u64,
        next: next as u64,
        first: first_place as u64,
        count: count as u32,
        unused: 0,
    };
    cuda.launch("embed_chain", Grid::line(count.div_ceil(256).max(1), 256), chain);
    let vector = vector(cols, dy.dtype, &[dy.addr(), dtable.to.addr()]);
    let grid = Grid::rows(count, cols, if vector { wide(dy.dtype) } else { 1 });
    let arguments = EmbedBackward {
        dy: dy.addr() as u64,
        ids: ids.addr() as u64,
        next: next as u64,
        first_place: first_place as u64,
        dtable: dtable.to.addr() as u64,
        count: count as u64,
        first: first as i64,
        table_rows: dtable.to.rows as i64,
        cols: cols as u32,
        vector: vector.into(),
    };
    cuda.launch(typed!("embed_backward", dy.dtype), grid, arguments);
}
