//! libcuda: the functions that gptrain calls, and the meaning of their results.

use super::library::{call, table};
use cudarc::driver::sys::{self, CUresult};
pub use cudarc::driver::sys::{CUevent, CUstream};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null;

/// A CUresult as an integer; 0 is success.
pub type Code = c_int;

table! {
    /// cuda.h
    pub struct Api {
        cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString
        cuDeviceGetCount cuDeviceGet cuDeviceGetName cuDeviceGetAttribute cuDeviceGetPCIBusId
        cuDeviceGetUuid_v2 cuDevicePrimaryCtxSetFlags_v2 cuDevicePrimaryCtxGetState
        cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxSetCurrent
        cuMemGetInfo_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemHostAlloc cuMemFreeHost
        cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemsetD8Async
        cuModuleLoadData cuModuleUnload cuModuleGetFunction
        cuFuncGetAttribute cuFuncSetAttribute cuLaunchKernel
        cuCtxGetStreamPriorityRange cuStreamCreateWithPriority cuStreamDestroy_v2
        cuStreamSynchronize cuStreamWaitEvent
        cuStreamBeginCapture_v2 cuStreamEndCapture cuGraphInstantiateWithFlags cuGraphLaunch
        cuGraphDestroy cuGraphExecDestroy
        cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventSynchronize cuEventElapsedTime
        cuEventQuery
    }
}

pub const OUT_OF_MEMORY: Code = CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code;
pub const NOT_READY: Code = CUresult::CUDA_ERROR_NOT_READY as Code;

/// CUDA errors that leave the context unusable; the Xid in the kernel's log has details.
pub const CONTEXT_LOST: [Code; 13] = [
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE as Code,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as Code,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE as Code,
    CUresult::CUDA_ERROR_CONTAINED as Code,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as Code,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT as Code,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR as Code,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION as Code,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS as Code,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE as Code,
    CUresult::CUDA_ERROR_INVALID_PC as Code,
    CUresult::CUDA_ERROR_LAUNCH_FAILED as Code,
    CUresult::CUDA_ERROR_UNKNOWN as Code,
];

/// Starts the driver and returns the version of CUDA that it supports: 13000 is 13.0.
pub fn version(api: &Api) -> Result<i32, String> {
    let mut version = 0;
    // SAFETY: an int is written to the live variable, by a driver that has started.
    let code = unsafe {
        match call!(api, cuInit(0)) {
            0 => call!(api, cuDriverGetVersion(&mut version)),
            code => code,
        }
    };
    if code == 0 { Ok(version) } else { Err(explain(api, code)) }
}

/// Number of GPUs that a loaded driver shows; 0 if it does not start.
pub fn device_count(api: &Api) -> usize {
    let mut count = 0;
    // SAFETY: an int is written to the live variable, by a driver that has started.
    let counted =
        unsafe { call!(api, cuInit(0)) == 0 && call!(api, cuDeviceGetCount(&mut count)) == 0 };
    if counted { count as usize } else { 0 }
}

/// Explanation of a code, in the driver's words.
pub fn explain(api: &Api, code: Code) -> String {
    // By hand, since cudarc takes the code as an enum.
    type Lookup = unsafe extern "C" fn(Code, *mut *const c_char) -> Code;
    let text = |lookup: Lookup| {
        let mut text = null();
        // SAFETY: the lookup writes an address to the live variable: on success that of a string which
        // is never freed (cuda.h).
        unsafe {
            let known = lookup(code, &mut text) == 0 && !text.is_null();
            known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    // SAFETY: both have this type (cuda.h); a CUresult is an int.
    let [name, words] = [api.cuGetErrorName, api.cuGetErrorString]
        .map(|symbol| text(unsafe { symbol.cast::<Lookup>() }));
    let name = name.unwrap_or_else(|| format!("CUDA error {code}"));
    match words {
        Some(words) => format!("{name} ({words})"),
        None => name,
    }
}
