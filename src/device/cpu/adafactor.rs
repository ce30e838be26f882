//! Adafactor: sums of squares by rows, columns and fused matrices, and the update.
//!
//! A task covers some rows of the part. Sums over tasks are f64, added in the order of the tasks.

use super::Cpu;
use super::math::{square_sum_f64, vectorised};
use super::memory::{BLOCK, Block, download, load, put, scalar, store};
use super::parallel::blocks;
use crate::{InPlace, MatrixPart, Out, SecondMoment, Tensor, op};
use base::Fused;
use std::ops::Range;

/// Maximum number of partial sums in a sum over rows.
const PARTIALS: usize = 32;

pub(super) fn factor_sums(cpu: &Cpu, op: &op::FactorSums) {
    let op::FactorSums { x, factor, part, rows, cols } = *op;
    let width = part.col_rows() * part.cols;
    let factor = scalar(factor, 0);
    let task = |range: Range<usize>, sums: &mut [f64]| {
        let mut buffer: Block = [0.0; BLOCK];
        for row in range {
            let own = part.col_row(row) * part.cols;
            let mut sum = 0.0;
            for block in blocks(part.cols_of(row)) {
                let x_block = &mut buffer[..block.len()];
                load(x, row * part.cols + block.start - part.first, x_block);
                add_squares(factor, x_block, &mut sums[own + block.start..own + block.end]);
                sum += square_sum_f64(x_block);
            }
            if let Some(rows) = rows {
                put(&mut [sum as f32], rows, row);
            }
        }
    };
    each_rows(cpu, &part, width, task, |all| {
        cpu.each_block(width, |block| {
            let total = |at: usize| all.iter().map(|sums| sums[at]).sum::<f64>() as f32;
            let mut totals: Block = [0.0; BLOCK];
            let totals = &mut totals[..block.len()];
            totals
                .iter_mut()
                .zip(block.clone())
                .for_each(|(sum, at)| *sum = total(at));
            put(totals, cols, block.start);
        });
    });
}

pub(super) fn fused_square_sums(cpu: &Cpu, op: &op::FusedSquareSums) {
    let op::FusedSquareSums { x, part, y } = *op;
    fused_sums(cpu, &part, y, |_, _, at, buffer| load(x, at, buffer));
}

pub(super) fn scalars(_: &Cpu, &op::AdafactorScalars { rule, updates, y }: &op::AdafactorScalars) {
    let mut t = [0i64];
    download(updates, bytemuck::cast_slice_mut(&mut t));
    let t = t[0] as f64;
    let rho = if rule.relative_step {
        f64::from(rule.lr).min(1.0 / t.sqrt())
    } else {
        f64::from(rule.lr)
    };
    store(&[t.powf(f64::from(rule.beta2_decay)) as f32, rho as f32], y.to, 0);
}

pub(super) fn move_second_moment(_: &Cpu, op: &op::MoveSecondMoment) {
    let op::MoveSecondMoment { scalars, part, rows, cols, v: InPlace(v) } = *op;
    let [factor, towards] = [0, 1].map(|i| scalar(scalars, i));
    if factor.is_nan() {
        return;
    }
    let (row, col, mean) = match v {
        SecondMoment::Full(v) => return move_towards(cols, v, towards, 0..part.cols, 1.0),
        SecondMoment::Factored { row, col, mean } => (row, col, mean),
    };
    let rows = rows.expect("sums by row of a matrix");
    move_towards(rows, row, towards, 0..part.rows, 1.0 / part.whole[1] as f32);
    for number in 0..part.fused.count() {
        let own = number * part.cols..(number + 1) * part.cols;
        let rows = part.fused.rows(number, part.whole[0]);
        move_towards(cols, col, towards, own.clone(), 1.0 / rows as f32);
        let (sum, terms): (f64, usize) = if part.cols == part.whole[1] {
            (own.map(|at| f64::from(scalar(col, at))).sum(), part.cols)
        } else {
            let own = (0..part.rows).filter(|at| part.fused.matrix_of(*at) == number);
            (own.map(|at| f64::from(scalar(row, at))).sum(), rows)
        };
        store(&[(sum / terms as f64) as f32], mean, number);
    }
}

pub(super) fn square_sums(cpu: &Cpu, op: &op::AdafactorSquareSums) {
    let op::AdafactorSquareSums { rule, scalars, grad, part, v, y } = *op;
    let from = Direction { part: &part, grad, v, factor: scalar(scalars, 0), eps: rule.eps };
    fused_sums(cpu, &part, y, |row, cols, at, to| from.read(row, cols, at, to));
}

pub(super) fn update(cpu: &Cpu, op: &op::Adafactor) {
    let op::Adafactor { rule, scalars, grad, part, v, master: InPlace(master), weight, .. } = *op;
    let [factor, rho] = [0, 2].map(|i| scalar(scalars, i));
    if factor.is_nan() {
        return;
    }
    let steps = steps(op, rho);
    let keep = rule.keep();
    let from = Direction { part: &part, grad, v, factor, eps: rule.eps };
    each_rows(
        cpu,
        &part,
        0,
        |range: Range<usize>, _: &mut [f64]| {
            let (mut u, mut w): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
            each_block(&part, range, |row, number, block, at| {
                let u = &mut u[..block.len()];
                let w = &mut w[..block.len()];
                from.read(row, block, at, u);
                load(master, at, w);
                apply(steps[number], keep, u, w);
                store(w, master, at);
                if let Some(weight) = weight {
                    store(w, weight.to, at);
                }
            });
        },
        |_| (),
    );
}

/// Calls `task(i, rows)` for the rows of a part, in at most `PARTIALS` tasks with `len` zeroed f64
/// of scratch each; then `end(all)` with the scratch of all tasks.
fn each_rows(
    cpu: &Cpu,
    part: &MatrixPart,
    len: usize,
    task: impl Fn(Range<usize>, &mut [f64]) + Sync,
    end: impl FnOnce(&[&[f64]]),
) {
    let touched = part.touched();
    let size = touched.len().div_ceil(PARTIALS).max(8);
    let tasks = touched.len().div_ceil(size);
    cpu.workspace.with(tasks, 2 * len, |scratch| {
        cpu.each(tasks, |i| {
            // SAFETY: `each` runs one task for each `i`, and each uses part `i` alone.
            let sums = bytemuck::cast_slice_mut(unsafe { scratch.part(i) });
            sums.fill(0.0);
            let start = touched.start + i * size;
            task(start..touched.end.min(start + size), sums);
        });
        // SAFETY: `each` has returned, so no task uses a part any more; the slices are only read.
        let all = (0..tasks).map(|i| bytemuck::cast_slice(unsafe { &*scratch.part(i) }));
        end(&all.collect::<Vec<&[f64]>>());
    });
}

/// Calls `with(row, fused matrix, columns, first element of the part)` for the blocks of some rows.
fn each_block(
    part: &MatrixPart,
    rows: Range<usize>,
    mut with: impl FnMut(usize, usize, Range<usize>, usize),
) {
    for row in rows {
        for (number, cols) in part.runs(row) {
            for block in blocks(cols) {
                let at = row * part.cols + block.start - part.first;
                with(row, number, block, at);
            }
        }
    }
}

vectorised! {
    /// x ← factor·x, and sums += x².
    fn add_squares(factor: f32, x: &mut [f32], sums: &mut [f64]) {
        for (x, sum) in x.iter_mut().zip(sums) {
            *x *= factor;
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
}

/// out[p] += Σ of the squares of the values from `read(row, columns, element, buffer)`.
fn fused_sums(
    cpu: &Cpu,
    part: &MatrixPart,
    out: Out,
    read: impl Fn(usize, Range<usize>, usize, &mut [f32]) + Sync,
) {
    let count = part.fused.count();
    each_rows(
        cpu,
        part,
        count,
        |range: Range<usize>, sums: &mut [f64]| {
            let mut buffer: Block = [0.0; BLOCK];
            each_block(part, range, |row, number, block, at| {
                let buffer = &mut buffer[..block.len()];
                read(row, block, at, buffer);
                sums[number] += square_sum_f64(buffer);
            });
        },
        |all| {
            let total = |at: usize| all.iter().map(|sums| sums[at]).sum::<f64>() as f32;
            put(&mut (0..count).map(total).collect::<Vec<f32>>(), out, 0);
        },
    );
}

/// v += (sum·scale − v)·towards.
fn move_towards(sums: Tensor, v: Tensor, towards: f32, range: Range<usize>, scale: f32) {
    let (mut x, mut mean): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
    for block in blocks(range) {
        let x = &mut x[..block.len()];
        let mean = &mut mean[..block.len()];
        load(sums, block.start, x);
        load(v, block.start, mean);
        for (mean, x) in mean.iter_mut().zip(x) {
            *mean = x.mul_add(scale, -*mean).mul_add(towards, *mean);
        }
        store(mean, v, block.start);
    }
}

/// Gradient and second moment, from which steps are computed.
struct Direction<'a> {
    part: &'a MatrixPart,
    grad: Tensor,
    v: SecondMoment,
    factor: f32,
    eps: f32,
}

impl Direction<'_> {
    /// Reads U for some columns of a row, which start at element `at` of the gradient.
    fn read(&self, row: usize, cols: Range<usize>, at: usize, to: &mut [f32]) {
        let mut means: Block = [0.0; BLOCK];
        let means = &mut means[..to.len()];
        load(self.grad, at, to);
        let scale = match self.v {
            SecondMoment::Full(v) => {
                load(v, cols.start, means);
                1.0
            }
            SecondMoment::Factored { row: rows, col, mean } => {
                let number = self.part.fused.matrix_of(row);
                load(col, number * self.part.cols + cols.start, means);
                scalar(rows, row) / scalar(mean, number).max(self.eps)
            }
        };
        direction(self.factor, scale, self.eps * self.eps, means, to);
    }
}

vectorised! {
    /// x ← factor·x / √max(scale·mean, least).
    fn direction(factor: f32, scale: f32, least: f32, means: &[f32], x: &mut [f32]) {
        for (x, mean) in x.iter_mut().zip(means) {
            *x = *x * factor / (scale * mean).max(least).sqrt();
        }
    }
}

/// Factor of each fused matrix's U: ρ·lr_scale·scale / max(1, RMS(U)/clip_threshold).
fn steps(op: &op::Adafactor, rho: f32) -> [f32; Fused::MOST] {
    let op::Adafactor { rule, part, update_squares, weight_squares, .. } = *op;
    let numels = part.numels();
    let mut steps = [0.0; Fused::MOST];
    for (number, step) in steps[..part.fused.count()].iter_mut().enumerate() {
        let rms = |sums: Tensor| (scalar(sums, number) / numels[number] as f32).sqrt();
        let scale = weight_squares.map_or(1.0, |sums| rms(sums).max(rule.scale_eps));
        *step = rho * rule.lr_scale * scale / (rms(update_squares) / rule.clip_threshold).max(1.0);
    }
    steps
}

vectorised! {
    fn apply(step: f32, keep: f32, u: &[f32], w: &mut [f32]) {
        for (w, u) in w.iter_mut().zip(u) {
            *w = (-step).mul_add(*u, *w * keep);
        }
    }
}
