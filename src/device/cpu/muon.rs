//! Muon: momentum, splitting and joining of fused matrices, and the update.

use super::Cpu;
use super::elementwise;
use super::math::{scale, sum_of_products, vectorised};
use super::memory::{BLOCK, Block, load, scalar, store};
use super::parallel::blocks;
use crate::{FusedMatrix, InPlace, Momentum, Tensor, op};
use std::ops::Range;

pub(super) fn momentum(cpu: &Cpu, op: &op::Momentum) {
    let op::Momentum { rule, factor, grad, m: InPlace(m), y } = *op;
    let factor = scalar(factor, 0);
    if factor.is_nan() {
        return elementwise::zero(cpu, &op::Zero { x: y });
    }
    cpu.each_loaded([grad, m], |at, [g, state]| {
        average(&rule, factor, g, state);
        store(state, m, at);
        store(g, y.to, at);
    });
}

pub(super) fn unfuse(cpu: &Cpu, &op::Unfuse { all, which, one }: &op::Unfuse) {
    each_run(cpu, &which, one.to, |from, to, run| {
        load(all, from, run);
        store(run, one.to, to);
    });
}

pub(super) fn fuse(cpu: &Cpu, &op::Fuse { one, which, all: InPlace(all) }: &op::Fuse) {
    each_run(cpu, &which, one, |to, from, run| {
        load(one, from, run);
        store(run, all, to);
    });
}

pub(super) fn scale_to_norm_1(cpu: &Cpu, op: &op::ScaleToNorm1) {
    let op::ScaleToNorm1 { sum, eps, x: InPlace(x) } = *op;
    let by = (1.0 / f64::from(scalar(sum, 0)).sqrt().max(eps.into())) as f32;
    cpu.each_loaded([x], |at, [values]| {
        scale(by, values);
        store(values, x, at);
    });
}

pub(super) fn update(cpu: &Cpu, op: &op::MuonUpdate) {
    let op::MuonUpdate { keep, step, factor, direction, master: InPlace(master), weight } = *op;
    if scalar(factor, 0).is_nan() {
        return;
    }
    cpu.each_loaded([direction, master], |at, [u, w]| {
        sum_of_products(-step, u, keep, w);
        store(w, master, at);
        if let Some(weight) = weight {
            store(w, weight.to, at);
        }
    });
}

/// Calls `copy(element of all, element of one, buffer)` for runs that are contiguous in both.
fn each_run(
    cpu: &Cpu,
    which: &FusedMatrix,
    one: Tensor,
    copy: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    let width = which.share_cols();
    cpu.each_rows(one.rows, one.cols, |rows: Range<usize>| {
        let mut buffer: Block = [0.0; BLOCK];
        for row in rows {
            let place = which.fused.place(which.number, row);
            for share in 0..which.shares {
                let in_all = (share * which.rows + place) * width;
                let in_one = row * which.cols + share * width;
                for run in blocks(0..width) {
                    copy(in_all + run.start, in_one + run.start, &mut buffer[..run.len()]);
                }
            }
        }
    });
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
}
