//! Matrix products: layouts of their operands, and operations on the result before it is stored.

use super::{Out, Tensor};
use base::Gelu;

/// Operand layout of a matrix product: `C = A·Bᵀ`, `C = A·B`, `C = Aᵀ·B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gemm {
    NT,
    NN,
    TN,
}

/// Operation fused into a matrix product before its result is stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    Nothing,
    /// C = A·B + bias, bias [1, n].
    Bias(Tensor),
    /// pre = A·B + bias is stored, C = gelu(pre). bias [1, n], optional; pre like C.
    BiasGelu {
        bias: Option<Tensor>,
        pre: Tensor,
        gelu: Gelu,
    },
    /// C = (A·B) ⊙ gelu'(pre), the backward pass of `BiasGelu`. pre like C.
    GeluBackward {
        pre: Tensor,
        gelu: Gelu,
    },
    /// C (+)= Aᵀ·B and db (+)= Σ_rows A, which is read anyway: gradients of a weight and of its
    /// bias. Only for `TN` into f32. db f32 [1, m].
    BiasBackward(Out),
}

impl Epilogue {
    /// Additional matrix that the epilogue reads or writes, if it has one.
    pub fn matrix(self) -> Option<Tensor> {
        match self {
            Epilogue::Nothing | Epilogue::Bias(_) | Epilogue::BiasBackward(_) => None,
            Epilogue::BiasGelu { pre, .. } | Epilogue::GeluBackward { pre, .. } => Some(pre),
        }
    }
}
