//! Elementwise ops: zero, copy, dropout, residual, bias, gelu, swiglu.

use super::Cpu;
use super::dropout::Mask;
use super::math;
use super::memory::{BLOCK, Block, clear, copy_bytes, load, put, store};
use super::parallel::blocks;
use crate::{Dropout, Gelu, Out, Tensor};
use std::ops::Range;

pub(super) fn zero(cpu: &Cpu, x: Tensor) {
    cpu.each_block(x.numel(), |block| clear(x, block.start, block.len()));
}

pub(super) fn copy(cpu: &Cpu, x: Tensor, y: Out) {
    assert_eq!(x.numel(), y.to.numel(), "elements of x and y");
    if x.dtype == y.to.dtype && !y.add {
        return copy_bytes(cpu, x, y.to);
    }
    cpu.each_block(x.numel(), |block| {
        let mut buffer: Block = [0.0; BLOCK];
        let buffer = &mut buffer[..block.len()];
        load(x, block.start, buffer);
        put(buffer, y, block.start);
    });
}

pub(super) fn dropout(cpu: &Cpu, x: Tensor, drop: &Dropout, y: Out) {
    assert_eq!((x.rows, x.cols), (y.to.rows, y.to.cols), "x and y");
    let mask = Mask::new(drop);
    each_piece(cpu, x, |row, cols| {
        let at = row * x.cols + cols.start;
        let mut buffer: Block = [0.0; BLOCK];
        let buffer = &mut buffer[..cols.len()];
        load(x, at, buffer);
        mask.apply(row, cols.start, buffer);
        put(buffer, y, at);
    });
}

pub(super) fn residual(
    cpu: &Cpu,
    x: Tensor,
    branch: Tensor,
    bias: Option<Tensor>,
    drop: &Dropout,
    y: Out,
) {
    assert!(!y.add, "residual overwrites");
    assert_eq!((x.rows, x.cols), (y.to.rows, y.to.cols), "x and y");
    assert_eq!((x.rows, x.cols), (branch.rows, branch.cols), "x and branch");
    assert!(bias.is_none_or(|bias| bias.numel() == x.cols), "bias {bias:?}");
    let mask = Mask::new(drop);
    each_piece(cpu, x, |row, cols| {
        let at = row * x.cols + cols.start;
        let (mut sum, mut other): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
        let (sum, other) = (&mut sum[..cols.len()], &mut other[..cols.len()]);
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

pub(super) fn residual_backward(
    cpu: &Cpu,
    dy: Tensor,
    drop: &Dropout,
    dbranch: Out,
    dbias: Option<Out>,
) {
    assert!(!dbranch.add, "dbranch is overwritten");
    let same = drop.rate == 0.0 && dbranch.to == dy;
    let Some(dbias) = dbias else {
        if !same {
            dropout(cpu, dy, drop, dbranch);
        }
        return;
    };
    assert!(dbias.add, "dbias accumulates");
    assert_eq!((dy.rows, dy.cols), (dbranch.to.rows, dbranch.to.cols), "dy and dbranch");
    let mask = Mask::new(drop);
    cpu.sum_rows(dy.rows, dy.cols, &[dbias], |rows, sums| {
        let mut buffer: Block = [0.0; BLOCK];
        for row in rows {
            for cols in blocks(0..dy.cols) {
                let at = row * dy.cols + cols.start;
                let buffer = &mut buffer[..cols.len()];
                load(dy, at, buffer);
                mask.apply(row, cols.start, buffer);
                if !same {
                    store(buffer, dbranch.to, at);
                    // Sums the stored, rounded values, so that a separate op gives the same bits.
                    load(dbranch.to, at, buffer);
                }
                math::add(buffer, &mut sums[cols]);
            }
        }
    });
}

pub(super) fn bias_backward(cpu: &Cpu, dy: Tensor, db: Out) {
    cpu.sum_rows(dy.rows, dy.cols, &[db], |rows, sums| {
        let mut buffer: Block = [0.0; BLOCK];
        for row in rows {
            for cols in blocks(0..dy.cols) {
                let buffer = &mut buffer[..cols.len()];
                load(dy, row * dy.cols + cols.start, buffer);
                math::add(buffer, &mut sums[cols]);
            }
        }
    });
}

pub(super) fn gelu(cpu: &Cpu, x: Tensor, gelu: Gelu, y: Out) {
    assert_eq!(x.numel(), y.to.numel(), "elements of x and y");
    cpu.each_block(x.numel(), |block| {
        let mut buffer: Block = [0.0; BLOCK];
        let buffer = &mut buffer[..block.len()];
        load(x, block.start, buffer);
        math::gelu(gelu, buffer);
        put(buffer, y, block.start);
    });
}

pub(super) fn swiglu(cpu: &Cpu, x: Tensor, y: Out) {
    assert_eq!((x.rows, x.cols, x.dtype), (y.to.rows, 2 * y.to.cols, y.to.dtype), "x and y");
    cpu.each_block(y.to.numel(), |block| {
        for block in halves(block) {
            let (mut pairs, mut out): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            let (pairs, out) = (&mut pairs[..2 * block.len()], &mut out[..block.len()]);
            load(x, 2 * block.start, pairs);
            math::swiglu(pairs, out);
            put(out, y, block.start);
        }
    });
}

pub(super) fn swiglu_backward(cpu: &Cpu, dy: Tensor, x: Tensor, dx: Out) {
    assert!(!dx.add, "dx is overwritten");
    assert_eq!((x.rows, x.cols, x.dtype), (dy.rows, 2 * dy.cols, dy.dtype), "x and dy");
    assert_eq!((x.rows, x.cols, x.dtype), (dx.to.rows, dx.to.cols, dx.to.dtype), "x and dx");
    cpu.each_block(dy.numel(), |block| {
        for block in halves(block) {
            let (mut pairs, mut d): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            let (pairs, d) = (&mut pairs[..2 * block.len()], &mut d[..block.len()]);
            load(x, 2 * block.start, pairs);
            load(dy, block.start, d);
            math::swiglu_backward(d, pairs);
            store(pairs, dx.to, 2 * block.start);
        }
    });
}

/// Splits a block into pieces whose pairs fill a block.
fn halves(block: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = block.end;
    block.step_by(BLOCK / 2).map(move |at| at..end.min(at + BLOCK / 2))
}

/// Calls `piece(row, columns)` for pieces of rows of at most a block.
fn each_piece(cpu: &Cpu, x: Tensor, piece: impl Fn(usize, Range<usize>) + Sync) {
    cpu.each_rows(x.rows, x.cols, |rows| {
        rows.for_each(|row| blocks(0..x.cols).for_each(|cols| piece(row, cols)));
    });
}
