//! Ops of low-rank gradients besides products: a guarded axpy, and orthonormal columns.

use super::Cuda;
use super::args;
use super::launch::{Grid, vector, wide};
use crate::{Out, Tensor};
use base::DType;
use std::ptr::null_mut;

/// Matrices of one launch, and threads of the block that each of them has.
const MATRICES: usize = 8;
pub(super) const THREADS: usize = 512;

pub(super) fn axpy(cuda: &Cuda, a: f32, factor: Tensor, x: Tensor, y: Out) {
    assert_eq!((x.numel(), x.dtype), (y.to.numel(), DType::F32), "x and y");
    assert_eq!((factor.numel(), y.to.dtype), (1, DType::F32), "the factor, and y");
    let vector = vector(x.numel(), x.dtype, &[x.addr(), y.to.addr()]);
    let arguments = args::Axpy {
        x: x.addr() as _,
        y: y.to.addr() as _,
        factor: factor.addr() as _,
        numel: x.numel() as u64,
        a,
        add: y.add.into(),
        vector: vector.into(),
    };
    let grid = Grid::elements(x.numel(), if vector { wide(x.dtype) } else { 1 });
    cuda.launch("axpy", grid, arguments);
}

pub(super) fn orthogonalize(cuda: &Cuda, xs: &[Tensor]) {
    let mut left = xs;
    while let [first, ..] = left {
        let alike = left.iter().take_while(|x| x.cols == first.cols).count().min(MATRICES);
        let (now, rest) = left.split_at(alike);
        left = rest;
        let (mut x, mut rows) = ([null_mut(); MATRICES], [0; MATRICES]);
        for (i, matrix) in now.iter().enumerate() {
            assert_eq!(matrix.dtype, DType::F32, "matrices in f32");
            (x[i], rows[i]) = (matrix.addr() as *mut f32, matrix.rows as u32);
        }
        let arguments = args::Orthogonalize { x, rows, cols: first.cols as u32 };
        cuda.launch("orthogonalize", Grid::line(alike, THREADS), arguments);
    }
}
