//! Lookup of rows of a table by id. A negative id has no row.

use super::Cuda;
use super::args::arguments;
use super::launch::{Grid, typed};
use crate::{Tensor, op};

pub(super) fn forward(cuda: &Cuda, &op::Embed { ids, table, first, y }: &op::Embed) {
    let cols = table.cols;
    let (grid, vector) = Grid::rows(y.to, [table]);
    let count = y.to.rows;
    let table_rows = table.rows;
    let add = y.add;
    let arguments =
        arguments!(Embed { ids, table, y, count, first, table_rows, cols, add, vector });
    cuda.launch(typed!("embed", table.dtype), grid, arguments);
}

pub(super) fn backward(cuda: &Cuda, op: &op::EmbedBackward) {
    let op::EmbedBackward { dy, ids, first, dtable } = *op;
    let count = dy.rows;
    let cols = dy.cols;
    let [order, rows] = sort_positions(cuda, ids, first, dtable.to.rows);
    let (grid, vector) = Grid::rows(dy, [dtable.to]);
    let table_rows = dtable.to.rows;
    let arguments =
        arguments!(EmbedBackward { dy, order, rows, dtable, count, table_rows, cols, vector });
    cuda.launch(typed!("embed_backward", dy.dtype), grid, arguments);
}

/// Positions of a tile, as many as a digit has values.
pub(super) const TILE: usize = 256;
const DIGIT_BITS: u32 = 8;
/// Threads of the block that computes the first index of each digit.
pub(super) const STARTERS: usize = 1024;

/// Sorts the positions of ids by the rows of the table. Returns the addresses, in scratch, of the
/// positions and of their rows, i32; an id without a row has row `table_rows`. Work and memory are
/// linear in the number of ids.
fn sort_positions(cuda: &Cuda, ids: Tensor, first: usize, table_rows: usize) -> [usize; 2] {
    let count = ids.numel();
    let tiles = count.div_ceil(TILE).max(1);
    let words = 4 * count;
    let scratch = cuda.scratch(4 * words + 4 * TILE * tiles);
    let halves = [0, 2].map(|at| scratch + 4 * TILE * tiles + at * words);
    let digits = (usize::BITS - table_rows.leading_zeros())
        .div_ceil(DIGIT_BITS)
        .max(1);
    let mut last = [0; 2];
    for digit in 0..digits {
        let to = halves[digit as usize % 2];
        let arguments = arguments!(EmbedSort {
            ids,
            from_order: last[0],
            from_rows: last[1],
            order: to,
            rows: to + words,
            starts: scratch,
            first,
            table_rows,
            count,
            shift: DIGIT_BITS * digit,
        });
        cuda.launch("embed_count", Grid::line(tiles, TILE), arguments);
        cuda.launch("embed_start", Grid::line(1, STARTERS), arguments);
        cuda.launch("embed_place", Grid::line(tiles, TILE), arguments);
        last = [to, to + words];
    }
    last
}
