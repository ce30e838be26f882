//! y = x·wᵀ with w [out, in] a matrix of a block. Biases and activations are fused as epilogues.
//! Chooses between fp8 products and those in the model's dtype.

use super::fp8::Products;
use crate::{Cx, Params, Weight};
use base::DType;
use comm::Pending;
use device::{Arena, Epilogue, Gemm, Out, Tensor, op};

/// Input of a product.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    pub x: Tensor, // [N, in]
    /// f32 [1, in]: largest magnitude in each column, which an fp8 forward computes for backward.
    pub maxima: Option<Tensor>,
}

impl Input {
    /// Lays out the input. `kept` holds the maxima until backward.
    pub fn plan(cx: &Cx, x: Tensor, kept: &Arena) -> Input {
        let takes = cx.training && cx.fp8.is_some();
        Input { x, maxima: takes.then(|| kept.matrix(1, x.cols, DType::F32)) }
    }
}

/// y = then(x·wᵀ)
pub fn forward(cx: &Cx, x: Input, w: (&Params, Weight), then: Epilogue, y: Out) {
    match cx.fp8 {
        None => cx
            .be
            .run(op::Gemm { kind: Gemm::NT, a: x.x, b: w.0[w.1], c: y, then }),
        Some(pass) => Products::new(cx, pass, w.0, w.1).forward(x.x, x.maxima, then, y),
    }
}

/// dx = then(dy·w),  dw = dyᵀ·x
pub fn backward(
    cx: &Cx,
    dy: Tensor,
    x: Input,
    w: (&Params, Weight),
    then: Epilogue,
    dx: Out,
    dw: Out,
) {
    match cx.fp8 {
        None => {
            cx.be
                .run(op::Gemm { kind: Gemm::NN, a: dy, b: w.0[w.1], c: dx, then });
            cx.be.run(op::Gemm::plain(Gemm::TN, dy, x.x, dw));
        }
        Some(pass) => {
            let products = Products::new(cx, pass, w.0, w.1).backward(dy);
            products.input(then, dx);
            products.weight(x.x, x.maxima, dw);
        }
    }
}

/// Input of the first product in a split region, in backward: x, and its gather if that is still
/// running.
pub struct Entry {
    pub x: Input,
    pub gather: Option<Pending>,
    pub dx_in: Tensor, // [N, in]  this rank's partial sum
    pub dx: Tensor,    // [n, in]  gradient outside the split region
}

/// dx = Σ_ranks dy·w,  dw = dyᵀ·x,  db = Σ dy if there is a bias. The gather of x overlaps with the
/// first product, the sum over ranks with the second.
pub fn backward_entry(
    cx: &Cx,
    dy: Tensor,
    entry: Entry,
    w: (&Params, Weight),
    dw: Out,
    db: Option<Out>,
) {
    let Entry { x, gather, dx_in, dx } = entry;
    let fp8 = cx
        .fp8
        .map(|pass| Products::new(cx, pass, w.0, w.1).backward(dy));
    match &fp8 {
        None => cx
            .be
            .run(op::Gemm::plain(Gemm::NN, dy, w.0[w.1], dx_in.set())),
        Some(products) => products.input(Epilogue::Nothing, dx_in.set()),
    }
    let sum = cx.tp.begin_reduce(dx_in, dx);
    cx.tp.finish(gather);
    match &fp8 {
        None => {
            let then = db.map_or(Epilogue::Nothing, Epilogue::BiasBackward);
            cx.be
                .run(op::Gemm { kind: Gemm::TN, a: dy, b: x.x, c: dw, then });
        }
        Some(products) => {
            products.weight(x.x, x.maxima, dw);
            if let Some(sums) = db {
                cx.be.run(op::ColumnSums { x: dy, sums });
            }
        }
    }
    cx.tp.finish(sum);
}
