//! Newton–Schulz iterations of fifth degree (Jordan et al. 2024): move the singular values of a
//! matrix near 1 and keep its singular vectors. All operations are matrix products on the device.
//!
//! For X [rows, cols] divided by its Frobenius norm, with m ≤ n its smaller and larger side, an
//! iteration is G = XXᵀ (tall X: XᵀX) [m, m], X ← a·X + (b·G + c·G²)·X: 4·m²·n + 2·m³ FLOPs.

use base::DType;
use device::{Arena, Backend, Gemm, InPlace, Tensor, op};

#[derive(Clone, Copy)]
pub struct NewtonSchulz {
    steps: usize,
    coefficients: [f32; 3],
    eps: f32,
}

/// Workspace of one matrix.
pub struct Workspace {
    /// [rows, cols]: the matrix, and the result of the next iteration.
    pub x: [Tensor; 2],
    /// [m, m]: G and its square.
    gram: [Tensor; 2],
    /// f32 [1, 1].
    sum: Tensor,
}

impl Workspace {
    pub fn plan(size: [usize; 2], dtype: DType, arena: &Arena) -> Workspace {
        let [rows, cols] = size;
        let least = rows.min(cols);
        let x = || arena.matrix(rows, cols, dtype);
        let gram = || arena.matrix(least, least, dtype);
        Workspace { x: [x(), x()], gram: [gram(), gram()], sum: arena.matrix(1, 1, DType::F32) }
    }
}

impl NewtonSchulz {
    pub fn new(settings: &manifest::Muon) -> NewtonSchulz {
        let manifest::Muon { ns_steps, coefficients, eps, .. } = *settings;
        NewtonSchulz { steps: ns_steps, coefficients, eps }
    }

    /// FLOPs of all products of a matrix.
    pub fn flops(&self, size: [usize; 2]) -> u64 {
        let [rows, cols] = size.map(|side| side as u64);
        let m = rows.min(cols);
        let n = rows.max(cols);
        self.steps as u64 * (4 * m * m * n + 2 * m * m * m)
    }

    /// Orthogonalises the matrix in `work.x[0]` and multiplies it by `scale`. Returns the tensor
    /// that holds the result.
    pub fn run(&self, be: &dyn Backend, work: &Workspace, scale: f32) -> Tensor {
        let [mut x, mut next] = work.x;
        let [gram, square] = work.gram;
        let [a, b, c] = self.coefficients;
        let wide = x.rows <= x.cols;
        let product = |kind, a, b, c: Tensor| be.run(op::Gemm::plain(kind, a, b, c.set()));
        be.run(op::SquareSums { xs: &[x], y: work.sum.set() });
        be.run(op::ScaleToNorm1 { sum: work.sum, eps: self.eps, x: InPlace(x) });
        for step in 1..=self.steps {
            let scale = if step == self.steps { scale } else { 1.0 };
            product(if wide { Gemm::NT } else { Gemm::TN }, x, x, gram);
            product(Gemm::NN, gram, gram, square);
            be.run(op::Blend { a: b, x: gram, b: c, y: InPlace(square) });
            let (left, right) = if wide { (square, x) } else { (x, square) };
            product(Gemm::NN, left, right, next);
            be.run(op::Blend { a: scale * a, x, b: scale, y: InPlace(next) });
            (x, next) = (next, x);
        }
        x
    }
}
