//! Splits work into tasks by its shape.

use super::Cpu;
use super::memory::{BLOCK, load, put};
use super::scratch::Scratch;
use crate::{Out, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Elements per task: about 10 µs of memory traffic, the cost of waking a thread.
const TASK: usize = 1 << 15;

/// Maximum number of partial sums in a sum over rows.
const PARTIALS: usize = 32;

impl Cpu {
    /// Runs `task(i, slot)` for all i below `tasks`, and returns after the last one. Concurrent tasks
    /// have different slots, below `threads`: a slot is a thread of the pool, which runs one task at
    /// a time because tasks do not call into the pool themselves.
    pub(super) fn each_slot(&self, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        match &self.pool {
            Some(pool) if tasks > 1 => pool.install(|| {
                (0..tasks).into_par_iter().with_max_len(1).for_each(|i| {
                    task(i, rayon::current_thread_index().expect("a thread of the pool"));
                });
            }),
            _ => (0..tasks).for_each(|i| task(i, 0)),
        }
    }

    pub(super) fn each(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        self.each_slot(tasks, |i, _| task(i));
    }

    /// Covers `rows` rows of `cols` elements with tasks of whole rows.
    pub(super) fn each_rows(&self, rows: usize, cols: usize, task: impl Fn(Range<usize>) + Sync) {
        let size = (TASK / cols.max(1)).max(1);
        self.each(rows.div_ceil(size), |i| task(i * size..rows.min((i + 1) * size)));
    }

    /// Covers `len` elements with blocks.
    pub(super) fn each_block(&self, len: usize, task: impl Fn(Range<usize>) + Sync) {
        self.each(len.div_ceil(TASK), |i| {
            blocks(i * TASK..len.min((i + 1) * TASK)).for_each(&task);
        });
    }

    /// Covers float tensors of one length with blocks. Calls `task(first element, elements)` on the
    /// f32 values of each block of each tensor.
    pub(super) fn each_loaded<const N: usize>(
        &self,
        xs: [Tensor; N],
        task: impl Fn(usize, [&mut [f32]; N]) + Sync,
    ) {
        self.each_block(xs[0].numel(), |block| {
            let mut buffers = [[0.0; BLOCK]; N];
            let mut loaded = buffers.each_mut().map(|buffer| &mut buffer[..block.len()]);
            for (x, to) in xs.iter().zip(&mut loaded) {
                load(*x, block.start, to);
            }
            task(block.start, loaded);
        });
    }

    /// Sums over rows into `outs`, each f32 [1, width]. `add_rows` adds a range of rows to partial
    /// sums, which hold the outputs one after the other.
    pub(super) fn sum_rows(
        &self,
        rows: usize,
        width: usize,
        outs: &[Out],
        add_rows: impl Fn(Range<usize>, &mut [f32]) + Sync,
    ) {
        let size = rows.div_ceil(PARTIALS).max(8);
        let parts = rows.div_ceil(size);
        self.workspace.with(parts, width * outs.len(), |scratch| {
            self.each(parts, |i| {
                // SAFETY: `each` runs one task for each `i`, and each uses part `i` alone.
                let sums = unsafe { scratch.part(i) };
                sums.fill(0.0);
                add_rows(i * size..rows.min((i + 1) * size), sums);
            });
            for (i, out) in outs.iter().enumerate() {
                assert_eq!((out.to.numel(), out.to.dtype.size()), (width, 4), "sums over rows");
                self.each_block(width, |block| add_parts(scratch, parts, i * width, block, *out));
            }
        });
    }
}

/// Sums columns `first + block` of the parts, in order.
fn add_parts(scratch: &Scratch, parts: usize, first: usize, block: Range<usize>, out: Out) {
    let mut sum = [0.0; BLOCK];
    let mut part = [0.0; BLOCK];
    let sum = &mut sum[..block.len()];
    let part = &mut part[..block.len()];
    for i in 0..parts {
        load(scratch.tensor(i), first + block.start, part);
        super::math::add(part, sum);
    }
    put(sum, out, block.start);
}

/// Splits a range into pieces of at most `BLOCK`.
pub(super) fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(BLOCK).map(move |at| at..end.min(at + BLOCK))
}
