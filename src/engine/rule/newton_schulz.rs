//! A matrix with its singular values moved near 1, its singular vectors kept: Newton–Schulz
//! iterations of the fifth degree (Jordan et al. 2024), all of them products of the device.
//!
//! Of X [rows, cols] over its Frobenius norm, with m ≤ n the lesser and the greater side, an
//! iteration is G = XXᵀ (of a tall X: XᵀX) [m, m], X ← a·X + (b·G + c·G²)·X: 4·m²·n + 2·m³ FLOPs.

use base::DType;
use device::{Arena, Backend, Epilogue, Gemm, Tensor};

#[derive(Clone, Copy)]
pub struct NewtonSchulz {
    steps: usize,
    coefficients: [f32; 3],
    eps: f32,
}

/// Where one matrix is worked on.
pub struct Work {
    /// [rows, cols]: the matrix, and room for the next one.
    pub x: [Tensor; 2],
    /// [m, m]: G, and its square.
    gram: [Tensor; 2],
    /// f32 [1, 1].
    sum: Tensor,
}

impl Work {
    pub fn plan([rows, cols]: [usize; 2], dtype: DType, arena: &Arena) -> Work {
        let least = rows.min(cols);
        let x = || arena.matrix(rows, cols, dtype);
        let gram = || arena.matrix(least, least, dtype);
        Work { x: [x(), x()], gram: [gram(), gram()], sum: arena.matrix(1, 1, DType::F32) }
    }
}

impl NewtonSchulz {
    pub fn new(settings: &manifest::Muon) -> NewtonSchulz {
        let manifest::Muon { ns_steps, coefficients, eps, .. } = *settings;
        NewtonSchulz { steps: ns_steps, coefficients, eps }
    }

    /// Of all products of a matrix.
    pub fn flops(&self, [rows, cols]: [usize; 2]) -> u64 {
        let [m, n] = [rows.min(cols), rows.max(cols)].map(|side| side as u64);
        self.steps as u64 * (4 * m * m * n + 2 * m * m * m)
    }

    /// `scale` times what the matrix in `work.x[0]` becomes; where that lies.
    pub fn run(&self, be: &dyn Backend, work: &Work, scale: f32) -> Tensor {
        let ([mut x, mut next], [gram, square]) = (work.x, work.gram);
        let [a, b, c] = self.coefficients;
        let wide = x.rows <= x.cols;
        let product = |kind, a, b, c: Tensor| be.gemm(kind, a, b, c.set(), Epilogue::Nothing);
        be.square_sums(&[x], work.sum.set());
        be.scale_to_norm_1(x, work.sum, self.eps);
        for step in 1..=self.steps {
            let scale = if step == self.steps { scale } else { 1.0 };
            product(if wide { Gemm::NT } else { Gemm::TN }, x, x, gram);
            product(Gemm::NN, gram, gram, square);
            be.blend(b, gram, c, square);
            match wide {
                true => product(Gemm::NN, square, x, next),
                false => product(Gemm::NN, x, square, next),
            }
            be.blend(scale * a, x, scale, next);
            (x, next) = (next, x);
        }
        x
    }
}
