//! Lookup of rows of a table by id.

use super::Cpu;
use super::math;
use super::memory::{BLOCK, Block, integer, load, put, store};
use super::parallel::blocks;
use crate::{Tensor, op};

/// Columns of the gradient that one task sums over all ids.
const STRIP: usize = 64;

pub(super) fn forward(cpu: &Cpu, &op::Embed { ids, table, first, y }: &op::Embed) {
    let width = table.cols;
    cpu.each_rows(y.to.rows, width, |rows| {
        for i in rows {
            let row = row_of(ids, i, first, table.rows);
            for cols in blocks(0..width) {
                let mut buffer: Block = [0.0; BLOCK];
                let buffer = &mut buffer[..cols.len()];
                if let Some(row) = row {
                    load(table, row * width + cols.start, buffer);
                }
                put(buffer, y, i * width + cols.start);
            }
        }
    });
}

pub(super) fn backward(cpu: &Cpu, op: &op::EmbedBackward) {
    let op::EmbedBackward { dy, ids, first, dtable } = *op;
    let width = dy.cols;
    cpu.each(width.div_ceil(STRIP), |strip| {
        let start = strip * STRIP;
        let len = STRIP.min(width - start);
        let mut new = [0.0; STRIP];
        let mut sum = [0.0; STRIP];
        let new = &mut new[..len];
        let sum = &mut sum[..len];
        for i in 0..dy.rows {
            if let Some(row) = row_of(ids, i, first, dtable.to.rows) {
                load(dy, i * width + start, new);
                load(dtable.to, row * width + start, sum);
                math::add(new, sum);
                store(sum, dtable.to, row * width + start);
            }
        }
    });
}

/// Row of an id in a share of `rows` rows that starts at `first`; None if it is not in the share.
fn row_of(ids: Tensor, i: usize, first: usize, rows: usize) -> Option<usize> {
    let id = usize::try_from(integer(ids, i)).expect("an id is not negative");
    id.checked_sub(first).filter(|row| *row < rows)
}
