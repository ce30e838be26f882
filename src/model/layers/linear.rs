//! y = x·wᵀ, w [out, in] a matrix of a block; biases and activations ride along as epilogues. Here it
//! is decided whether the product is one of 8-bit floats.

use super::fp8;
use crate::{Cx, Params, Weight};
use device::{Epilogue, Gemm, Out, Tensor};

/// y = then(x·wᵀ)
pub fn forward(cx: &Cx, x: Tensor, w: (&Params, Weight), then: Epilogue, y: Out) {
    match cx.fp8 {
        None => cx.be.gemm(Gemm::NT, x, w.0[w.1], y, then),
        Some(room) => fp8::Products::new(cx, room, w).forward(x, then, y),
    }
}

/// dx = then(dy·w),  dw = dyᵀ·x
pub fn backward(
    cx: &Cx,
    dy: Tensor,
    x: Tensor,
    w: (&Params, Weight),
    then: Epilogue,
    dx: Out,
    dw: Out,
) {
    match cx.fp8 {
        None => {
            cx.be.gemm(Gemm::NN, dy, w.0[w.1], dx, then);
            cx.be.gemm(Gemm::TN, dy, x, dw, Epilogue::Nothing);
        }
        Some(room) => fp8::Products::new(cx, room, w).backward(dy, x, then, dx, dw),
    }
}

/// dx = dy·w,  dw = dyᵀ·x,  db = Σ dy if there is a bias
pub fn backward_biased(
    cx: &Cx,
    dy: Tensor,
    x: Tensor,
    w: (&Params, Weight),
    dx: Out,
    dw: Out,
    db: Option<Out>,
) {
    if cx.fp8.is_some() {
        backward(cx, dy, x, w, Epilogue::Nothing, dx, dw);
        return db.into_iter().for_each(|db| cx.be.column_sums(dy, db));
    }
    cx.be.gemm(Gemm::NN, dy, w.0[w.1], dx, Epilogue::Nothing);
    cx.be.gemm(Gemm::TN, dy, x, dw, db.map_or(Epilogue::Nothing, Epilogue::BiasBackward));
}
