//! GELU where it does not ride on a matrix product, and SwiGLU.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::{Gelu, Out, Tensor, op};

pub(super) fn gelu(cuda: &Cuda, &op::Gelu { x, gelu, y }: &op::Gelu) {
    launch(
        cuda,
        x,
        y,
        match gelu {
            Gelu::Tanh => typed!("gelu_tanh", x.dtype),
            Gelu::Exact => typed!("gelu_exact", x.dtype),
        },
    );
}

/// y *= gelu'(x)
pub(super) fn backward(cuda: &Cuda, x: Tensor, gelu: Gelu, y: Tensor) {
    launch(
        cuda,
        x,
        y.set(),
        match gelu {
            Gelu::Tanh => typed!("gelu_backward_tanh", x.dtype),
            Gelu::Exact => typed!("gelu_backward_exact", x.dtype),
        },
    );
}

fn launch(cuda: &Cuda, x: Tensor, y: Out, kernel: &'static str) {
    let vector = vector(x.numel(), x.dtype, &[x.addr(), y.to.addr()]);
    let grid = Grid::elements(x.numel(), if vector { wide(x.dtype) } else { 1 });
    let arguments = args::Gelu {
        x: x.addr() as _,
        y: y.to.addr() as _,
        numel: x.numel() as u64,
        add: y.add.into(),
        vector: vector.into(),
    };
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
    let dx = dx.map_or(0, Tensor::addr);
    let vector = vector(y.numel(), y.dtype, &[x.addr(), y.addr(), dx]);
    let grid = Grid::elements(y.numel(), if vector { wide(y.dtype) } else { 1 });
    let arguments = args::Swiglu {
        x: x.addr() as _,
        y: y.addr() as _,
        dx: dx as _,
        numel: y.numel() as u64,
        vector: vector.into(),
    };
    cuda.launch(kernel, grid, arguments);
}
