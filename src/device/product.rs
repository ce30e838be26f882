//! Matrix products: how their operands lie, and what is done to a result before it is stored.

use super::{Out, Tensor};
use base::Gelu;

/// Operand layout of a matrix product: `C = A·Bᵀ`, `C = A·B`, `C = Aᵀ·B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gemm {
    NT,
    NN,
    TN,
}

/// The operation fused into a matrix product before its result is stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    Nothing,
    /// C = A·B + bias, bias [1, n].
    Bias(Tensor),
    /// pre = A·B + bias is stored, C = gelu(pre). bias [1, n], if there is one; pre like C.
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
    /// C (+)= Aᵀ·B and db (+)= Σ_rows A, which is read anyway: the gradients of a weight and of its
    /// bias. Only of `TN` into f32. db f32 [1, m].
    BiasBackward(Out),
}
