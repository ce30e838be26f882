//! Products of 8-bit floats: the scales and the types of the operands in the library's descriptors.

use super::plan::{Operands, Products};
use super::{Cuda, Product};
use crate::cuda::device::Device;
use crate::cuda::elementwise;
use crate::cuda::library::call;
use crate::cuda::lt::Fp8Kind;
use crate::{Fp8Scaling, Tensor, op};
use base::Fp8;
use cudarc::cublaslt::sys::{
    self, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatmulMatrixScale_t as Scale,
};

/// C (+)= A·Bᵀ, then the epilogue.
pub fn fp8(cuda: &Cuda, op: &op::Fp8Gemm) {
    let op::Fp8Gemm { a, b, c, then } = *op;
    let size = op.size();
    assert!(
        size.iter().all(|side| side.is_multiple_of(16)),
        "dimensions {size:?} must be multiples of 16"
    );
    // Forward multiplies E4M3 by E4M3; in backward one operand, a gradient, is E5M2.
    let fast = cuda.device.fast_fp8 && [a.format, b.format] == [Fp8::E4M3; 2];
    let kind = Fp8Kind { formats: [b.format, a.format], scaling: a.scaling, fast };
    let fp8 = Some((kind, [b.scales, a.scales]));
    let on = Operands { a: b.codes, b: a.codes, c, bias: None, aux: None, db: None, fp8 };
    // Hopper and Ada take no other transposition of 8-bit floats.
    Product { transpose: [true, false], size, on }.run(cuda, then);
}

/// C += A·Bᵀ by products that overwrite scratch, some rows of C after the other, where the library adds none
/// of these formats and scales to C.
pub(super) fn add_in_parts(cuda: &Cuda, product: &Product) {
    let Product { transpose, size: [m, n, k], on } = *product;
    let (kind, [of_columns, of_rows]) = on.fp8.expect("8-bit floats");
    let most = cuda.products.workspace.product(m, n).rows;
    for first in (0..m).step_by(most) {
        let part = cuda.products.workspace.product(most.min(m - first), n);
        let fp8 = Some((kind, [of_columns, of_rows.span(first, part.rows)]));
        let b = on.b.row_range(first, part.rows);
        let on = Operands { b, c: part.set(), fp8, ..on };
        Product { transpose, size: [part.rows, n, k], on }.multiply_plain(cuda, part.set());
        let y = product.on.c.to.row_range(first, part.rows).add();
        elementwise::copy(cuda, &op::Copy { x: part, y });
    }
}

impl Products {
    /// Version of the library, as it counts: 120900 is 12.9.
    pub fn version(&self) -> usize {
        // SAFETY: takes nothing and returns a number.
        unsafe { call!(self.api, cublasLtGetVersion()) }
    }

    /// Describes the scales of A and B, and whether sums keep f32's fraction: Hopper's own keep 14 bits.
    pub(super) fn describe_fp8(&self, device: &Device, to: cublasLtMatmulDesc_t, kind: Fp8Kind) {
        let fast = Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM;
        self.set_attribute(device, to, fast, &i8::from(kind.fast));
        if kind.scaling == Fp8Scaling::RowWise {
            let mode = Scale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32;
            for key in [
                Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
            ] {
                self.set_attribute(device, to, key, &mode);
            }
        }
    }

    /// Sets the addresses of the scales of A and B. Scales by tensor are equal; the first is read.
    pub(super) fn set_scales(&self, device: &Device, to: cublasLtMatmulDesc_t, ab: [Tensor; 2]) {
        let keys = [
            Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        ];
        for (key, scales) in keys.into_iter().zip(ab) {
            self.set_attribute(device, to, key, &(scales.addr() as u64));
        }
    }
}
