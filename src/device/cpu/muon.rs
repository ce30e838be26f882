//! Muon: momentum, splitting and joining of fused matrices, and the update.

use super::Cpu;
use super::math::vectorised;
use super::memory::{BLOCK, Block, load, scalar, store};
use super::parallel::blocks;
use crate::muon::check_descend;
use crate::{FusedMatrix, Momentum, MuonOps, Out, Tensor};
use std::ops::Range;

impl MuonOps for Cpu {
    fn momentum(&self, rule: &Momentum, factor: Tensor, grad: Tensor, m: Tensor, out: Out) {
        let _timer = self.meter.start("momentum");
        Momentum::check(grad, m, out);
        let factor = scalar(factor, 0);
        self.each_block(grad.numel(), |block| {
            let (mut g, mut state): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            let (g, state) = (&mut g[..block.len()], &mut state[..block.len()]);
            if !factor.is_nan() {
                load(grad, block.start, g);
                load(m, block.start, state);
                average(rule, factor, g, state);
                store(state, m, block.start);
            }
            store(g, out.to, block.start);
        });
    }

    fn unfuse(&self, all: Tensor, which: &FusedMatrix, one: Out) {
        let _timer = self.meter.start("fused rows");
        assert!(!one.add, "a matrix is overwritten");
        each_run(self, which, all, one.to, |from, to, run| {
            load(all, from, run);
            store(run, one.to, to);
        });
    }

    fn fuse(&self, one: Tensor, which: &FusedMatrix, all: Out) {
        let _timer = self.meter.start("fused rows");
        assert!(!all.add, "rows are overwritten");
        each_run(self, which, all.to, one, |to, from, run| {
            load(one, from, run);
            store(run, all.to, to);
        });
    }

    fn scale_to_norm_1(&self, x: Tensor, sum: Tensor, eps: f32) {
        let _timer = self.meter.start("scale to norm 1");
        let by = (1.0 / f64::from(scalar(sum, 0)).sqrt().max(eps.into())) as f32;
        self.each_block(x.numel(), |block| {
            let mut buffer: Block = [0.0; BLOCK];
            let buffer = &mut buffer[..block.len()];
            load(x, block.start, buffer);
            buffer.iter_mut().for_each(|x| *x *= by);
            store(buffer, x, block.start);
        });
    }

    fn blend(&self, a: f32, x: Tensor, b: f32, y: Tensor) {
        let _timer = self.meter.start("blend");
        assert_eq!((x.numel(), x.dtype), (y.numel(), y.dtype), "x and y");
        self.each_block(x.numel(), |block| {
            let (mut from, mut onto): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            let (from, onto) = (&mut from[..block.len()], &mut onto[..block.len()]);
            load(x, block.start, from);
            load(y, block.start, onto);
            sum_of_products(a, from, b, onto);
            store(onto, y, block.start);
        });
    }

    fn descend(
        &self,
        [keep, step]: [f32; 2],
        factor: Tensor,
        direction: Tensor,
        master: Tensor,
        weight: Tensor,
    ) {
        let _timer = self.meter.start("descend");
        let len = check_descend(direction, master, weight);
        if scalar(factor, 0).is_nan() {
            return;
        }
        self.each_block(len, |block| {
            let (mut u, mut w): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            let (u, w) = (&mut u[..block.len()], &mut w[..block.len()]);
            load(direction, block.start, u);
            load(master, block.start, w);
            sum_of_products(-step, u, keep, w);
            store(w, master, block.start);
            if weight != master {
                store(w, weight, block.start);
            }
        });
    }
}

/// Calls `copy(element of all, element of one, buffer)` for runs that are contiguous in both.
fn each_run(
    cpu: &Cpu,
    which: &FusedMatrix,
    all: Tensor,
    one: Tensor,
    copy: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    let width = which.check(all, one);
    let task = |rows: Range<usize>| {
        let mut buffer: Block = [0.0; BLOCK];
        for row in rows {
            let place = which.fused.place(which.number, row);
            for share in 0..which.shares {
                let there = (share * which.rows + place) * width;
                let here = row * which.cols + share * width;
                for run in blocks(0..width) {
                    copy(there + run.start, here + run.start, &mut buffer[..run.len()]);
                }
            }
        }
    };
    cpu.each_rows(one.rows, one.cols, task);
}

vectorised! {
    /// Moves m towards g, and replaces g by the direction.
    fn average(rule: &Momentum, factor: f32, g: &mut [f32], m: &mut [f32]) {
        let grow = 1.0 - rule.momentum;
        for (g, m) in g.iter_mut().zip(m) {
            *g *= factor;
            *m = (*g - *m).mul_add(grow, *m);
            *g = if rule.nesterov { (*m - *g).mul_add(rule.momentum, *g) } else { *m };
        }
    }

    /// y ← a·x + b·y.
    fn sum_of_products(a: f32, x: &[f32], b: f32, y: &mut [f32]) {
        x.iter().zip(y).for_each(|(x, y)| *y = a.mul_add(*x, b * *y));
    }
}
