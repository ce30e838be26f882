//! What is called in NCCL, and the numbers of its header.

use crate::base::DType;
use crate::device::cuda::driver::Handle;
use crate::device::cuda::library::table;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

/// 0 is success.
pub type Code = c_int;

impl Api {
    /// What a code means, and what the library has to say beside it.
    pub fn error(&self, code: Code) -> String {
        // SAFETY: both give a string that is there to stay, or null.
        let text = |text: *const c_char| unsafe {
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().trim().to_string())
        };
        // SAFETY: the communicator may be null (nccl.h).
        let (name, last) = unsafe {
            (text((self.ncclGetErrorString)(code)), text((self.ncclGetLastError)(null_mut())))
        };
        let hint = if code == INVALID_USAGE { " (two ranks on one GPU?)" } else { "" };
        let last = last.filter(|last| !last.is_empty()).map(|last| format!(": {last}"));
        format!("{}{hint}{}", name.unwrap_or_default(), last.unwrap_or_default())
    }
}

/// What the ranks of a communicator know each other by.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Id(pub [u8; 128]);

table! {
    /// nccl.h
    pub struct Api {
        fn ncclGetErrorString(Code) -> *const c_char;
        fn ncclGetLastError(Handle) -> *const c_char;
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

/// ncclResult_t: what two ranks on one GPU get, and what is not yet known.
pub const INVALID_USAGE: Code = 5;
pub const IN_PROGRESS: Code = 7;

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
