//! Sums of squares, clipping, AdamW.

use super::Cuda;
use super::launch::{Grid, typed, vector, wide};
use crate::base::DType;
use crate::device::{AdamW, Out, Scaler, Scaling, Tensor};

/// Most partial sums of a tensor; as many f64 lie apart, and one for their number.
const PARTS: usize = 256;

/// Blocks that digest a tensor, to have work for a whole GPU.
const DIGEST_PARTS: usize = 1056;

#[repr(C)]
#[derive(Clone, Copy)]
struct SumParts {
    x: u64,
    parts: u64,
    numel: u64,
    square: u32,
    vector: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SumFinish {
    parts: u64,
    out: u64,
    add: u32,
    unused: u32,
}

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
        let arguments = SumParts {
            x: x.addr() as u64,
            parts: (parts + i * apart) as u64,
            numel: x.numel() as u64,
            square: square.into(),
            vector: vector.into(),
        };
        cuda.launch(typed!("sum_parts", x.dtype), Grid::line(blocks, 256), arguments);
    }
    let arguments = SumFinish {
        parts: parts as u64,
        out: out.to.addr() as u64,
        add: out.add.into(),
        unused: 0,
    };
    if !xs.is_empty() {
        cuda.launch("sum_finish", Grid::line(xs.len(), PARTS), arguments);
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DigestParts {
    x: u64,
    parts: u64,
    numel: u64,
    vector: u32,
    unused: u32,
}

pub(super) fn digests(cuda: &Cuda, xs: &[Tensor], out: Out) {
    assert_eq!((out.to.numel(), out.to.dtype), (xs.len(), DType::I64), "one digest for each");
    assert!(!out.add, "digests overwrite");
    for (i, x) in xs.iter().enumerate() {
        let vector = vector(x.numel(), x.dtype, &[x.addr()]);
        let wide = if vector { wide(x.dtype) } else { 1 };
        let blocks = x.numel().div_ceil(4 * 256 * wide).clamp(1, DIGEST_PARTS);
        let parts = cuda.scratch(blocks * size_of::<u64>()) as u64;
        let (numel, vector) = (x.numel() as u64, vector.into());
        let arguments = DigestParts { x: x.addr() as u64, parts, numel, vector, unused: 0 };
        cuda.launch(typed!("digest_parts", x.dtype), Grid::line(blocks, 256), arguments);
        let digest = (out.to.addr() + i * size_of::<u64>()) as u64;
        let arguments = DigestFinish { parts, out: digest, count: blocks as u64 };
        cuda.launch("digest_finish", Grid::line(1, 256), arguments);
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DigestFinish {
    parts: u64,
    out: u64,
    count: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Clip {
    sums: u64,
    scale: u64,
    out: u64,
    count: u32,
    max_norm: f32,
}

pub(super) fn clip(cuda: &Cuda, sums: Tensor, scale: Tensor, max_norm: f32, out: Out) {
    assert_eq!((out.to.numel(), out.add), (2, false), "norm and factor");
    let (count, to) = (sums.numel() as u32, out.to.addr() as u64);
    let (sums, scale) = (sums.addr() as u64, scale.addr() as u64);
    cuda.launch("clip", Grid::line(1, 32), Clip { sums, scale, out: to, count, max_norm });
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Pace {
    pace: u64,
    scale: u64,
    counts: u64,
    window: i64,
    hysteresis: i64,
    growth: f32,
    min: f32,
    lr: f32,
    beta1: f32,
    beta2: f32,
    unused: u32,
}

pub(super) fn pace(cuda: &Cuda, rule: &AdamW, scaling: &Scaling, scaler: Scaler, pace: Tensor) {
    assert_eq!((pace.numel(), scaler.counts.numel()), (4, 5), "a pace, and a scaler's counts");
    let arguments = Pace {
        pace: pace.addr() as u64,
        scale: scaler.scale.addr() as u64,
        counts: scaler.counts.addr() as u64,
        window: scaling.window as i64,
        hysteresis: scaling.hysteresis as i64,
        growth: scaling.growth,
        min: scaling.min,
        lr: rule.lr,
        beta1: rule.beta1,
        beta2: rule.beta2,
        unused: 0,
    };
    cuda.launch("pace", Grid::line(1, 1), arguments);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Update {
    grad: u64,
    master: u64,
    m: u64,
    v: u64,
    live: u64,
    pace: u64,
    numel: u64,
    keep: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    vector: u32,
}

/// `state` is master, m and v.
pub(super) fn adamw(
    cuda: &Cuda,
    rule: &AdamW,
    pace: Tensor,
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
    let arguments = Update {
        grad: grad.addr() as u64,
        master: master.addr() as u64,
        m: m.addr() as u64,
        v: v.addr() as u64,
        live: if live == master { 0 } else { live.addr() as u64 },
        pace: pace.addr() as u64,
        numel: grad.numel() as u64,
        keep: (1.0 - rule.lr as f64 * rule.weight_decay as f64) as f32,
        beta1: rule.beta1,
        beta2: rule.beta2,
        eps: rule.eps,
        vector: vector.into(),
    };
    let kernel = typed!("adamw", grad.dtype, live.dtype);
    cuda.launch(kernel, Grid::elements(grad.numel(), wide), arguments);
}
