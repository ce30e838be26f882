//! Cross-entropy over a vocabulary that may be split over tensor-parallel ranks.

use super::Cpu;
use super::math::{exp_scaled, maximum, sum_exp};
use super::memory::{BLOCK, Block, clear, integer, load, scalar, store};
use super::parallel::blocks;
use crate::{Logits, LossLogits, Tensor, op};

pub(super) fn stats(cpu: &Cpu, op: &op::CrossEntropyStats) {
    let op::CrossEntropyStats { logits, targets, stats } = *op;
    let x = logits.x;
    cpu.each_rows(x.rows, x.cols, |rows| {
        for row in rows {
            let at = row * x.cols;
            let mut largest = f32::NEG_INFINITY;
            let mut sum = 0.0f64;
            each_block_of(&logits, at, |block| {
                let top = maximum(block);
                if top > largest {
                    sum *= (largest as f64 - top as f64).exp();
                    largest = top;
                }
                // Avoids −∞ − −∞.
                let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
                sum += sum_exp(block, base) as f64;
            });
            let target = column_of(targets, row, &logits)
                .map_or(f32::NEG_INFINITY, |column| cap_logit(scalar(x, at + column), logits.cap));
            store(&[largest, sum as f32, target], stats.to, 3 * row);
        }
    });
}

pub(super) fn unsplit(cpu: &Cpu, op: &op::CrossEntropyUnsplit) {
    stats(cpu, &op.stats);
    losses(cpu, &op.losses);
}

pub(super) fn losses(cpu: &Cpu, op: &op::CrossEntropy) {
    let op::CrossEntropy { targets, weights, stats, losses, z, logits } = *op;
    let LossLogits { logits, scale } = logits;
    let rows = logits.x.rows;
    let scale = scale.map(|scale| scalar(scale, 0));
    let coefficient = z.map_or(0.0, |z| f64::from(z.coefficient));
    cpu.each_rows(rows, logits.x.cols, |range| {
        for row in range {
            let weight = scalar(weights, row);
            let (largest, sum, target) = merge(stats, rows, row);
            let log_z = sum.ln() + largest as f64;
            let weighted =
                |loss: f64| if weight == 0.0 { 0.0 } else { (weight as f64 * loss) as f32 };
            store(&[weighted(log_z - target as f64)], losses.to, row);
            if let Some(z) = z {
                store(&[weighted(coefficient * log_z * log_z)], z.losses.to, row);
            }
            if let Some(scale) = scale {
                let weight = scale * weight;
                let factor = (weight as f64 * (1.0 + 2.0 * coefficient * log_z) / sum) as f32;
                slopes(&logits, row, weight, largest, factor, column_of(targets, row, &logits));
            }
        }
    });
}

/// Maximum, Σ exp(logit − maximum) and the target's logit over all shares of a row.
fn merge(stats: Tensor, rows: usize, row: usize) -> (f32, f64, f32) {
    let mut largest = f32::NEG_INFINITY;
    let mut target = f32::NEG_INFINITY;
    for share in 0..stats.rows / rows {
        let at = 3 * (share * rows + row);
        largest = largest.max(scalar(stats, at));
        let own = scalar(stats, at + 2);
        target = if own > target || own.is_nan() { own } else { target };
    }
    let mut sum = 0.0;
    for share in 0..stats.rows / rows {
        let at = 3 * (share * rows + row);
        let own = scalar(stats, at);
        let part = scalar(stats, at + 1) as f64;
        // A share without entries adds nothing; this case avoids −∞ − −∞.
        sum +=
            if own > f32::NEG_INFINITY { part * (own as f64 - largest as f64).exp() } else { part };
    }
    (largest, sum, target)
}

/// Overwrites a row of logits by factor·exp(logit − largest) − weight·onehot, times the slope of
/// the cap.
fn slopes(
    logits: &Logits,
    row: usize,
    weight: f32,
    largest: f32,
    factor: f32,
    target: Option<usize>,
) {
    let Logits { x, cap, .. } = *logits;
    let at = row * x.cols;
    let own = logits.entries();
    if weight == 0.0 {
        return clear(x, at, x.cols);
    }
    let (mut buffer, mut bent): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
    for cols in blocks(0..own) {
        let buffer = &mut buffer[..cols.len()];
        let bent = &mut bent[..cols.len()];
        load(x, at + cols.start, buffer);
        if cap.is_some() {
            buffer.iter_mut().for_each(|x| *x = cap_logit(*x, cap));
            bent.copy_from_slice(buffer);
        }
        exp_scaled(buffer, largest, factor);
        if let Some(target) = target.filter(|target| cols.contains(target)) {
            buffer[target - cols.start] -= weight;
        }
        if let Some(cap) = cap {
            for (d, y) in buffer.iter_mut().zip(bent) {
                *d *= 1.0 - (*y / cap) * (*y / cap);
            }
        }
        store(buffer, x, at + cols.start);
    }
    clear(x, at + own, x.cols - own);
}

fn cap_logit(x: f32, cap: Option<f32>) -> f32 {
    cap.map_or(x, |cap| cap * (x / cap).tanh())
}

/// Calls `with` on the capped vocabulary entries of a row that starts at `at`, in blocks.
fn each_block_of(logits: &Logits, at: usize, mut with: impl FnMut(&[f32])) {
    let mut buffer: Block = [0.0; BLOCK];
    for range in blocks(at..at + logits.entries()) {
        let buffer = &mut buffer[..range.len()];
        load(logits.x, range.start, buffer);
        if logits.cap.is_some() {
            buffer
                .iter_mut()
                .for_each(|x| *x = cap_logit(*x, logits.cap));
        }
        with(buffer);
    }
}

/// Column of a row's target, if this share has it.
fn column_of(targets: Tensor, row: usize, logits: &Logits) -> Option<usize> {
    let target = usize::try_from(integer(targets, row)).ok()?;
    target
        .checked_sub(logits.first)
        .filter(|column| *column < logits.entries())
}
