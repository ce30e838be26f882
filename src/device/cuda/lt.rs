//! What is called in cuBLASLt, and the numbers of its header.

use super::driver::Handle;
use super::library::table;
use crate::base::DType;
use std::ffi::{c_int, c_void};

/// 0 is success.
pub type Status = c_int;

table! {
    /// cublasLt.h
    pub struct Api {
        fn cublasLtGetVersion() -> usize;
        fn cublasLtCreate(*mut Handle) -> Status;
        fn cublasLtDestroy(Handle) -> Status;
        fn cublasLtMatrixLayoutCreate(*mut Handle, c_int, u64, u64, i64) -> Status;
        fn cublasLtMatrixLayoutDestroy(Handle) -> Status;
        fn cublasLtMatmulDescCreate(*mut Handle, c_int, c_int) -> Status;
        fn cublasLtMatmulDescDestroy(Handle) -> Status;
        fn cublasLtMatmulDescSetAttribute(Handle, c_int, *const c_void, usize) -> Status;
        fn cublasLtMatmulPreferenceCreate(*mut Handle) -> Status;
        fn cublasLtMatmulPreferenceDestroy(Handle) -> Status;
        fn cublasLtMatmulPreferenceSetAttribute(Handle, c_int, *const c_void, usize) -> Status;
        fn cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle,
            c_int, *mut Heuristic, *mut c_int) -> Status;
        fn cublasLtMatmulAlgoCheck(Handle, Handle, Handle, Handle, Handle, Handle,
            *const Algorithm, *mut Heuristic) -> Status;
        fn cublasLtMatmulAlgoConfigGetAttribute(*const Algorithm, c_int, *mut c_void, usize,
            *mut usize) -> Status;
        fn cublasLtMatmul(Handle, Handle, *const f32, u64, Handle, u64, Handle, *const f32, u64,
            Handle, u64, Handle, *const Algorithm, u64, usize, Handle) -> Status;
    }
}

/// How a product is computed; opaque.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Algorithm(pub [u64; 8]);

/// An algorithm the library proposes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Heuristic {
    pub algorithm: Algorithm,
    pub workspace: usize,
    pub status: Status,
    pub waves: f32,
    pub reserved: [c_int; 4],
}

/// cublasComputeType_t: f32 arithmetic on operands of any float dtype.
pub const COMPUTE_F32: c_int = 68;
/// The same on f32 operands rounded to TF32.
pub const COMPUTE_TF32: c_int = 77;

/// cublasLtMatmulDescAttributes_t
pub const TRANS_A: c_int = 3;
pub const TRANS_B: c_int = 4;
pub const EPILOGUE: c_int = 7;
pub const BIAS_POINTER: c_int = 8;
pub const AUX_POINTER: c_int = 11;
pub const AUX_LD: c_int = 12;

/// cublasLtMatmulPreferenceAttributes_t; the alignments of A, B, C and D follow each other.
pub const MAX_WORKSPACE: c_int = 1;
pub const REDUCTIONS: c_int = 3;
pub const ALIGNMENT_A: c_int = 5;

/// cublasLtMatmulAlgoConfigAttributes_t
pub const REDUCTION: c_int = 3;

/// cublasLtReductionScheme_t: how parts of the depth are added up that were computed side by side.
/// Not at all, or in f32 and in a step of its own. In C itself they would be rounded to its dtype.
pub const REDUCE_NOT: u32 = 0;
pub const REDUCE_IN_F32: u32 = 2;

/// cublasLtEpilogue_t
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Epilogue {
    Nothing = 1,
    Bias = 4,
    GeluAuxBias = 164,
    GeluBackward = 192,
    /// BGRADB: f32 where C is (cublasLtMatmul's table of dtypes). DGELU_BGRAD would round the sums
    /// to bf16 as it does C.
    BiasBackward = 512,
}

/// cudaDataType_t
pub fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 2,
        DType::BF16 => 14,
        other => panic!("a matrix product of {other}"),
    }
}
