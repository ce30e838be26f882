//! What is called in NCCL, and the numbers of its header.

use crate::base::DType;
use crate::device::cuda::driver::Handle;
use crate::device::cuda::library::table;
use std::ffi::{c_char, c_int, c_void};

/// 0 is success.
pub type Code = c_int;

/// What the ranks of a communicator know each other by.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Id(pub [u8; 128]);

table! {
    /// nccl.h
    pub struct Api {
        fn ncclGetErrorString(Code) -> *const c_char;
        fn ncclGetUniqueId(*mut Id) -> Code;
        fn ncclCommInitRank(*mut Handle, c_int, Id, c_int) -> Code;
        fn ncclCommDestroy(Handle) -> Code;
        fn ncclCommAbort(Handle) -> Code;
        fn ncclCommGetAsyncError(Handle, *mut Code) -> Code;
        fn ncclAllReduce(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
        fn ncclAllGather(*const c_void, *mut c_void, usize, c_int, Handle, Handle) -> Code;
        fn ncclReduceScatter(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Handle)
            -> Code;
        fn ncclSend(*const c_void, usize, c_int, c_int, Handle, Handle) -> Code;
        fn ncclRecv(*mut c_void, usize, c_int, c_int, Handle, Handle) -> Code;
        fn ncclGroupStart() -> Code;
        fn ncclGroupEnd() -> Code;
    }
}

/// ncclResult_t: what two ranks on one GPU get.
pub const INVALID_USAGE: Code = 5;

/// ncclRedOp_t
pub const SUM: c_int = 0;

/// ncclDataType_t
pub fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F32 => 7,
        DType::F16 => 6,
        DType::BF16 => 9,
    }
}
