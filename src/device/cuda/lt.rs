//! cuBLASLt: the functions that gptrain calls, and its attributes.

use super::library::table;
use crate::Fp8Scaling;
use base::{DType, Fp8};
pub use cudarc::cublaslt::sys::cublasLtMatmulAlgo_t as Algorithm;
use cudarc::cublaslt::sys::{
    cublasLtEpilogue_t, cublasLtMatmulHeuristicResult_t as HeuristicResult, cudaDataType_t,
};
use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;

/// A cublasStatus_t as an integer; 0 is success.
pub type Status = c_int;

table! {
    /// cublasLt.h
    pub struct Api {
        cublasLtGetVersion cublasLtCreate cublasLtDestroy
        cublasLtMatrixLayoutCreate cublasLtMatrixLayoutDestroy
        cublasLtMatmulDescCreate cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute
        cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceDestroy
        cublasLtMatmulPreferenceSetAttribute
        cublasLtMatmulAlgoGetHeuristic cublasLtMatmulAlgoCheck
        cublasLtMatmulAlgoConfigGetAttribute cublasLtMatmul
    }
}

/// Result of the library's heuristic or check for an algorithm.
#[derive(Clone, Copy)]
pub struct Heuristic {
    pub algorithm: Algorithm,
    /// Bytes of workspace that it needs.
    pub workspace: usize,
    pub status: Status,
}

impl Heuristic {
    /// Reads a result of the library, its status as an integer.
    pub fn read(found: &MaybeUninit<HeuristicResult>) -> Heuristic {
        let found = found.as_ptr();
        // SAFETY: callers make it zeroed, which is a valid algorithm and size, and pass it to the library
        // or not. The status, which may be a code that its enum lacks, is read as an integer.
        unsafe {
            Heuristic {
                algorithm: (*found).algo,
                workspace: (*found).workspaceSize,
                status: (&raw const (*found).state).cast::<Status>().read(),
            }
        }
    }
}

/// Operation of the library on a product before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    Nothing,
    Bias,
    GeluAuxBias,
    GeluBackward,
    BiasBackward,
}

impl Epilogue {
    pub fn attribute(self) -> cublasLtEpilogue_t {
        match self {
            Epilogue::Nothing => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::GeluAuxBias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::GeluBackward => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
            // f32 where C is (cublasLtMatmul's table of dtypes). DGELU_BGRAD would round the sums
            // to bf16 as it does C.
            Epilogue::BiasBackward => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BGRADB,
        }
    }
}

/// Formats and scaling of operands in 8-bit floats, in the library's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp8Kind {
    pub formats: [Fp8; 2],
    pub scaling: Fp8Scaling,
    /// Whether tensor cores sum with their own precision of 14 bits, which is faster.
    pub fast: bool,
}

impl fmt::Display for Fp8Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.formats.map(Fp8::name);
        let by = match self.scaling {
            Fp8Scaling::RowWise => "rows",
            Fp8Scaling::TensorWise => "tensors",
        };
        write!(f, " {a} {b} by {by}{}", if self.fast { ", fast" } else { "" })
    }
}

pub fn fp8_type(format: Fp8) -> cudaDataType_t {
    match format {
        Fp8::E4M3 => cudaDataType_t::CUDA_R_8F_E4M3,
        Fp8::E5M2 => cudaDataType_t::CUDA_R_8F_E5M2,
    }
}

pub fn data_type(dtype: DType) -> cudaDataType_t {
    match dtype {
        DType::F32 => cudaDataType_t::CUDA_R_32F,
        DType::F16 => cudaDataType_t::CUDA_R_16F,
        DType::BF16 => cudaDataType_t::CUDA_R_16BF,
        other => panic!("a matrix product of {other}"),
    }
}
