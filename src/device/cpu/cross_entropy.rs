//! Cross-entropy over a vocabulary that may be split over tensor-parallel ranks.

use super::Cpu;
use super::math::{exp_scaled, maximum, sum_exp};
use super::memory::{BLOCK, Block, clear, integer, load, scalar, store};
use super::parallel::blocks;
use crate::base::DType;
use crate::device::{Out, Tensor};

pub(super) struct Inputs {
    pub logits: Tensor,
    pub targets: Tensor,
    pub weights: Tensor,
    pub stats: Tensor,
    pub first: usize,
    pub vocab: usize,
}

pub(super) fn stats(
    cpu: &Cpu,
    logits: Tensor,
    targets: Tensor,
    first: usize,
    vocab: usize,
    stats: Out,
) {
    assert_eq!((targets.numel(), stats.to.numel()), (logits.rows, 3 * logits.rows), "rows");
    assert!(stats.to.dtype == DType::F32 && !stats.add, "stats are f32 and overwritten");
    let own = vocab.saturating_sub(first).min(logits.cols);
    cpu.each_rows(logits.rows, logits.cols, |rows| {
        for row in rows {
            let at = row * logits.cols;
            let (mut largest, mut sum) = (f32::NEG_INFINITY, 0.0f64);
            each_block_of(logits, at, own, |block| {
                let top = maximum(block);
                if top > largest {
                    sum *= (largest as f64 - top as f64).exp();
                    largest = top;
                }
                // Nothing is −∞ away from −∞.
                let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
                sum += sum_exp(block, base) as f64;
            });
            let column = column_of(targets, row, first, own);
            let target = column.map_or(f32::NEG_INFINITY, |column| scalar(logits, at + column));
            store(&[largest, sum as f32, target], stats.to, 3 * row);
        }
    });
}

pub(super) fn losses(cpu: &Cpu, inputs: &Inputs, losses: Out, dlogits: Option<(Tensor, Out)>) {
    let Inputs { logits, targets, weights, stats, first, vocab } = *inputs;
    let rows = logits.rows;
    assert_eq!((targets.numel(), weights.numel(), losses.to.numel()), (rows, rows, rows), "rows");
    assert!(stats.cols == 3 && stats.rows.is_multiple_of(rows.max(1)), "stats of all shares");
    assert!(!losses.add && dlogits.is_none_or(|(_, d)| d.to == logits && !d.add), "in place");
    let own = vocab.saturating_sub(first).min(logits.cols);
    let scale = dlogits.map(|(scale, _)| scalar(scale, 0));
    cpu.each_rows(rows, logits.cols, |range| {
        for row in range {
            let weight = scalar(weights, row);
            let (largest, sum, target) = merge(stats, rows, row);
            let loss = if weight == 0.0 {
                0.0
            } else {
                weight as f64 * (sum.ln() + largest as f64 - target as f64)
            };
            store(&[loss as f32], losses.to, row);
            if let Some(scale) = scale {
                let weight = scale * weight;
                let factor = (weight as f64 / sum) as f32;
                let column = column_of(targets, row, first, own);
                slopes(logits, row, own, weight, [largest, factor], column);
            }
        }
    });
}

/// The maximum, Σ exp(logit − maximum) and the target's logit over all shares of a row.
fn merge(stats: Tensor, rows: usize, row: usize) -> (f32, f64, f32) {
    let (mut largest, mut target) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for share in 0..stats.rows / rows {
        let at = 3 * (share * rows + row);
        largest = largest.max(scalar(stats, at));
        let own = scalar(stats, at + 2);
        target = if own > target || own.is_nan() { own } else { target };
    }
    let mut sum = 0.0;
    for share in 0..stats.rows / rows {
        let at = 3 * (share * rows + row);
        let (own, part) = (scalar(stats, at), scalar(stats, at + 1) as f64);
        // A share without entries adds nothing; without this, −∞ − −∞ would.
        sum +=
            if own > f32::NEG_INFINITY { part * (own as f64 - largest as f64).exp() } else { part };
    }
    (largest, sum, target)
}

/// Overwrites a row of logits by weight·(p − onehot), with p = exp(logit − largest)·factor /
/// weight.
fn slopes(
    logits: Tensor,
    row: usize,
    own: usize,
    weight: f32,
    [largest, factor]: [f32; 2],
    target: Option<usize>,
) {
    let at = row * logits.cols;
    if weight == 0.0 {
        return clear(logits, at, logits.cols);
    }
    let mut buffer: Block = [0.0; BLOCK];
    for cols in blocks(0..own) {
        let buffer = &mut buffer[..cols.len()];
        load(logits, at + cols.start, buffer);
        exp_scaled(buffer, largest, factor);
        if let Some(target) = target.filter(|target| cols.contains(target)) {
            buffer[target - cols.start] -= weight;
        }
        store(buffer, logits, at + cols.start);
    }
    clear(logits, at + own, logits.cols - own);
}

fn each_block_of(x: Tensor, at: usize, len: usize, mut with: impl FnMut(&[f32])) {
    let mut buffer: Block = [0.0; BLOCK];
    for range in blocks(at..at + len) {
        let buffer = &mut buffer[..range.len()];
        load(x, range.start, buffer);
        with(buffer);
    }
}

/// The column of a row's target, where this share has it.
fn column_of(targets: Tensor, row: usize, first: usize, own: usize) -> Option<usize> {
    let target = usize::try_from(integer(targets, row)).ok()?;
    target.checked_sub(first).filter(|column| *column < own)
}
