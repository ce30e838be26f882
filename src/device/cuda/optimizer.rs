//! Sums of squares, clipping, AdamW, and AdamW on moments in 8 bits.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::{AdamW, Backend, Coded, Home, Out, Scaler, Scaling, StepLimits, Tensor};
use base::DType;
use std::ptr::null_mut;

/// Most partial sums of a tensor. Its scratch is one f64 for their number, then the sums.
const PARTS: usize = 256;

/// Blocks that update moments in 8 bits: each copies the maps first.
const CODED_BLOCKS: usize = 1056;
/// Elements of a thread of those.
const CODED_WIDE: usize = 8;

/// Blocks that digest a tensor, to have work for a whole GPU.
const DIGEST_PARTS: usize = 1056;

pub(super) fn sum(cuda: &Cuda, x: Tensor, y: Out) {
    totals(cuda, &[x], false, y);
}

pub(super) fn square_sums(cuda: &Cuda, xs: &[Tensor], out: Out) {
    assert!(!out.add, "square sums overwrite");
    totals(cuda, xs, true, out);
}

fn totals(cuda: &Cuda, xs: &[Tensor], square: bool, out: Out) {
    assert_eq!((out.to.numel(), out.to.dtype), (xs.len(), DType::F32), "one sum for each tensor");
    let apart = (1 + PARTS) * size_of::<f64>();
    let parts = cuda.scratch(xs.len() * apart);
    for (i, x) in xs.iter().enumerate() {
        let vector = vector(x.numel(), x.dtype, &[x.addr()]);
        let wide = if vector { wide(x.dtype) } else { 1 };
        // Each thread has at least four pieces.
        let blocks = x.numel().div_ceil(4 * 256 * wide).clamp(1, PARTS);
        let arguments = args::SumParts {
            x: x.addr() as _,
            parts: (parts + i * apart) as _,
            numel: x.numel() as u64,
            square: square.into(),
            vector: vector.into(),
        };
        cuda.launch(typed!("sum_parts", x.dtype), Grid::line(blocks, 256), arguments);
    }
    let arguments =
        args::SumFinish { parts: parts as _, out: out.to.addr() as _, add: out.add.into() };
    if !xs.is_empty() {
        cuda.launch("sum_finish", Grid::line(xs.len(), PARTS), arguments);
    }
}

pub(super) fn digests(cuda: &Cuda, xs: &[Tensor], out: Out) {
    assert_eq!((out.to.numel(), out.to.dtype), (xs.len(), DType::I64), "one digest for each");
    assert!(!out.add, "digests overwrite");
    for (i, x) in xs.iter().enumerate() {
        if x.home() == Home::Host {
            let digest = cuda.cpu().digest(*x).to_ne_bytes();
            cuda.upload(&digest, out.to.span(i, 1));
            continue;
        }
        let vector = vector(x.numel(), x.dtype, &[x.addr()]);
        let wide = if vector { wide(x.dtype) } else { 1 };
        let blocks = x.numel().div_ceil(4 * 256 * wide).clamp(1, DIGEST_PARTS);
        let parts = cuda.scratch(blocks * size_of::<u64>());
        let (numel, vector) = (x.numel() as u64, vector.into());
        let arguments = args::DigestParts { x: x.addr() as _, parts: parts as _, numel, vector };
        let kernel = match x.dtype {
            DType::U8 => "digest_parts_u8",
            dtype => typed!("digest_parts", dtype),
        };
        cuda.launch(kernel, Grid::line(blocks, 256), arguments);
        let digest = out.to.addr() + i * size_of::<u64>();
        let arguments =
            args::DigestFinish { parts: parts as _, out: digest as _, count: blocks as u64 };
        cuda.launch("digest_finish", Grid::line(1, 256), arguments);
    }
}

pub(super) fn clip(cuda: &Cuda, sums: Tensor, scale: Tensor, max_norm: f32, out: Out) {
    assert_eq!((out.to.numel(), out.add), (2, false), "norm and factor");
    let arguments = args::Clip {
        sums: sums.addr() as _,
        scale: scale.addr() as _,
        out: out.to.addr() as _,
        count: sums.numel() as u32,
        max_norm,
    };
    cuda.launch("clip", Grid::line(1, 32), arguments);
}

pub(super) fn loss_scale_step(
    cuda: &Cuda,
    scaling: &Scaling,
    scaler: Scaler,
    factor: Tensor,
    status: Tensor,
) {
    let arguments = args::LossScaleStep {
        factor: factor.addr() as _,
        status: status.addr() as _,
        scale: scaler.scale.addr() as _,
        counts: scaler.counts_address() as _,
        window: scaling.window as i64,
        hysteresis: scaling.hysteresis as i64,
        growth: scaling.growth,
        min: scaling.min,
    };
    cuda.launch("loss_scale_step", Grid::line(1, 1), arguments);
}

pub(super) fn skip_above(
    cuda: &Cuda,
    limits: StepLimits,
    [loss, norm]: [Tensor; 2],
    scaler: Scaler,
    factor: Tensor,
    status: Tensor,
) {
    let arguments = args::SkipAbove {
        loss: loss.addr() as _,
        norm: norm.addr() as _,
        factor: factor.addr() as _,
        status: status.addr() as _,
        counts: scaler.counts_address() as _,
        max_loss: limits.loss,
        max_norm: limits.norm,
    };
    cuda.launch("skip_above", Grid::line(1, 1), arguments);
}

pub(super) fn adam_scalars(cuda: &Cuda, rule: &AdamW, updates: Tensor, out: Out) {
    assert_eq!((out.to.numel(), out.add), (2, false), "AdamW's step scalars");
    let (updates, out) = (updates.addr() as _, out.to.addr() as _);
    let AdamW { lr, beta1, beta2, .. } = *rule;
    let arguments = args::AdamScalars { updates, out, lr, beta1, beta2 };
    cuda.launch("adam_scalars", Grid::line(1, 1), arguments);
}

/// `state` is master, m and v.
pub(super) fn adamw(
    cuda: &Cuda,
    rule: &AdamW,
    scalars: Tensor,
    grad: Tensor,
    state: [Tensor; 3],
    live: Tensor,
) {
    let [master, m, v] = state;
    for x in [master, m, v, live] {
        assert_eq!(x.numel(), grad.numel(), "elements of the gradient and of the rest");
    }
    assert!(state.iter().all(|x| x.dtype == DType::F32), "the state is f32");
    let addresses = [grad.addr(), master.addr(), m.addr(), v.addr(), live.addr()];
    let vector = vector(grad.numel(), DType::BF16, &addresses);
    let wide = if vector { wide(grad.dtype).max(wide(live.dtype)) } else { 1 };
    let arguments = args::AdamW {
        grad: grad.addr() as _,
        master: master.addr() as _,
        m: m.addr() as _,
        v: v.addr() as _,
        live: if live == master { null_mut() } else { live.addr() as _ },
        scalars: scalars.addr() as _,
        numel: grad.numel() as u64,
        keep: rule.keep(),
        lr_scale: rule.lr_scale,
        beta1: rule.beta1,
        beta2: rule.beta2,
        eps: rule.eps,
        vector: vector.into(),
    };
    let kernel = typed!("adamw", grad.dtype, live.dtype);
    cuda.launch(kernel, Grid::elements(grad.numel(), wide), arguments);
}

pub(super) fn adam8bit(
    cuda: &Cuda,
    rule: &AdamW,
    scalars: Tensor,
    grad: Tensor,
    master: Tensor,
    moments: [Coded; 2],
    live: Tensor,
) {
    let block = Coded::check(grad, master, moments, live);
    let [m, v] = moments;
    let addresses = [grad, master, live, m.codes, v.codes].map(|x| x.addr());
    assert!(vector(grad.numel(), DType::BF16, &addresses), "tensors begin on 16 bytes");
    let arguments = args::Adam8bit {
        grad: grad.addr() as _,
        master: master.addr() as _,
        m_codes: m.codes.addr() as _,
        m_scales: m.scales.addr() as _,
        v_codes: v.codes.addr() as _,
        v_scales: v.scales.addr() as _,
        live: if live == master { null_mut() } else { live.addr() as _ },
        scalars: scalars.addr() as _,
        numel: grad.numel() as u64,
        keep: rule.keep(),
        lr_scale: rule.lr_scale,
        beta1: rule.beta1,
        beta2: rule.beta2,
        eps: rule.eps,
        block: block as u32,
    };
    let kernel = typed!("adam8bit", grad.dtype, live.dtype);
    let blocks = grad.numel().div_ceil(256 * CODED_WIDE).clamp(1, CODED_BLOCKS);
    cuda.launch(kernel, Grid::line(blocks, 256), arguments);
}
