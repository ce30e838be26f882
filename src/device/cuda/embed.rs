//! Rows of a table by their number. An id that is negative names no row.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::{Tensor, op};

pub(super) fn forward(cuda: &Cuda, &op::Embed { ids, table, first, y }: &op::Embed) {
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

pub(super) fn backward(cuda: &Cuda, op: &op::EmbedBackward) {
    let op::EmbedBackward { dy, ids, first, dtable } = *op;
    let (count, cols) = (dy.rows, dy.cols);
    let [order, rows] = sorted(cuda, ids, first, dtable.to.rows);
    let vector = vector(cols, dy.dtype, &[dy.addr(), dtable.to.addr()]);
    let grid = Grid::rows(count, cols, if vector { wide(dy.dtype) } else { 1 });
    let arguments = args::EmbedBackward {
        dy: dy.addr() as _,
        order: order as _,
        rows: rows as _,
        dtable: dtable.to.addr() as _,
        count: count as u64,
        table_rows: dtable.to.rows as i64,
        cols: cols as u32,
        vector: vector.into(),
    };
    cuda.launch(typed!("embed_backward", dy.dtype), grid, arguments);
}

/// Places of a tile, as many as a digit has values.
const TILE: usize = 256;
const DIGIT_BITS: u32 = 8;
/// Threads of the block that adds up where digits begin.
const STARTERS: usize = 1024;

/// The places of ids in the order of the rows of a table that they name, in i32, and these rows, in
/// scratch: `table_rows` of ids that name none. Work and memory grow as the ids do.
fn sorted(cuda: &Cuda, ids: Tensor, first: usize, table_rows: usize) -> [usize; 2] {
    let count = ids.numel();
    let tiles = count.div_ceil(TILE).max(1);
    let words = 4 * count;
    let scratch = cuda.scratch(4 * words + 4 * TILE * tiles);
    let halves = [0, 2].map(|at| scratch + 4 * TILE * tiles + at * words);
    let digits = (usize::BITS - table_rows.leading_zeros()).div_ceil(DIGIT_BITS).max(1);
    let mut last = [0; 2];
    for digit in 0..digits {
        let to = halves[digit as usize % 2];
        let arguments = args::EmbedSort {
            ids: ids.addr() as _,
            from_order: last[0] as _,
            from_rows: last[1] as _,
            order: to as _,
            rows: (to + words) as _,
            starts: scratch as _,
            first: first as i64,
            table_rows: table_rows as i64,
            count: count as u32,
            shift: DIGIT_BITS * digit,
        };
        cuda.launch("embed_count", Grid::line(tiles, TILE), arguments);
        cuda.launch("embed_start", Grid::line(1, STARTERS), arguments);
        cuda.launch("embed_place", Grid::line(tiles, TILE), arguments);
        last = [to, to + words];
    }
    last
}
