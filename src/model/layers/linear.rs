//! y = x·wᵀ, w [out, in]; biases and activations ride along as epilogues.

use crate::Cx;
use device::{Epilogue, Gemm, Out, Tensor};

/// y = then(x·wᵀ)
pub fn forward(cx: &Cx, x: Tensor, w: Tensor, then: Epilogue, y: Out) {
    cx.be.gemm(Gemm::NT, x, w, y, then);
}

/// dx = then(dy·w),  dw = dyᵀ·x
pub fn backward(cx: &Cx, dy: Tensor, x: Tensor, w: Tensor, then: Epilogue, dx: Out, dw: Out) {
    cx.be.gemm(Gemm::NN, dy, w, dx, then);
    cx.be.gemm(Gemm::TN, dy, x, dw, Epilogue::Nothing);
}

/// dx = dy·w,  dw = dyᵀ·x,  db = Σ dy if there is a bias
pub fn backward_biased(
    cx: &Cx,
    dy: Tensor,
    x: Tensor,
    w: Tensor,
    dx: Out,
    dw: Out,
    db: Option<Out>,
) {
    cx.be.gemm(Gemm::NN, dy, w, dx, Epilogue::Nothing);
    cx.be.gemm(Gemm::TN, dy, x, dw, db.map_or(Epilogue::Nothing, Epilogue::BiasBackward));
}
