//! Ops of low-rank gradients besides products: a guarded axpy, and orthonormal columns.

use super::Cuda;
use super::args::{self, arguments};
use super::launch::Grid;
use crate::{InPlace, op};
use std::ptr::null_mut;

/// Matrices of one launch, and threads of the block that each of them has.
const MATRICES: usize = 8;
pub(super) const THREADS: usize = 512;

pub(super) fn axpy(cuda: &Cuda, &op::Axpy { a, factor, x, y }: &op::Axpy) {
    let (grid, vector) = Grid::elements(x, [y.to]);
    let arguments = arguments!(Axpy { x, y, factor, numel: x.numel(), a, add: y.add, vector });
    cuda.launch("axpy", grid, arguments);
}

pub(super) fn orthogonalize(cuda: &Cuda, op: &op::Orthogonalize) {
    let InPlace(mut left) = op.xs;
    while let [first, ..] = left {
        let alike = left
            .iter()
            .take_while(|x| x.cols == first.cols)
            .count()
            .min(MATRICES);
        let (now, rest) = left.split_at(alike);
        left = rest;
        let mut x = [null_mut(); MATRICES];
        let mut rows = [0; MATRICES];
        for (i, matrix) in now.iter().enumerate() {
            (x[i], rows[i]) = (matrix.addr() as *mut f32, matrix.rows as u32);
        }
        let arguments = args::Orthogonalize { x, rows, cols: first.cols as u32 };
        cuda.launch("orthogonalize", Grid::line(alike, THREADS), arguments);
    }
}
