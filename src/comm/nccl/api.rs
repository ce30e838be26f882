//! libnccl: the functions that gptrain calls.

use base::DType;
use cudarc::nccl::sys::{self, ncclDataType_t, ncclResult_t};
use device::cuda::library::{call, table};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

/// An ncclResult_t as an integer; 0 is success.
pub type Code = c_int;

table! {
    /// nccl.h
    pub struct Api {
        ncclGetVersion ncclGetErrorString ncclGetLastError ncclGetUniqueId
        ncclCommInitRank ncclCommDestroy ncclCommAbort ncclCommGetAsyncError
        ncclAllReduce ncclAllGather ncclReduceScatter ncclSend ncclRecv ncclGroupStart ncclGroupEnd
    }
}

/// Code if two ranks use one GPU.
const INVALID_USAGE: Code = ncclResult_t::ncclInvalidUsage as Code;
/// Not an error: the result is pending.
pub const IN_PROGRESS: Code = ncclResult_t::ncclInProgress as Code;

impl Api {
    /// NCCL's version as a number: 22602 is 2.26.2; 0 if the library gives none.
    pub fn version(&self) -> c_int {
        let mut version = 0;
        // SAFETY: the pointer is to a live variable.
        let code = unsafe { call!(self, ncclGetVersion(&mut version)) };
        if code == 0 { version } else { 0 }
    }

    /// Explanation of a code, and the library's last message.
    pub fn error(&self, code: Code) -> String {
        // By hand, since cudarc takes the code as an enum.
        type Lookup = unsafe extern "C" fn(Code) -> *const c_char;
        // SAFETY: null, or a string that ends with a NUL: of a code one that is never freed; the last
        // message is copied here, before another call changes it.
        let text = |text: *const c_char| unsafe {
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().trim().to_string())
        };
        // SAFETY: the function has that type (nccl.h; the result is an int); the communicator may be null.
        let (name, last) = unsafe {
            let lookup = self.ncclGetErrorString.cast::<Lookup>();
            (text(lookup(code)), text(call!(self, ncclGetLastError(null_mut()))))
        };
        let shared = " (two ranks on one GPU? NCCL 2.30.3 or newer allows that, with \
                      NCCL_MULTI_RANK_GPU_ENABLE=1)";
        let hint = if code == INVALID_USAGE { shared } else { "" };
        let last = last
            .filter(|last| !last.is_empty())
            .map(|last| format!(": {last}"));
        format!("{}{hint}{}", name.unwrap_or_default(), last.unwrap_or_default())
    }
}

pub fn data_type(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::BF16 => ncclDataType_t::ncclBfloat16,
    }
}
