//! GELU apart from a product, and SwiGLU.

use super::Cuda;
use super::args::arguments;
use super::launch::{Grid, typed};
use crate::{Gelu, Out, Tensor, op};
use std::iter::once;

pub(super) fn gelu(cuda: &Cuda, &op::Gelu { x, gelu, y }: &op::Gelu) {
    let kernel = match gelu {
        Gelu::Tanh => typed!("gelu_tanh", x.dtype),
        Gelu::Exact => typed!("gelu_exact", x.dtype),
    };
    launch(cuda, x, y, kernel);
}

/// y *= gelu'(x)
pub(super) fn backward(cuda: &Cuda, x: Tensor, gelu: Gelu, y: Tensor) {
    let kernel = match gelu {
        Gelu::Tanh => typed!("gelu_backward_tanh", x.dtype),
        Gelu::Exact => typed!("gelu_backward_exact", x.dtype),
    };
    launch(cuda, x, y.set(), kernel);
}

fn launch(cuda: &Cuda, x: Tensor, y: Out, kernel: &'static str) {
    let (grid, vector) = Grid::elements(x, [y.to]);
    let arguments = arguments!(Gelu { x, y, numel: x.numel(), add: y.add, vector });
    cuda.launch(kernel, grid, arguments);
}

pub(super) fn swiglu(cuda: &Cuda, &op::Swiglu { x, y }: &op::Swiglu) {
    gated(cuda, x, y.to, None, typed!("swiglu", x.dtype));
}

pub(super) fn swiglu_backward(cuda: &Cuda, op: &op::SwigluBackward) {
    let op::SwigluBackward { dy, x, dx } = *op;
    gated(cuda, x, dy, Some(dx.to), typed!("swiglu_backward", x.dtype));
}

/// x and dx [N, 2f], y [N, f].
fn gated(cuda: &Cuda, x: Tensor, y: Tensor, dx: Option<Tensor>, kernel: &'static str) {
    let (grid, vector) = Grid::elements(y, once(x).chain(dx));
    let arguments = arguments!(Swiglu { x, y, dx, numel: y.numel(), vector });
    cuda.launch(kernel, grid, arguments);
}
