//! Sums of squares, clipping, AdamW.

use super::Cuda;
use super::args::{self, arguments};
use super::launch::{Grid, elements_per_move, typed, vector};
use crate::{AdamW, AdamWUpdate, Backend, InPlace, MemoryKind, Out, Scaler, Scaling, Tensor, op};
use base::DType;
use std::ptr::{null, null_mut};

/// Maximum partial sums of a tensor. Its scratch is one f64 for their number, then the sums.
const PARTS: usize = 1056;

/// Elements of a piece that a block of AdamW updates, as in the kernel, and maximum number of blocks.
const ADAMW_PIECE: usize = 8192;
const ADAMW_BLOCKS: usize = 4224;

/// Blocks that digest a tensor: as many as occupy a whole GPU.
const DIGEST_PARTS: usize = 1056;

/// Term that an element adds to a sum, as in the kernel.
#[derive(Clone, Copy)]
enum Term {
    Value = 0,
    Square = 1,
    /// 1 for a zero.
    IsZero = 2,
}

pub(super) fn sum(cuda: &Cuda, op: &op::Sum) {
    totals(cuda, &[op.x], Term::Value, op.y);
}

pub(super) fn square_sums(cuda: &Cuda, op: &op::SquareSums) {
    totals(cuda, op.xs, Term::Square, op.y);
}

pub(super) fn count_zeros(cuda: &Cuda, op: &op::CountZeros) {
    if op.xs.is_empty() {
        return;
    }
    let parts = sum_parts(cuda, op.xs, Term::IsZero);
    let op::CountZeros { lows, highs, .. } = *op;
    let high = op::ZEROS_PER_HIGH as f64;
    let arguments = arguments!(CountFinish { parts, lows, highs, high });
    cuda.launch("count_finish", Grid::line(op.xs.len(), 256), arguments);
}

/// Maximum tensors of a launch: the capacity of the kernels' arguments.
const TENSORS: usize = 64;

/// Indices of the tensors of each launch. All have the same kind, which selects the kernel.
fn launches<K: Eq>(kinds: impl Iterator<Item = K>) -> Vec<(K, Vec<usize>)> {
    let mut all: Vec<(K, Vec<usize>)> = Vec::new();
    for (i, kind) in kinds.enumerate() {
        match all
            .iter_mut()
            .find(|(own, some)| *own == kind && some.len() < TENSORS)
        {
            Some((_, some)) => some.push(i),
            None => all.push((kind, vec![i])),
        }
    }
    all
}

fn totals(cuda: &Cuda, xs: &[Tensor], term: Term, out: Out) {
    if xs.is_empty() {
        return;
    }
    let parts = sum_parts(cuda, xs, term);
    let arguments = arguments!(SumFinish { parts, out, add: out.add });
    cuda.launch("sum_finish", Grid::line(xs.len(), 256), arguments);
}

/// Partial sums of each tensor, in scratch memory.
fn sum_parts(cuda: &Cuda, xs: &[Tensor], term: Term) -> usize {
    let parts = cuda.scratch(xs.len() * (1 + PARTS) * size_of::<f64>());
    let kinds = xs
        .iter()
        .map(|x| (x.dtype, vector(x.numel(), x.dtype, [*x])));
    for ((dtype, vector), some) in launches(kinds) {
        let wide = if vector { elements_per_move(dtype) } else { 1 };
        let mut arguments = args::SumParts {
            x: [null(); TENSORS],
            numel: [0; TENSORS],
            first: [0; TENSORS + 1],
            slot: [0; TENSORS],
            parts: parts as _,
            count: some.len() as u32,
            term: term as u32,
            vector: vector.into(),
        };
        let mut blocks = 0;
        for (t, i) in some.into_iter().enumerate() {
            (arguments.x[t], arguments.numel[t]) = (xs[i].addr() as _, xs[i].numel() as u64);
            arguments.slot[t] = i as u32;
            // Each thread has at least four pieces.
            blocks += xs[i].numel().div_ceil(4 * 256 * wide).clamp(1, PARTS);
            arguments.first[t + 1] = blocks as u32;
        }
        cuda.launch(typed!("sum_parts", dtype), Grid::line(blocks, 256), arguments);
    }
    parts
}

pub(super) fn digests(cuda: &Cuda, op: &op::Digests) {
    for (i, x) in op.xs.iter().enumerate() {
        if x.memory() == MemoryKind::Host {
            let digest = cuda.cpu().digest(*x).to_ne_bytes();
            cuda.upload(&digest, op.y.to.span(i, 1));
            continue;
        }
        let vector = vector(x.numel(), x.dtype, [*x]);
        let wide = if vector { elements_per_move(x.dtype) } else { 1 };
        let blocks = x.numel().div_ceil(4 * 256 * wide).clamp(1, DIGEST_PARTS);
        let parts = cuda.scratch(blocks * size_of::<u64>());
        let arguments = arguments!(DigestParts { x: *x, parts, numel: x.numel(), vector });
        let kernel = match x.dtype {
            DType::U8 => "digest_parts_u8",
            dtype => typed!("digest_parts", dtype),
        };
        cuda.launch(kernel, Grid::line(blocks, 256), arguments);
        let arguments = arguments!(DigestFinish { parts, out: op.y.to.span(i, 1), count: blocks });
        cuda.launch("digest_finish", Grid::line(1, 256), arguments);
    }
}

pub(super) fn clip(cuda: &Cuda, &op::Clip { sums, scale, max_norm, y }: &op::Clip) {
    let arguments = arguments!(Clip { sums, scale, out: y, count: sums.numel(), max_norm });
    cuda.launch("clip", Grid::line(1, 32), arguments);
}

pub(super) fn loss_scale_step(cuda: &Cuda, op: &op::LossScaleStep) {
    let op::LossScaleStep { scaling, scaler, factor: InPlace(factor), status } = *op;
    let InPlace(Scaler { scale, counts }) = scaler;
    let Scaling { growth, window, hysteresis, min } = scaling;
    let arguments = arguments!(LossScaleStep {
        factor,
        status,
        scale,
        counts,
        window,
        hysteresis,
        growth,
        min,
    });
    cuda.launch("loss_scale_step", Grid::line(1, 1), arguments);
}

pub(super) fn skip_above(cuda: &Cuda, op: &op::SkipAbove) {
    let op::SkipAbove { limits, loss, norm, factor: InPlace(factor), .. } = *op;
    let InPlace(counts) = op.counts;
    let InPlace(status) = op.status;
    let max_loss = limits.loss;
    let max_norm = limits.norm;
    let arguments =
        arguments!(SkipAbove { loss, norm, factor, status, counts, max_loss, max_norm });
    cuda.launch("skip_above", Grid::line(1, 1), arguments);
}

pub(super) fn adam_scalars(cuda: &Cuda, op: &op::AdamScalars) {
    let AdamW { lr, beta1, beta2, .. } = op.rule;
    let updates = op.updates;
    let out = op.y;
    let arguments = arguments!(AdamScalars { updates, out, lr, beta1, beta2 });
    cuda.launch("adam_scalars", Grid::line(1, 1), arguments);
}

pub(super) fn adamw(cuda: &Cuda, &op::AdamW { scalars, updates }: &op::AdamW) {
    for ((grad, weight, vector), some) in launches(updates.iter().map(kind_of)) {
        let AdamW { beta1, beta2, eps, .. } = updates[some[0]].rule;
        let mut arguments = args::AdamW {
            grad: [null(); TENSORS],
            master: [null_mut(); TENSORS],
            m: [null_mut(); TENSORS],
            v: [null_mut(); TENSORS],
            weight: [null_mut(); TENSORS],
            numel: [0; TENSORS],
            keep: [0.0; TENSORS],
            lr_scale: [0.0; TENSORS],
            first: [0; TENSORS + 1],
            scalars: scalars.addr() as _,
            beta1,
            beta2,
            eps,
            count: some.len() as u32,
            vector: vector.into(),
        };
        let mut pieces = 0;
        for (t, i) in some.into_iter().enumerate() {
            let AdamWUpdate { rule, grad, master, m, v, weight } = updates[i];
            arguments.grad[t] = grad.addr() as _;
            arguments.master[t] = master.0.addr() as _;
            (arguments.m[t], arguments.v[t]) = (m.0.addr() as _, v.0.addr() as _);
            arguments.weight[t] = weight.map_or(null_mut(), |out| out.to.addr() as _);
            arguments.numel[t] = grad.numel() as u64;
            (arguments.keep[t], arguments.lr_scale[t]) = (rule.keep(), rule.lr_scale);
            pieces += grad.numel().div_ceil(ADAMW_PIECE);
            arguments.first[t + 1] = pieces as u32;
        }
        let blocks = pieces.clamp(1, ADAMW_BLOCKS);
        cuda.launch(typed!("adamw", grad, weight), Grid::line(blocks, 256), arguments);
    }
}

/// Key that selects AdamW's kernel: dtypes of the gradient and the weight, and whether threads
/// move 16 bytes at a time.
fn kind_of(update: &AdamWUpdate) -> (DType, DType, bool) {
    let AdamWUpdate { grad, master, m, v, .. } = *update;
    let weight = update.weight();
    let vector = vector(grad.numel(), DType::BF16, [grad, master.0, m.0, v.0, weight]);
    (grad.dtype, weight.dtype, vector)
}
