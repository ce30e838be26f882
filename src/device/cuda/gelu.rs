//! GELU where it does not ride on a matrix product.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::device::{Gelu, Out, Tensor};

pub(super) fn gelu(cuda: &Cuda, x: Tensor, gelu: Gelu, y: Out) {
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
    assert_eq!((x.numel(), x.dtype), (y.to.numel(), y.to.dtype), "x and y");
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
