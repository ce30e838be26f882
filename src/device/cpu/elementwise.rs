//! Elementwise ops: zero, copy, blend, dropout, residual; sums of columns.

use super::Cpu;
use super::dropout::Mask;
use super::math;
use super::memory::{BLOCK, Block, clear, copy_bytes, load, put, store};
use super::parallel::blocks;
use crate::{InPlace, Tensor, op};
use std::ops::Range;

pub(super) fn zero(cpu: &Cpu, &op::Zero { x: out }: &op::Zero) {
    let x = out.to;
    cpu.each_block(x.numel(), |block| clear(x, block.start, block.len()));
}

pub(super) fn copy(cpu: &Cpu, &op::Copy { x, y }: &op::Copy) {
    if x.dtype == y.to.dtype && !y.add {
        return copy_bytes(cpu, x, y.to);
    }
    cpu.each_loaded([x], |at, [x]| put(x, y, at));
}

pub(super) fn blend(cpu: &Cpu, &op::Blend { a, x, b, y: InPlace(y) }: &op::Blend) {
    cpu.each_loaded([x, y], |at, [from, onto]| {
        math::sum_of_products(a, from, b, onto);
        store(onto, y, at);
    });
}

pub(super) fn dropout(cpu: &Cpu, op: &op::Dropout) {
    let op::Dropout { x, drop, y } = *op;
    let mask = Mask::new(&drop);
    each_piece(cpu, x, |row, cols| {
        let at = row * x.cols + cols.start;
        let mut buffer: Block = [0.0; BLOCK];
        let buffer = &mut buffer[..cols.len()];
        load(x, at, buffer);
        mask.apply(row, cols.start, buffer);
        put(buffer, y, at);
    });
}

pub(super) fn residual(cpu: &Cpu, op: &op::Residual) {
    let op::Residual { x, branch, bias, drop, y } = *op;
    let mask = Mask::new(&drop);
    each_piece(cpu, x, |row, cols| {
        let at = row * x.cols + cols.start;
        let (mut sum, mut other): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
        let sum = &mut sum[..cols.len()];
        let other = &mut other[..cols.len()];
        load(branch, at, sum);
        if let Some(bias) = bias {
            load(bias, cols.start, other);
            math::add(other, sum);
        }
        mask.apply(row, cols.start, sum);
        load(x, at, other);
        math::add(other, sum);
        store(sum, y.to, at);
    });
}

pub(super) fn residual_backward(cpu: &Cpu, op: &op::ResidualBackward) {
    let op::ResidualBackward { dy, drop, dbranch, dbias } = *op;
    let Some(dbias) = dbias else {
        if let Some(y) = dbranch {
            dropout(cpu, &op::Dropout { x: dy, drop, y });
        }
        return;
    };
    let mask = Mask::new(&drop);
    cpu.sum_rows(dy.rows, dy.cols, &[dbias], |rows, sums| {
        let mut buffer: Block = [0.0; BLOCK];
        for row in rows {
            for cols in blocks(0..dy.cols) {
                let at = row * dy.cols + cols.start;
                let buffer = &mut buffer[..cols.len()];
                load(dy, at, buffer);
                mask.apply(row, cols.start, buffer);
                if let Some(dbranch) = dbranch {
                    store(buffer, dbranch.to, at);
                    // Sums the stored, rounded values, so that a separate op gives the same bits.
                    load(dbranch.to, at, buffer);
                }
                math::add(buffer, &mut sums[cols]);
            }
        }
    });
}

pub(super) fn column_sums(cpu: &Cpu, &op::ColumnSums { x, sums: to }: &op::ColumnSums) {
    cpu.sum_rows(x.rows, x.cols, &[to], |rows, sums| {
        let mut buffer: Block = [0.0; BLOCK];
        for row in rows {
            for cols in blocks(0..x.cols) {
                let buffer = &mut buffer[..cols.len()];
                load(x, row * x.cols + cols.start, buffer);
                math::add(buffer, &mut sums[cols]);
            }
        }
    });
}

/// Calls `piece(row, columns)` for pieces of rows of at most a block.
fn each_piece(cpu: &Cpu, x: Tensor, piece: impl Fn(usize, Range<usize>) + Sync) {
    cpu.each_rows(x.rows, x.cols, |rows| {
        rows.for_each(|row| blocks(0..x.cols).for_each(|cols| piece(row, cols)));
    });
}
