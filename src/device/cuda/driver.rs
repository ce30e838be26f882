//! The CUDA driver: what is called in libcuda, the device it is called for, and its errors.

use super::library::{Library, table};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

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
        fn cuDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> Code;
        fn cuDeviceGetUuid_v2(*mut [u8; 16], c_int) -> Code;
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
        fn cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle) -> Code;
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
        fn cuStreamBeginCapture_v2(Handle, c_uint) -> Code;
        fn cuStreamEndCapture(Handle, *mut Handle) -> Code;
        fn cuGraphInstantiateWithFlags(*mut Handle, Handle, c_ulonglong) -> Code;
        fn cuGraphLaunch(Handle, Handle) -> Code;
        fn cuGraphDestroy(Handle) -> Code;
        fn cuGraphExecDestroy(Handle) -> Code;
        fn cuEventCreate(*mut Handle, c_uint) -> Code;
        fn cuEventDestroy_v2(Handle) -> Code;
        fn cuEventRecord(Handle, Handle) -> Code;
        fn cuEventSynchronize(Handle) -> Code;
        fn cuEventElapsedTime(*mut f32, Handle, Handle) -> Code;
        fn cuEventQuery(Handle) -> Code;
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
const NOT_READY: Code = 600;
/// Codes by which the hardware, its driver or a kernel that ran wild made an end: the driver's own
/// report, an Xid, is in the kernel's log.
const REPORTED: [Code; 13] = [46, 214, 220, 226, 700, 702, 714, 715, 716, 717, 718, 719, 999];
/// No stream of work waits for the default one.
const NON_BLOCKING: c_uint = 1;
/// Events that keep time, and events that only order.
const TIMING: c_uint = 0;
const NO_TIMING: c_uint = 2;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;

/// What was asked of a GPU so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// Kernels and products, one by one.
    pub kernels: u64,
    /// Graphs, each a whole pass.
    pub graphs: u64,
}

/// Which GPU it is, wherever it is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Among those the driver shows to this process.
    pub ordinal: usize,
    /// How many it shows.
    pub shown: usize,
    pub name: String,
    /// "0000:3B:00.0".
    pub bus: String,
    /// In hexadecimal, as nvidia-smi has it.
    pub uuid: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} (PCI {}, {})", self.ordinal, self.bus, self.uuid)
    }
}

/// Does one launch of a graph, which it is given.
pub type Launch = Box<dyn Fn(&dyn Fn())>;

/// Who follows how far the GPU is with what ranks do together.
pub trait Witness: Send + Sync {
    /// What was captured since this was last asked, as part of one graph: does a launch of it.
    fn captured(self: Arc<Self>) -> Launch;
}

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
    /// What host bytes travel on while ops compute.
    pub feeding: Handle,
    /// Whether work that repeats becomes a graph; off after the first that does not.
    pub graphs: AtomicBool,
    /// Whether what is asked of `stream` becomes part of a graph now, and is not done.
    pub capturing: AtomicBool,
    launched: [AtomicU64; 2],
    witness: Mutex<Option<Weak<dyn Witness>>>,
    notes: Mutex<Vec<String>>,
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
            feeding: null_mut(),
            graphs: AtomicBool::new(true),
            capturing: AtomicBool::new(false),
            launched: Default::default(),
            witness: Mutex::default(),
            notes: Mutex::default(),
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
            device.feeding = device.new_stream()?;
        }
        Ok(device)
    }

    /// Which GPU it is.
    pub fn identity(&self) -> Result<Identity, String> {
        let (mut name, mut bus) = ([0 as c_char; 128], [0 as c_char; 32]);
        let (mut uuid, mut shown) = ([0u8; 16], 0);
        let id = self.ordinal;
        // SAFETY: the buffers have the lengths given; the rest as in `open`.
        unsafe {
            let code = (self.api.cuDeviceGetCount)(&mut shown);
            self.asked(code, "counting GPUs")?;
            let code = (self.api.cuDeviceGetName)(name.as_mut_ptr(), 128, id);
            self.asked(code, "naming the GPU")?;
            let code = (self.api.cuDeviceGetPCIBusId)(bus.as_mut_ptr(), 32, id);
            self.asked(code, "finding the GPU's slot")?;
            let code = (self.api.cuDeviceGetUuid_v2)(&mut uuid, id);
            self.asked(code, "telling the GPU from others")?;
        }
        // SAFETY: on success each holds a string that ends within its buffer.
        let text = |of: &[c_char]| unsafe { CStr::from_ptr(of.as_ptr()) };
        let text = |of: &[c_char]| text(of).to_string_lossy().into_owned();
        let parts = [0..4, 4..6, 6..8, 8..10, 10..16];
        let hex = |part: std::ops::Range<usize>| {
            uuid[part].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        Ok(Identity {
            ordinal: self.ordinal as usize,
            shown: shown as usize,
            name: text(&name),
            bus: text(&bus),
            uuid: format!("GPU-{}", parts.map(hex).join("-")),
        })
    }

    /// Its compute capability times ten.
    pub fn capability(&self) -> Result<i32, String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: as in `open`.
        unsafe {
            let code = (self.api.cuDeviceGetAttribute)(&mut major, COMPUTE_MAJOR, self.ordinal);
            self.asked(code, "its compute capability")?;
            let code = (self.api.cuDeviceGetAttribute)(&mut minor, COMPUTE_MINOR, self.ordinal);
            self.asked(code, "its compute capability")?;
        }
        Ok(10 * major + minor)
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
            self.fail_with(doing, code);
        }
    }

    fn fail_with(&self, doing: &str, code: Code) {
        let more = match REPORTED.contains(&code) {
            true => "; `dmesg` on the node may have an NVRM: Xid that says why",
            false => "",
        };
        self.fail(format!("{doing}: {}{more}", self.error(code)));
    }

    /// As `call`, for a caller that handles the code.
    pub fn try_call(&self, with: impl FnOnce(&Api) -> Code) -> Code {
        // SAFETY: the context lives as long as self.
        match unsafe { (self.api.cuCtxSetCurrent)(self.context) } {
            0 => with(&self.api),
            code => code,
        }
    }

    /// Whether what is asked for becomes part of a graph.
    pub fn captures(&self) -> bool {
        self.capturing.load(Relaxed)
    }

    /// `witness` is to know of graphs from now on.
    pub fn watch(&self, witness: Weak<dyn Witness>) {
        *self.witness.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(witness);
    }

    /// Who is to know of graphs, if ranks do anything together.
    pub fn witness(&self) -> Option<Arc<dyn Witness>> {
        let witness = self.witness.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        witness.as_ref().and_then(Weak::upgrade)
    }

    /// Counts a kernel or a product that was asked for by itself.
    pub fn count_kernel(&self) {
        if !self.capturing.load(Relaxed) {
            self.launched[0].fetch_add(1, Relaxed);
        }
    }

    pub fn count_graph(&self) {
        self.launched[1].fetch_add(1, Relaxed);
    }

    pub fn launched(&self) -> Launched {
        let [kernels, graphs] = self.launched.each_ref().map(|count| count.load(Relaxed));
        Launched { kernels, graphs }
    }

    pub fn event(&self) -> Handle {
        let mut event = null_mut();
        self.call("making an event", |api| unsafe { (api.cuEventCreate)(&mut event, NO_TIMING) });
        event
    }

    /// Milliseconds of each of `times` runs of what `run` asks of the stream. Waits for them.
    pub fn time(&self, times: usize, run: impl Fn()) -> Vec<f32> {
        let mut events = vec![null_mut(); 2 * times];
        for event in &mut events {
            self.call("making an event", |api| unsafe { (api.cuEventCreate)(event, TIMING) });
        }
        let record = |event| {
            self.call("timing", |api| unsafe { (api.cuEventRecord)(event, self.stream) });
        };
        for pair in events.chunks(2) {
            record(pair[0]);
            run();
            record(pair[1]);
        }
        let taken = events.chunks(2).map(|pair| {
            let mut taken = f32::INFINITY;
            self.call("timing", |api| unsafe {
                match (api.cuEventSynchronize)(pair[1]) {
                    0 => (api.cuEventElapsedTime)(&mut taken, pair[0], pair[1]),
                    code => code,
                }
            });
            taken
        });
        let taken = taken.collect();
        for event in events.into_iter().filter(|event| !event.is_null()) {
            self.try_call(|api| unsafe { (api.cuEventDestroy_v2)(event) });
        }
        taken
    }

    /// What is asked of `later` from now on sees what was asked of `earlier` so far.
    pub fn after(&self, event: Handle, earlier: Handle, later: Handle) {
        self.record(event, earlier);
        self.wait(later, event);
    }

    /// The event is when what was asked of `stream` so far is done.
    pub fn record(&self, event: Handle, stream: Handle) {
        self.call("ordering streams", |api| unsafe { (api.cuEventRecord)(event, stream) });
    }

    /// What is asked of `stream` from now on comes after the event, if that was ever recorded.
    pub fn wait(&self, stream: Handle, event: Handle) {
        self.call("ordering streams", |api| unsafe { (api.cuStreamWaitEvent)(stream, event, 0) });
    }

    /// Whether all that an event was recorded after is done; of a device that failed nothing is.
    pub fn passed(&self, event: Handle) -> bool {
        if self.failed() {
            return false;
        }
        match self.try_call(|api| unsafe { (api.cuEventQuery)(event) }) {
            0 => true,
            NOT_READY => false,
            code => {
                self.fail_with("computing", code);
                false
            }
        }
    }

    /// The first failure stays.
    pub fn fail(&self, what: String) {
        self.failing().get_or_insert(what);
    }

    pub fn failed(&self) -> bool {
        self.failing().is_some()
    }

    pub fn failure(&self) -> Option<String> {
        self.failing().clone()
    }

    /// What failed in a capture was never done: the device works on without it.
    pub fn forgive(&self) -> Option<String> {
        self.failing().take()
    }

    /// Something to tell a person once.
    pub fn note(&self, what: String) {
        self.noting().push(what);
    }

    /// What was noted since this was asked last.
    pub fn notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.noting())
    }

    fn noting(&self) -> MutexGuard<'_, Vec<String>> {
        self.notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
            let streams = [self.stream, self.beside, self.feeding];
            for stream in streams.into_iter().filter(|s| !s.is_null()) {
                (self.api.cuStreamDestroy_v2)(stream);
            }
            if !self.context.is_null() {
                (self.api.cuDevicePrimaryCtxRelease_v2)(self.ordinal);
            }
        }
    }
}
