//! Matrix products by cuBLASLt, with their epilogues.
//!
//! The library thinks in columns: C = A·B in rows is Cᵀ = Bᵀ·Aᵀ in its columns, so our B is its A.
//! A plan (descriptors and algorithm) is made once for each kind, shape, dtype, epilogue and
//! alignment, and kept (`plan`); its algorithm is the fastest of those that the library proposes,
//! timed the first time (`tune`) and remembered on disk (`cache`). Epilogues that the library
//! cannot do (exact GELU; rows that are not a multiple of 16 bytes; what its heuristic knows no
//! algorithm for), or not as fast, are kernels of their own.

mod cache;
mod plan;
mod tune;

pub use cache::AlgorithmCache;
pub use plan::{Products, Workspace};

use super::launch::{Grid, typed, vector, wide};
use super::{Cuda, args, lt};
use crate::{Epilogue, Gelu, Gemm, Out, Tensor};
use base::DType;
use plan::Operands;

pub(super) fn gemm(cuda: &Cuda, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
    let (m, k) = if kind == Gemm::TN { (a.cols, a.rows) } else { (a.rows, a.cols) };
    let (n, depth) = if kind == Gemm::NT { (b.rows, b.cols) } else { (b.cols, b.rows) };
    assert_eq!(k, depth, "depth of A and B in {kind:?}: {a:?}, {b:?}");
    assert_eq!((c.to.rows, c.to.cols), (m, n), "{kind:?} of {a:?} and {b:?} into {:?}", c.to);
    assert_eq!(a.dtype, b.dtype, "dtypes of A and B");
    assert!(c.to.dtype == a.dtype || c.to.dtype == DType::F32, "dtype of C");
    let onto = matches!(then, Epilogue::Nothing | Epilogue::BiasBackward(_));
    assert!(!c.add || onto, "accumulation has no such epilogue");
    // What the library needs for an epilogue: columns in eights, addresses in sixteens.
    let aligned = |x: Tensor| x.addr().is_multiple_of(16);
    let fits = |x: Tensor| aligned(x) && x.dtype == c.to.dtype;
    let fused = n.is_multiple_of(8) && fits(c.to) && c.to.dtype == a.dtype;
    let transpose = [kind == Gemm::NT, kind == Gemm::TN];
    let plain = Operands { a: b, b: a, c, bias: None, aux: None, db: None };
    let product = |epilogue, on: Operands, unfused: Option<&dyn Fn()>| {
        let shape = on.shape(transpose, [m, n, k], epilogue, cuda.products.tf32);
        cuda.products.run(cuda, shape, &on, unfused);
    };
    let plainly = |c: Out| product(lt::Epilogue::Nothing, Operands { c, ..plain }, None);
    // By the library where it takes these operands, else by kernels.
    let either = |fits: bool, epilogue, on, unfused: &dyn Fn()| match fits {
        true => product(epilogue, on, Some(unfused)),
        false => unfused(),
    };
    match then {
        Epilogue::Nothing => plainly(c),
        Epilogue::Bias(bias) => {
            let (fits, on) = (fused && fits(bias), Operands { bias: Some(bias), ..plain });
            either(fits, lt::Epilogue::Bias, on, &|| {
                bias_rows(cuda, bias, c.to);
                plainly(c.to.add());
            });
        }
        Epilogue::BiasGelu { bias, pre, gelu } => {
            let fits = fused && gelu == Gelu::Tanh && bias.is_some_and(fits) && fits(pre);
            let on = Operands { bias, aux: Some(pre), ..plain };
            either(fits, lt::Epilogue::GeluAuxBias, on, &|| {
                let then = bias.map_or(Epilogue::Nothing, Epilogue::Bias);
                self::gemm(cuda, kind, a, b, pre.set(), then);
                super::gelu::gelu(cuda, pre, gelu, c);
            });
        }
        Epilogue::GeluBackward { pre, gelu } => {
            let fits = fused && gelu == Gelu::Tanh && fits(pre);
            either(fits, lt::Epilogue::GeluBackward, Operands { aux: Some(pre), ..plain }, &|| {
                plainly(c);
                super::gelu::backward(cuda, pre, gelu, c.to);
            });
        }
        Epilogue::BiasBackward(db) => {
            assert_eq!((kind, c.to.dtype), (Gemm::TN, DType::F32), "gradient of a weight");
            assert_eq!((db.to.numel(), db.to.dtype), (m, DType::F32), "gradient of its bias");
            let sums = cuda.products.workspace.sums(m);
            let fits = sums.is_some() && n.is_multiple_of(8) && aligned(c.to);
            let on = Operands { bias: sums, db: Some(db), ..plain };
            either(fits, lt::Epilogue::BiasBackward, on, &|| {
                plainly(c);
                super::elementwise::bias_backward(cuda, a, db);
            });
        }
    }
}

/// x = bias in every row.
fn bias_rows(cuda: &Cuda, bias: Tensor, x: Tensor) {
    assert_eq!((bias.numel(), bias.dtype), (x.cols, x.dtype), "bias");
    let vector = vector(x.cols, x.dtype, &[bias.addr(), x.addr()]);
    let grid = Grid::rows(x.rows, x.cols, if vector { wide(x.dtype) } else { 1 });
    let arguments = args::BiasRows {
        bias: bias.addr() as _,
        x: x.addr() as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        vector: vector.into(),
    };
    cuda.launch(typed!("bias_rows", x.dtype), grid, arguments);
}
