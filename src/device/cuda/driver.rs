//! The CUDA driver: what is called in libcuda, the device it is called for, and its errors.

use super::library::{Library, table};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

/// An address in the device's memory.
pub type Address = u64;
/// Opaque handles.
pub type Handle = *mut c_void;
/// What a launch takes.
type N = c_uint;
type Pointers = *mut *mut c_void;
/// 0 is success.
pub type Code = c_int;

table! {
    /// cuda.h
    pub struct Api {
        fn cuInit(c_uint) -> Code;
        fn cuDriverGetVersion(*mut c_int) -> Code;
        fn cuGetErrorName(Code, *mut *const c_char) -> Code;
        fn cuGetErrorString(Code, *mut *const c_char) -> Code;
        fn cuDeviceGetCount(*mut c_int) -> Code;
        fn cuDeviceGet(*mut c_int, c_int) -> Code;
        fn cuDeviceGetName(*mut c_char, c_int, c_int) -> Code;
        fn cuDeviceGetAttribute(*mut c_int, c_int, c_int) -> Code;
        fn cuDevicePrimaryCtxRetain(*mut Handle, c_int) -> Code;
        fn cuDevicePrimaryCtxRelease_v2(c_int) -> Code;
        fn cuCtxSetCurrent(Handle) -> Code;
        fn cuMemGetInfo_v2(*mut usize, *mut usize) -> Code;
        fn cuMemAlloc_v2(*mut Address, usize) -> Code;
        fn cuMemFree_v2(Address) -> Code;
        fn cuMemHostAlloc(*mut *mut u8, usize, c_uint) -> Code;
        fn cuMemFreeHost(*mut u8) -> Code;
        fn cuMemcpyHtoDAsync_v2(Address, *const u8, usize, Handle) -> Code;
        fn cuMemcpyDtoHAsync_v2(*mut u8, Address, usize, Handle) -> Code;
        fn cuMemsetD8Async(Address, u8, usize, Handle) -> Code;
        fn cuModuleLoadData(*mut Handle, *const c_void) -> Code;
        fn cuModuleUnload(Handle) -> Code;
        fn cuModuleGetFunction(*mut Handle, Handle, *const c_char) -> Code;
        fn cuFuncSetAttribute(Handle, c_int, c_int) -> Code;
        fn cuLaunchKernel(Handle, N, N, N, N, N, N, N, Handle, Pointers, Pointers) -> Code;
        fn cuStreamCreate(*mut Handle, c_uint) -> Code;
        fn cuStreamDestroy_v2(Handle) -> Code;
        fn cuStreamSynchronize(Handle) -> Code;
        fn cuStreamWaitEvent(Handle, Handle, c_uint) -> Code;
        fn cuEventCreate(*mut Handle, c_uint) -> Code;
        fn cuEventDestroy_v2(Handle) -> Code;
        fn cuEventRecord(Handle, Handle) -> Code;
        fn cuEventSynchronize(Handle) -> Code;
    }
}

/// `cuFuncGetParamInfo`, which drivers have since CUDA 12.4.
pub type ParamInfo = unsafe extern "C" fn(Handle, usize, *mut usize, *mut usize) -> Code;

/// `cuTensorMapEncodeTiled`, which drivers have since CUDA 12.0.
pub type EncodeTiled = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    c_uint,
    Address,
    *const u64,
    *const u64,
    *const u32,
    *const u32,
    c_int,
    c_int,
    c_int,
    c_int,
) -> Code;

pub const OUT_OF_MEMORY: Code = 2;
/// No stream of work waits for the default one.
const NON_BLOCKING: c_uint = 1;
/// Events only order; they keep no time.
const NO_TIMING: c_uint = 2;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;

/// One GPU, its context and its streams.
pub struct Device {
    pub api: Api,
    pub param_info: Option<ParamInfo>,
    pub encode_tiled: Option<EncodeTiled>,
    ordinal: c_int,
    context: Handle,
    /// What all ops go to.
    pub stream: Handle,
    /// What collectives that overlap with ops go to.
    pub beside: Handle,
    /// The first thing that went wrong; nothing is asked of the device afterwards.
    failure: Mutex<Option<String>>,
}

// SAFETY: the driver may be called from any thread that binds the context first, as `call` does.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

impl Device {
    /// The GPU of that number, with a stream.
    pub fn open(library: &Library, api: Api, ordinal: usize) -> Result<Device, String> {
        // SAFETY: the function has this type wherever it exists (cuda.h, since 12.4).
        let param_info = library
            .symbol("cuFuncGetParamInfo")
            .map(|f| unsafe { std::mem::transmute::<*mut c_void, ParamInfo>(f) });
        // SAFETY: as above, since 12.0.
        let encode_tiled = library
            .symbol("cuTensorMapEncodeTiled")
            .map(|f| unsafe { std::mem::transmute::<*mut c_void, EncodeTiled>(f) });
        let mut device = Device {
            api,
            param_info,
            encode_tiled,
            ordinal: ordinal as c_int,
            context: null_mut(),
            stream: null_mut(),
            beside: null_mut(),
            failure: Mutex::default(),
        };
        let (mut count, mut id) = (0, 0);
        // SAFETY: every pointer is to a live variable of the type that cuda.h declares.
        unsafe {
            device.asked((device.api.cuDeviceGetCount)(&mut count), "counting GPUs")?;
            if device.ordinal >= count {
                return Err(format!("GPU {ordinal} is asked for, the machine has {count}"));
            }
            device.asked((device.api.cuDeviceGet)(&mut id, device.ordinal), "finding the GPU")?;
            let mut context = null_mut();
            let code = (device.api.cuDevicePrimaryCtxRetain)(&mut context, id);
            device.asked(code, "opening the GPU")?;
            device.context = context;
            device.asked((device.api.cuCtxSetCurrent)(context), "opening the GPU")?;
            device.stream = device.new_stream()?;
            device.beside = device.new_stream()?;
        }
        Ok(device)
    }

    /// Its name, and its compute capability times ten.
    pub fn describe(&self) -> Result<(String, i32), String> {
        let mut name = [0 as c_char; 128];
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the buffer has the length given; the rest as in `open`.
        unsafe {
            let code = (self.api.cuDeviceGetName)(name.as_mut_ptr(), 128, self.ordinal);
            self.asked(code, "naming the GPU")?;
            let code = (self.api.cuDeviceGetAttribute)(&mut major, COMPUTE_MAJOR, self.ordinal);
            self.asked(code, "its compute capability")?;
            let code = (self.api.cuDeviceGetAttribute)(&mut minor, COMPUTE_MINOR, self.ordinal);
            self.asked(code, "its compute capability")?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            Ok((name, 10 * major + minor))
        }
    }

    /// Free and total bytes of memory.
    pub fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        self.call("asking for free memory", |api| unsafe {
            (api.cuMemGetInfo_v2)(&mut free, &mut total)
        });
        (free, total)
    }

    /// Calls the driver, on whatever thread, unless something has gone wrong before.
    pub fn call(&self, doing: &str, with: impl FnOnce(&Api) -> Code) {
        if self.failed() {
            return;
        }
        // SAFETY: the context lives as long as self.
        let bound = unsafe { (self.api.cuCtxSetCurrent)(self.context) };
        let code = if bound == 0 { with(&self.api) } else { bound };
        if code != 0 {
            self.fail(format!("{doing}: {}", self.error(code)));
        }
    }

    /// As `call`, for a caller that handles the code.
    pub fn try_call(&self, with: impl FnOnce(&Api) -> Code) -> Code {
        // SAFETY: the context lives as long as self.
        match unsafe { (self.api.cuCtxSetCurrent)(self.context) } {
            0 => with(&self.api),
            code => code,
        }
    }

    pub fn event(&self) -> Handle {
        let mut event = null_mut();
        self.call("making an event", |api| unsafe { (api.cuEventCreate)(&mut event, NO_TIMING) });
        event
    }

    /// What is asked of `later` from now on sees what was asked of `earlier` so far.
    pub fn after(&self, event: Handle, earlier: Handle, later: Handle) {
        self.call("ordering streams", |api| unsafe {
            match (api.cuEventRecord)(event, earlier) {
                0 => (api.cuStreamWaitEvent)(later, event, 0),
                code => code,
            }
        });
    }

    pub fn fail(&self, what: String) {
        self.failing().get_or_insert(what);
    }

    pub fn failed(&self) -> bool {
        self.failing().is_some()
    }

    pub fn failure(&self) -> Option<String> {
        self.failing().clone()
    }

    fn failing(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn new_stream(&self) -> Result<Handle, String> {
        let mut stream = null_mut();
        // SAFETY: the pointer is to a live variable; the context is bound.
        let code = unsafe { (self.api.cuStreamCreate)(&mut stream, NON_BLOCKING) };
        self.asked(code, "making a stream").map(|()| stream)
    }

    fn asked(&self, code: Code, doing: &str) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(format!("{doing}: {}", self.error(code))) }
    }

    /// What a code means, in the driver's words.
    pub fn error(&self, code: Code) -> String {
        explain(&self.api, code)
    }
}

/// What a code means, in the driver's words.
pub fn explain(api: &Api, code: Code) -> String {
    let text = |f: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
        let mut text = std::ptr::null();
        // SAFETY: on success the driver leaves a static string.
        unsafe {
            let known = f(code, &mut text) == 0 && !text.is_null();
            known.then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    let name = text(api.cuGetErrorName).unwrap_or_else(|| format!("CUDA error {code}"));
    match text(api.cuGetErrorString) {
        Some(words) => format!("{name} ({words})"),
        None => name,
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: made in `open`; nobody else has them.
        unsafe {
            (self.api.cuCtxSetCurrent)(self.context);
            for stream in [self.stream, self.beside].into_iter().filter(|s| !s.is_null()) {
                (self.api.cuStreamDestroy_v2)(stream);
            }
            if !self.context.is_null() {
                (self.api.cuDevicePrimaryCtxRelease_v2)(self.ordinal);
            }
        }
    }
}
