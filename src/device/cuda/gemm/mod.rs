//! Matrix products by cuBLASLt, with their epilogues.
//!
//! The library's matrices are column-major: C = A·B is computed as Cᵀ = Bᵀ·Aᵀ, so our B is its A.
//! A plan (descriptors and algorithm) is made once for each kind, shape, dtype, epilogue and
//! alignment, and kept (`plan`); its algorithm is the fastest of those that the library proposes,
//! timed the first time (`tune`) and remembered on disk (`cache`). Epilogues that the library
//! cannot do (exact GELU; rows that are not a multiple of 16 bytes; products for which its heuristic
//! has no algorithm), or not as fast, are separate kernels.

mod cache;
mod fp8;
mod plan;
mod tune;

pub use cache::AlgorithmCache;
pub(super) use fp8::fp8;
pub use plan::{Products, Workspace};

use super::args::arguments;
use super::launch::{Grid, typed};
use super::{Cuda, lt};
use crate::{Epilogue, Gelu, Gemm, Out, Tensor, op};
use plan::Operands;

pub(super) fn gemm(cuda: &Cuda, op: &op::Gemm) {
    let op::Gemm { kind, a, b, c, then } = *op;
    let [m, n, k] = op.size();
    let transpose = [kind == Gemm::NT, kind == Gemm::TN];
    let on = Operands { a: b, b: a, c, bias: None, aux: None, db: None, fp8: None };
    let product = Product { transpose, size: [m, n, k], on };
    let Epilogue::BiasBackward(db) = then else { return product.run(cuda, then) };
    let sums = cuda.products.workspace.sums(m);
    let fits = sums.is_some() && n.is_multiple_of(8) && is_aligned(c.to);
    let on = Operands { bias: sums, db: Some(db), ..on };
    product.multiply_fused_or(cuda, fits, lt::Epilogue::BiasBackward, on, &|| {
        product.multiply_plain(cuda, c);
        super::elementwise::column_sums(cuda, &op::ColumnSums { x: a, sums: db });
    });
}

fn is_aligned(x: Tensor) -> bool {
    x.addr().is_multiple_of(16)
}

/// Product with checked shapes, in the library's order.
#[derive(Clone, Copy)]
struct Product {
    transpose: [bool; 2],
    /// m, n, k.
    size: [usize; 3],
    on: Operands,
}

impl Product {
    /// Computes the product with an epilogue other than `BiasBackward`.
    fn run(&self, cuda: &Cuda, then: Epilogue) {
        let Product { size: [_, n, _], on, .. } = *self;
        let c = on.c;
        // The library's epilogues need columns in eights and addresses in sixteens.
        let fits = |x: Tensor| is_aligned(x) && x.dtype == c.to.dtype;
        let fused = n.is_multiple_of(8) && fits(c.to) && c.to.dtype == on.result();
        match then {
            Epilogue::Nothing => self.multiply_plain(cuda, c),
            Epilogue::Bias(bias) => {
                let fits = fused && fits(bias);
                let on = Operands { bias: Some(bias), ..on };
                self.multiply_fused_or(cuda, fits, lt::Epilogue::Bias, on, &|| {
                    bias_rows(cuda, bias, c.to);
                    self.multiply_plain(cuda, c.to.add());
                });
            }
            Epilogue::BiasGelu { bias, pre, gelu } => {
                let fits = fused && gelu == Gelu::Tanh && bias.is_some_and(fits) && fits(pre);
                let fused = Operands { bias, aux: Some(pre), ..on };
                self.multiply_fused_or(cuda, fits, lt::Epilogue::GeluAuxBias, fused, &|| {
                    let then = bias.map_or(Epilogue::Nothing, Epilogue::Bias);
                    Product { on: Operands { c: pre.set(), ..on }, ..*self }.run(cuda, then);
                    super::gelu::gelu(cuda, &op::Gelu { x: pre, gelu, y: c });
                });
            }
            Epilogue::GeluBackward { pre, gelu } => {
                let fits = fused && gelu == Gelu::Tanh && fits(pre);
                let on = Operands { aux: Some(pre), ..on };
                self.multiply_fused_or(cuda, fits, lt::Epilogue::GeluBackward, on, &|| {
                    self.multiply_plain(cuda, c);
                    super::gelu::backward(cuda, pre, gelu, c.to);
                });
            }
            Epilogue::BiasBackward(_) => unreachable!("of a weight's gradient alone"),
        }
    }

    fn multiply_plain(&self, cuda: &Cuda, c: Out) {
        let product = Product { on: Operands { c, ..self.on }, ..*self };
        let unfused: &dyn Fn() = &|| fp8::add_in_parts(cuda, &product);
        let unfused = (c.add && product.on.fp8.is_some()).then_some(unfused);
        self.multiply(cuda, lt::Epilogue::Nothing, product.on, unfused);
    }

    /// Computes the product by the library if it takes these operands, otherwise by kernels.
    fn multiply_fused_or(
        &self,
        cuda: &Cuda,
        fits: bool,
        epilogue: lt::Epilogue,
        on: Operands,
        unfused: &dyn Fn(),
    ) {
        if fits { self.multiply(cuda, epilogue, on, Some(unfused)) } else { unfused() }
    }

    fn multiply(
        &self,
        cuda: &Cuda,
        epilogue: lt::Epilogue,
        on: Operands,
        unfused: Option<&dyn Fn()>,
    ) {
        let shape = on.shape(cuda, self.transpose, self.size, epilogue);
        cuda.products.run(cuda, shape, &on, unfused);
    }
}

/// x = bias in every row.
fn bias_rows(cuda: &Cuda, bias: Tensor, x: Tensor) {
    let (grid, vector) = Grid::rows(x, [bias]);
    let arguments = arguments!(BiasRows { bias, x, rows: x.rows, cols: x.cols, vector });
    cuda.launch(typed!("bias_rows", x.dtype), grid, arguments);
}
