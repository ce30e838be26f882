//! Element by element: zero, copy, dropout, residual, bias, gelu.

use super::Cpu;
use super::attention::{QUERIES, tile_factors};
use super::math::{self, Place};
use super::memory::{BLOCK, Block, clear, load, long, put, store};
use super::parallel::blocks;
use crate::device::{Dropout, Gelu, Out, Tensor};
use std::ops::Range;

pub(super) fn zero(cpu: &Cpu, x: Tensor) {
    cpu.each_block(x.numel(), |block| clear(x, block.start, block.len()));
}

pub(super) fn copy(cpu: &Cpu, x: Tensor, y: Out) {
    assert_eq!(x.numel(), y.to.numel(), "elements of x and y");
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

pub(super) fn residual(cpu: &Cpu, x: Tensor, branch: Tensor, bias: Tensor, drop: &Dropout, y: Out) {
    assert!(!y.add, "residual overwrites");
    assert_eq!((x.rows, x.cols), (y.to.rows, y.to.cols), "x and y");
    assert_eq!((x.rows, x.cols), (branch.rows, branch.cols), "x and branch");
    assert_eq!(bias.numel(), x.cols, "bias");
    let mask = Mask::new(drop);
    each_piece(cpu, x, |row, cols| {
        let at = row * x.cols + cols.start;
        let (mut sum, mut other): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
        let (sum, other) = (&mut sum[..cols.len()], &mut other[..cols.len()]);
        load(branch, at, sum);
        load(bias, cols.start, other);
        math::add(other, sum);
        mask.apply(row, cols.start, sum);
        load(x, at, other);
        math::add(other, sum);
        store(sum, y.to, at);
    });
}

pub(super) fn residual_backward(cpu: &Cpu, dy: Tensor, drop: &Dropout, dbranch: Out, dbias: Out) {
    assert!(!dbranch.add && dbias.add, "dbranch is overwritten, dbias accumulated");
    assert_eq!((dy.rows, dy.cols), (dbranch.to.rows, dbranch.to.cols), "dy and dbranch");
    let mask = Mask::new(drop);
    let same = drop.rate == 0.0 && dbranch.to == dy;
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
                    // The sum is of what was stored, so that it does not matter who takes it.
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

/// Calls `piece(row, columns)` for pieces of rows, of at most a block.
fn each_piece(cpu: &Cpu, x: Tensor, piece: impl Fn(usize, Range<usize>) + Sync) {
    cpu.each_rows(x.rows, x.cols, |rows| {
        rows.for_each(|row| blocks(0..x.cols).for_each(|cols| piece(row, cols)));
    });
}

/// What dropout multiplies elements with.
pub(super) struct Mask {
    key: u64,
    /// Row of the whole run at which the tensor starts.
    first: u64,
    /// A word below this drops its element.
    bound: u32,
    kept: f32,
}

impl Mask {
    pub fn new(drop: &Dropout) -> Mask {
        assert!((0.0..1.0).contains(&drop.rate), "dropout rate {}", drop.rate);
        let nothing = Mask { key: drop.key, first: 0, bound: 0, kept: 1.0 };
        if drop.rate == 0.0 {
            return nothing;
        }
        let first = long(drop.first_sample) as u64 * drop.seq as u64 + drop.first_row as u64;
        let bound = (drop.rate as f64 * 4_294_967_296.0).ceil() as u32;
        Mask { first, bound, kept: 1.0 / (1.0 - drop.rate), ..nothing }
    }

    /// Whether there is anything to drop.
    pub fn any(&self) -> bool {
        self.bound > 0
    }

    /// Drops from a block that starts at column `col`, a multiple of 4, of a row.
    pub fn apply(&self, row: usize, col: usize, x: &mut [f32]) {
        if self.any() {
            debug_assert!(col.is_multiple_of(4));
            let place = Place { key: self.key, row: self.first + row as u64, head: 0, col };
            let mut factors: Block = [0.0; BLOCK];
            let factors = &mut factors[..x.len()];
            math::dropout_factors(&place, self.bound, self.kept, factors);
            math::multiply(factors, x);
        }
    }

    /// The factors of a tile of attention: of `QUERIES` rows in the columns of `factors`, and of
    /// columns `col ..`, a multiple of 4, in its rows.
    pub fn tile(&self, row: usize, head: usize, col: usize, factors: &mut [[f32; QUERIES]]) {
        debug_assert!(col.is_multiple_of(4) && factors.len().is_multiple_of(4));
        let place = Place { key: self.key, row: self.first + row as u64, head, col };
        tile_factors(&place, self.bound, self.kept, factors);
    }
}
