//! Sums of squares, clipping, AdamW.

use super::Cpu;
use super::math::{square_sum_f64, sum_f64, vectorised, zeros_f64};
use super::memory::{
    BLOCK, Block, download, load, load_bits, put, scalar, store, store_long, upload, with_block,
    with_blocks_mut,
};
use super::parallel::blocks;
use crate::{AdamW, AdamWUpdate, InPlace, Tensor, digest_term, op};
use std::sync::atomic::{AtomicU64, Ordering};

/// Elements per partial sum.
const CHUNK: usize = 1 << 16;

pub(super) fn sum(cpu: &Cpu, &op::Sum { x, y }: &op::Sum) {
    put(&mut [total(cpu, x, sum_f64) as f32], y, 0);
}

pub(super) fn square_sums(cpu: &Cpu, op: &op::SquareSums) {
    for (i, x) in op.xs.iter().enumerate() {
        store(&[total(cpu, *x, square_sum_f64) as f32], op.y.to, i);
    }
}

pub(super) fn count_zeros(cpu: &Cpu, op: &op::CountZeros) {
    for (i, x) in op.xs.iter().enumerate() {
        let zeros = total(cpu, *x, zeros_f64) as u64;
        store(&[(zeros % op::ZEROS_PER_HIGH) as f32], op.lows.to, i);
        store(&[(zeros / op::ZEROS_PER_HIGH) as f32], op.highs.to, i);
    }
}

pub(super) fn digests(cpu: &Cpu, op: &op::Digests) {
    for (i, x) in op.xs.iter().enumerate() {
        store_long(digest(cpu, *x) as i64, op.y.to, i);
    }
}

pub(super) fn digest(cpu: &Cpu, x: Tensor) -> u64 {
    let chunks = x.numel().div_ceil(CHUNK);
    let sum = AtomicU64::new(0);
    cpu.each(chunks, |i| {
        let mut buffer = [0u32; BLOCK];
        for block in blocks(i * CHUNK..x.numel().min((i + 1) * CHUNK)) {
            let buffer = &mut buffer[..block.len()];
            load_bits(x, block.start, buffer);
            sum.fetch_add(digest_terms(block.start as u64, buffer), Ordering::Relaxed);
        }
    });
    sum.into_inner()
}

vectorised! {
    /// Sum of digest terms of elements from `first` on.
    fn digest_terms(first: u64, bits: &[u32]) -> u64 {
        let mut sum = 0u64;
        for (i, bits) in bits.iter().enumerate() {
            sum = sum.wrapping_add(digest_term(first + i as u64, *bits));
        }
        sum
    }
}

/// Adds up `sum_block` of all blocks in f64, chunk by chunk.
fn total(cpu: &Cpu, x: Tensor, sum_block: impl Fn(&[f32]) -> f64 + Sync) -> f64 {
    let chunks = x.numel().div_ceil(CHUNK);
    cpu.workspace.with(chunks, 2, |scratch| {
        cpu.each(chunks, |i| {
            let mut buffer: Block = [0.0; BLOCK];
            let mut sum = 0.0;
            for block in blocks(i * CHUNK..x.numel().min((i + 1) * CHUNK)) {
                let buffer = &mut buffer[..block.len()];
                load(x, block.start, buffer);
                sum += sum_block(buffer);
            }
            // SAFETY: `each` runs one task for each `i`, and each uses part `i` alone.
            let part = unsafe { scratch.part(i) };
            part.copy_from_slice(bytemuck::cast_slice(&[sum]));
        });
        // SAFETY: `each` has returned, so no task uses a part any more; the slices are only read.
        (0..chunks)
            .map(|i| bytemuck::cast_slice::<f32, f64>(unsafe { scratch.part(i) })[0])
            .sum()
    })
}

pub(super) fn clip(_: &Cpu, &op::Clip { sums, scale, max_norm, y }: &op::Clip) {
    let sum: f64 = (0..sums.numel()).map(|i| scalar(sums, i) as f64).sum();
    let scale = scalar(scale, 0);
    let norm = (sum.sqrt() / scale as f64) as f32;
    let factor = (max_norm / (norm + 1e-6)).min(1.0) / scale;
    store(&[norm, if norm.is_finite() { factor } else { f32::NAN }], y.to, 0);
}

pub(super) fn loss_scale_step(_: &Cpu, op: &op::LossScaleStep) {
    let op::LossScaleStep { scaling, scaler: InPlace(scaler), factor: InPlace(factor), .. } = *op;
    let status = op.status.to;
    let mut counts = [0i64; 5];
    download(scaler.counts, bytemuck::cast_slice_mut(&mut counts));
    let [in_a_row, left, updates, skipped, stuck] = &mut counts;
    let mut scale = scalar(scaler.scale, 0);
    let overflow = scalar(factor, 0).is_nan();
    if *stuck != 0 {
        store(&[f32::NAN], factor, 0);
        return store(&[2.0], status, 0);
    }
    if overflow {
        *in_a_row = 0;
        *left -= 1;
        *skipped += 1;
        if *left <= 0 {
            *stuck = i64::from(scale <= scaling.min);
            scale = (0.5 * scale).max(scaling.min);
        }
    } else {
        *in_a_row += 1;
        *updates += 1;
        if *in_a_row >= scaling.window as i64 {
            (*in_a_row, *left) = (0, scaling.hysteresis as i64);
            scale *= scaling.growth;
        }
    }
    store(&[(i64::from(overflow) + *stuck) as f32], status, 0);
    store(&[scale], scaler.scale, 0);
    upload(bytemuck::cast_slice(&counts), scaler.counts);
}

pub(super) fn skip_above(_: &Cpu, op: &op::SkipAbove) {
    let op::SkipAbove { limits, loss, norm, factor: InPlace(factor), .. } = *op;
    let InPlace(status) = op.status;
    let above = scalar(loss, 0) > limits.loss || scalar(norm, 0) > limits.norm;
    if !above || scalar(status, 0) != 0.0 {
        return;
    }
    let mut counts = [0i64; 5];
    download(op.counts.0, bytemuck::cast_slice_mut(&mut counts));
    let [_, _, updates, skipped, _] = &mut counts;
    *updates -= 1;
    *skipped += 1;
    upload(bytemuck::cast_slice(&counts), op.counts.0);
    store(&[f32::NAN], factor, 0);
    store(&[3.0], status, 0);
}

pub(super) fn adam_scalars(_: &Cpu, &op::AdamScalars { rule, updates, y }: &op::AdamScalars) {
    let mut t = [0i64];
    download(updates, bytemuck::cast_slice_mut(&mut t));
    let correction = |beta: f32| 1.0 - (beta as f64).powf(t[0] as f64);
    let step = (rule.lr as f64 / correction(rule.beta1)) as f32;
    let rescale = (1.0 / correction(rule.beta2).sqrt()) as f32;
    store(&[step, rescale], y.to, 0);
}

pub(super) fn adamw(cpu: &Cpu, op: &op::AdamW) {
    op.updates
        .iter()
        .for_each(|update| adamw_of_one(cpu, op.scalars, update));
}

fn adamw_of_one(cpu: &Cpu, scalars: Tensor, one: &AdamWUpdate) {
    let AdamWUpdate { rule, grad, master, m, v, weight } = *one;
    let weight = weight.map(|out| out.to);
    let state = [master, m, v].map(|InPlace(x)| x);
    assert!(!state.iter().chain(&weight).any(|x| x.overlaps(grad)), "the gradient is apart");
    let apart = |weight: Tensor| !state.iter().any(|x| x.overlaps(weight));
    assert!(weight.is_none_or(apart), "the weight is master or apart");
    let Some(rule) = Update::new(&rule, scalars) else { return };
    cpu.each_block(grad.numel(), |block| {
        with_block(grad, block.clone(), |g| {
            with_blocks_mut(state, block.clone(), |[w, m, v]| {
                update(&rule, g, w, m, v);
                if let Some(weight) = weight {
                    store(w, weight, block.start);
                }
            });
        });
    });
}

/// Constants of one update, in PyTorch's order of operations.
pub(super) struct Update {
    factor: f32,
    /// 1 − lr·weight_decay.
    keep: f32,
    beta1: f32,
    beta2: f32,
    /// lr_scale·lr / (1 − β₁ᵗ).
    step: f32,
    /// 1 / √(1 − β₂ᵗ).
    rescale: f32,
    eps: f32,
}

impl Update {
    /// Constants from `scalars`; None if the step is skipped.
    pub fn new(rule: &AdamW, scalars: Tensor) -> Option<Update> {
        let [factor, step, rescale] = [0, 1, 2].map(|i| scalar(scalars, i));
        let AdamW { beta1, beta2, eps, lr_scale, .. } = *rule;
        let step = step * lr_scale;
        let keep = rule.keep();
        (!factor.is_nan()).then_some(Update { factor, keep, beta1, beta2, step, rescale, eps })
    }
}

vectorised! {
    pub(super) fn update(rule: &Update, g: &[f32], w: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        let grow1 = 1.0 - rule.beta1;
        let grow2 = 1.0 - rule.beta2;
        for (((g, w), m), v) in g.iter().zip(w).zip(m).zip(v) {
            let g = g * rule.factor;
            *m = (g - *m).mul_add(grow1, *m);
            *v = (g * g).mul_add(grow2, rule.beta2 * *v);
            let root = v.sqrt().mul_add(rule.rescale, rule.eps);
            *w = (-rule.step).mul_add(*m / root, *w * rule.keep);
        }
    }
}
