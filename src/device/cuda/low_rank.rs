//! Ops of low-rank gradients besides products: a guarded axpy, and orthonormal columns.

use super::Cuda;
use super::args;
use super::launch::{Grid, vector, wide};
use crate::op;
use std::ptr::null_mut;

/// Matrices of one launch, and threads of the block that each of them has.
const MATRICES: usize = 8;
const THREADS: usize = 512;

pub(super) fn axpy(cuda: &Cuda, &op::Axpy { a, factor, x, y }: &op::Axpy) {
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

pub(super) fn orthogonalize(cuda: &Cuda, op: &op::Orthogonalize) {
    let mut left = op.xs;
    while let [first, ..] = left {
        let alike = left.iter().take_while(|x| x.cols == first.cols).count().min(MATRICES);
        let (now, rest) = left.split_at(alike);
        left = rest;
        let (mut x, mut rows) = ([null_mut(); MATRICES], [0; MATRICES]);
        for (i, matrix) in now.iter().enumerate() {
            (x[i], rows[i]) = (matrix.addr() as *mut f32, matrix.rows as u32);
        }
        let arguments = args::Orthogonalize { x, rows, cols: first.cols as u32 };
        cuda.launch("orthogonalize", Grid::line(alike, THREADS), arguments);
    }
}
