//! Matrix products.

use super::{Gemm, Spec, assert_like};
use crate::{Epilogue, Out, Tensor, Work};
use base::DType;

impl Gemm {
    /// C (+)= A·B without an epilogue.
    pub fn plain(kind: crate::Gemm, a: Tensor, b: Tensor, c: Out) -> Gemm {
        Gemm { kind, a, b, c, then: Epilogue::Nothing }
    }

    /// Rows and columns of C, and the depth of the sums.
    pub fn size(&self) -> [usize; 3] {
        let Gemm { kind, a, c, .. } = *self;
        [c.to.rows, c.to.cols, if kind == crate::Gemm::TN { a.rows } else { a.cols }]
    }
}

impl Spec for Gemm {
    fn check(&self) {
        let Gemm { kind, a, b, c, then } = *self;
        let (m, k) = if kind == crate::Gemm::TN { (a.cols, a.rows) } else { (a.rows, a.cols) };
        let (n, depth) = if kind == crate::Gemm::NT { (b.rows, b.cols) } else { (b.cols, b.rows) };
        assert_eq!(k, depth, "depth of A and B in {kind:?}: {a:?}, {b:?}");
        assert_eq!((c.to.rows, c.to.cols), (m, n), "{kind:?} of {a:?} and {b:?} into {:?}", c.to);
        assert_eq!(a.dtype, b.dtype, "dtypes of A and B");
        assert!(c.to.dtype == a.dtype || c.to.dtype == DType::F32, "dtype of C");
        if let Epilogue::BiasBackward(db) = then {
            assert_eq!((kind, c.to.dtype), (crate::Gemm::TN, DType::F32), "gradient of a weight");
            assert_eq!((db.to.numel(), db.to.dtype), (m, DType::F32), "gradient of its bias");
        } else {
            assert!(!c.add || matches!(then, Epilogue::Nothing), "accumulation has no epilogue");
        }
        check_epilogue(then, c.to);
    }
    fn cost(&self) -> Work {
        let Gemm { a, b, c, then, .. } = *self;
        let [rows, cols, depth] = self.size();
        // Column sums count as one more column.
        let cols = cols + matches!(then, Epilogue::BiasBackward(_)) as usize;
        Work::product([rows, cols, depth])
            .moving([a, b])
            .moving(then.matrix())
            .moving_out(c)
    }
}

/// Panics if the tensors of an epilogue do not fit C.
pub(super) fn check_epilogue(then: Epilogue, c: Tensor) {
    let bias = match then {
        Epilogue::Bias(bias) => Some(bias),
        Epilogue::BiasGelu { bias, .. } => bias,
        _ => None,
    };
    let fits = |bias: Tensor| (bias.numel(), bias.dtype) == (c.cols, c.dtype);
    assert!(bias.is_none_or(fits), "bias {bias:?} of {c:?}");
    if let Some(pre) = then.matrix() {
        assert_like(c, &[pre], "C and pre");
    }
}
