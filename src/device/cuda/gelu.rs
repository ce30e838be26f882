//! GELU where it does not ride on a matrix product.

use super::Cuda;
use super::launch::{Grid, typed, vector, wide};
use crate::device::{Gelu, Out, Tensor};

#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    x: u64,
    y: u64,
    numel: u64,
    add: u32,
    vector: u32,
}

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
    let arguments = Arguments {
        x: x.addr() as u64,
        y: y.to.addr() as u64,
        numel: x.numel() as u64,
        add: y.add.into(),
        vector: vector.into(),
    };
    cuda.launch(kernel, grid, arguments);
}
