//! Rows of a table by their number. An id that is negative names no row.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::{Out, Tensor};
use base::DType;

pub(super) fn forward(cuda: &Cuda, ids: Tensor, table: Tensor, first: usize, y: Out) {
    assert_eq!((ids.numel(), table.cols), (y.to.rows, y.to.cols), "ids, table and y");
    assert_eq!((ids.dtype, table.dtype), (DType::I32, y.to.dtype), "ids; table and y");
    let cols = table.cols;
    let vector = vector(cols, table.dtype, &[table.addr(), y.to.addr()]);
    let grid = Grid::rows(y.to.rows, cols, if vector { wide(table.dtype) } else { 1 });
    let arguments = args::Embed {
        ids: ids.addr() as _,
        table: table.addr() as _,
        y: y.to.addr() as _,
        count: y.to.rows as u64,
        first: first as i64,
        table_rows: table.rows as i64,
        cols: cols as u32,
        add: y.add.into(),
        vector: vector.into(),
    };
    cuda.launch(typed!("embed", table.dtype), grid, arguments);
}

pub(super) fn backward(cuda: &Cuda, dy: Tensor, ids: Tensor, first: usize, dtable: Out) {
    assert!(dtable.add, "the gradient of a table accumulates");
    assert_eq!((ids.numel(), dtable.to.cols), (dy.rows, dy.cols), "ids, dtable and dy");
    assert_eq!((ids.dtype, dtable.to.dtype), (DType::I32, DType::F32), "ids and dtable");
    let (count, cols) = (dy.rows, dy.cols);
    let order = cuda.scratch(8 * count);
    let sorted = order + 4 * count;
    let sort = args::EmbedSort {
        ids: ids.addr() as _,
        order: order as _,
        sorted: sorted as _,
        count: count as u32,
    };
    cuda.launch("embed_sort", Grid::line(count.div_ceil(256).max(1), 256), sort);
    let vector = vector(cols, dy.dtype, &[dy.addr(), dtable.to.addr()]);
    let grid = Grid::rows(count, cols, if vector { wide(dy.dtype) } else { 1 });
    let arguments = args::EmbedBackward {
        dy: dy.addr() as _,
        order: order as _,
        sorted: sorted as _,
        dtable: dtable.to.addr() as _,
        count: count as u64,
        first: first as i64,
        table_rows: dtable.to.rows as i64,
        cols: cols as u32,
        vector: vector.into(),
    };
    cuda.launch(typed!("embed_backward", dy.dtype), grid, arguments);
}
