//! One GPU: its context, its streams, and the latch of its first failure.

use super::driver::{Api, CONTEXT_LOST, CUstream, Code, explain};
use super::launches::Launches;
use super::library::{Library, Symbol, call};
use super::observer::Observed;
use crate::Identity;
use cudarc::driver::sys::{
    self, CUcontext, CUctx_flags as Waits, CUdevice, CUdevice_attribute as Attribute,
};
use parking_lot::{Mutex, MutexGuard};
use std::ffi::{CStr, c_char};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Work enqueued on a GPU so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launched {
    /// Kernels and matrix products, outside of graphs.
    pub kernels: u64,
    /// Graphs, each a whole pass.
    pub graphs: u64,
}

/// SMs that matrix products leave to NCCL while it sums over ranks. cuBLASLt's kernels for Hopper run a
/// block on every SM at once. If NCCL occupies an SM, its block runs after all others, and the product
/// takes up to twice as long.
#[derive(Default)]
pub struct SmMargin {
    /// SMs for products; None for all.
    rest: Option<u32>,
    /// Sums that were begun and not yet awaited, in the order in which the host enqueues. The time at
    /// which the GPU ends them differs between runs, and the SMs of a product may change its bits.
    sums: AtomicUsize,
}

impl SmMargin {
    /// Margin on a GPU with `sms` SMs; 0 for none.
    pub fn new(margin: u32, sms: u32) -> SmMargin {
        let rest = (margin > 0).then(|| sms.checked_sub(margin).expect("some SMs remain"));
        SmMargin { rest, sums: AtomicUsize::new(0) }
    }

    pub fn begin_sum(&self) {
        self.sums.fetch_add(1, Relaxed);
    }

    pub fn end_sum(&self) {
        self.sums.fetch_sub(1, Relaxed);
    }

    /// SMs of a product that is enqueued now; None for all.
    pub fn product_sms(&self) -> Option<u32> {
        self.rest.filter(|_| self.sums.load(Relaxed) > 0)
    }
}

/// Number of streams of asynchronous messages: two kinds, each sent and received.
pub const MESSAGE_STREAMS: usize = 4;

/// One GPU, its context and its streams.
pub struct Device {
    pub api: Api,
    /// `cuFuncGetParamInfo`, which drivers have since CUDA 12.4.
    pub param_info: Option<Symbol>,
    /// `cuTensorMapEncodeTiled`, which drivers have since CUDA 12.0.
    pub encode_tiled: Option<Symbol>,
    /// Bytes of dynamic shared memory that a block may be allowed: 227 KiB on Hopper, 163 on the
    /// A100, 99 on GPUs of compute capability 8.6 and 8.9.
    pub shared_memory: usize,
    id: CUdevice,
    context: CUcontext,
    /// Whether a thread that waits for the GPU sleeps; otherwise it polls on its core.
    pub(super) blocking: bool,
    /// Stream of all ops and of blocking collectives.
    pub stream: CUstream,
    /// Stream of asynchronous collectives.
    pub comm_stream: CUstream,
    /// Stream of asynchronous collectives that are awaited within the same layer.
    pub layer_stream: CUstream,
    /// Streams of asynchronous messages: one per kind that must not wait for another.
    pub message_streams: [CUstream; MESSAGE_STREAMS],
    /// Streams of copies that overlap with ops: to the device, and to the host.
    pub h2d_stream: CUstream,
    pub d2h_stream: CUstream,
    /// Whether passes that repeat become CUDA graphs; off after the first capture that fails.
    pub graphs: AtomicBool,
    /// Groups of several ranks whose collectives a graph may hold.
    pub graph_groups: usize,
    /// Whether `stream` is being captured: what is enqueued becomes part of a graph and does not
    /// run.
    pub(super) capturing: AtomicBool,
    pub(super) launched: [AtomicU64; 2],
    pub sm_margin: SmMargin,
    /// Whether products of 8-bit floats in forward sum with 14 bits.
    pub fast_fp8: bool,
    /// Observer of each launch of a graph with collectives.
    pub observed: Observed,
    pub(super) launches: Launches,
    /// The first failure; nothing is enqueued afterwards.
    failure: Mutex<Option<String>>,
}

// SAFETY: the driver may be called from any thread that binds the context first, as `call` does. What
// is not a handle of the driver or a constant is atomic, or behind a lock.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the GPU with that number and creates its streams. `blocking`: threads sleep while they wait for it.
    pub fn open(
        library: &Library,
        api: Api,
        ordinal: usize,
        blocking: bool,
    ) -> Result<Device, String> {
        let mut device = Device {
            api,
            param_info: library.symbol("cuFuncGetParamInfo"),
            encode_tiled: library.symbol("cuTensorMapEncodeTiled"),
            shared_memory: 0,
            id: 0,
            context: null_mut(),
            blocking,
            stream: null_mut(),
            comm_stream: null_mut(),
            layer_stream: null_mut(),
            message_streams: [null_mut(); MESSAGE_STREAMS],
            h2d_stream: null_mut(),
            d2h_stream: null_mut(),
            graphs: AtomicBool::new(true),
            graph_groups: 1,
            capturing: AtomicBool::new(false),
            launched: Default::default(),
            sm_margin: SmMargin::default(),
            fast_fp8: false,
            launches: Launches::default(),
            observed: Observed::default(),
            failure: Mutex::default(),
        };
        let count = device.count()?;
        if ordinal >= count {
            return Err(format!("GPU {ordinal} is asked for, the machine has {count}"));
        }
        let mut id = 0;
        // SAFETY: the driver has started (`driver::version`); handles are written to live variables.
        unsafe {
            device
                .check("finding the GPU", call!(device.api, cuDeviceGet(&mut id, ordinal as _)))?;
            device.id = id;
            let waits =
                if blocking { Waits::CU_CTX_SCHED_BLOCKING_SYNC } else { Waits::CU_CTX_SCHED_AUTO };
            let code = call!(device.api, cuDevicePrimaryCtxSetFlags_v2(id, waits as u32));
            device.check("setting how threads wait for the GPU", code)?;
            let mut context = null_mut();
            let code = call!(device.api, cuDevicePrimaryCtxRetain(&mut context, id));
            device.check("opening the GPU", code)?;
            device.context = context;
            device.check("opening the GPU", call!(device.api, cuCtxSetCurrent(context)))?;
        }
        let shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        device.shared_memory = device.attribute(shared, "its shared memory")? as usize;
        device.stream = device.new_stream(false)?;
        device.comm_stream = device.new_stream(true)?;
        device.layer_stream = device.new_stream(true)?;
        for number in 0..MESSAGE_STREAMS {
            device.message_streams[number] = device.new_stream(true)?;
        }
        device.h2d_stream = device.new_stream(false)?;
        device.d2h_stream = device.new_stream(false)?;
        Ok(device)
    }

    /// Whether threads sleep while they wait for the GPU, as reported by the driver.
    pub fn waits_block(&self) -> bool {
        let mut flags = 0;
        let mut active = 0;
        // SAFETY: two ints are written to the live variables; `id` is a device of the driver.
        self.call("asking how threads wait", |api| unsafe {
            call!(api, cuDevicePrimaryCtxGetState(self.id, &mut flags, &mut active))
        });
        flags & Waits::CU_CTX_SCHED_BLOCKING_SYNC as u32 != 0
    }

    /// GPUs that the driver shows to this process.
    fn count(&self) -> Result<usize, String> {
        let mut count = 0;
        // SAFETY: an int is written to the live variable.
        let code = unsafe { call!(self.api, cuDeviceGetCount(&mut count)) };
        self.check("counting GPUs", code).map(|()| count as usize)
    }

    pub fn identity(&self) -> Result<Identity, String> {
        let mut name = [0 as c_char; 128];
        let mut bus = [0 as c_char; 32];
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: at most 128 and 32 bytes are written to the buffers, which have as many, and 16 to the
        // UUID; `id` is a device of the driver.
        unsafe {
            let code = call!(self.api, cuDeviceGetName(name.as_mut_ptr(), 128, self.id));
            self.check("naming the GPU", code)?;
            let code = call!(self.api, cuDeviceGetPCIBusId(bus.as_mut_ptr(), 32, self.id));
            self.check("finding the GPU's slot", code)?;
            let code = call!(self.api, cuDeviceGetUuid_v2(&mut uuid, self.id));
            self.check("telling the GPU from others", code)?;
        }
        // SAFETY: on success, as here, the driver has ended each string with a NUL within its buffer.
        let text = |bytes: &[c_char]| unsafe { CStr::from_ptr(bytes.as_ptr()) };
        let text = |bytes: &[c_char]| text(bytes).to_string_lossy().into_owned();
        let parts = [0..4, 4..6, 6..8, 8..10, 10..16];
        let hex = |part: std::ops::Range<usize>| {
            uuid.bytes[part]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        Ok(Identity {
            ordinal: self.id as usize,
            shown: self.count()?,
            name: text(&name),
            bus: text(&bus),
            uuid: format!("GPU-{}", parts.map(hex).join("-")),
        })
    }

    /// Compute capability times ten.
    pub fn capability(&self) -> Result<i32, String> {
        let [major, minor] = [
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ]
        .map(|which| self.attribute(which, "its compute capability"));
        Ok(10 * major? + minor?)
    }

    /// Number of SMs.
    pub fn multiprocessors(&self) -> Result<u32, String> {
        let count = Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        self.attribute(count, "counting its SMs")
            .map(|count| count.max(0) as u32)
    }

    fn attribute(&self, which: Attribute, doing: &str) -> Result<i32, String> {
        let mut value = 0;
        // SAFETY: an int is written to the live variable; `id` is a device of the driver.
        let code = unsafe { call!(self.api, cuDeviceGetAttribute(&mut value, which, self.id)) };
        self.check(doing, code).map(|()| value)
    }

    /// Free and total bytes of memory.
    pub fn memory(&self) -> (usize, usize) {
        let mut free = 0;
        let mut total = 0;
        // SAFETY: two sizes are written to the live variables.
        self.call("asking for free memory", |api| unsafe {
            call!(api, cuMemGetInfo_v2(&mut free, &mut total))
        });
        (free, total)
    }

    /// Calls the driver, from any thread, unless the device has failed; an error is a failure.
    pub fn call(&self, doing: &str, with: impl FnOnce(&Api) -> Code) {
        if self.failed() {
            return;
        }
        let code = self.try_call(with);
        if code != 0 {
            self.fail_with(doing, code);
        }
    }

    /// As `call`, for a caller that handles the code.
    pub fn try_call(&self, with: impl FnOnce(&Api) -> Code) -> Code {
        // SAFETY: `open` retained the context, which `drop` releases.
        match unsafe { call!(self.api, cuCtxSetCurrent(self.context)) } {
            0 => with(&self.api),
            code => code,
        }
    }

    /// Whether what is enqueued becomes part of a graph.
    pub fn is_capturing(&self) -> bool {
        self.capturing.load(Relaxed)
    }

    /// Counts a kernel or a product that was launched by itself.
    pub fn count_kernel(&self) {
        if !self.is_capturing() {
            self.launched[0].fetch_add(1, Relaxed);
        }
    }

    pub fn launched(&self) -> Launched {
        let [kernels, graphs] = self.launched.each_ref().map(|count| count.load(Relaxed));
        Launched { kernels, graphs }
    }

    /// Latches a failure; the first one is kept.
    pub fn fail(&self, what: String) {
        self.failing().get_or_insert(what);
    }

    pub(super) fn fail_with(&self, doing: &str, code: Code) {
        let more = if CONTEXT_LOST.contains(&code) {
            "; `dmesg` on the node may have an NVRM: Xid that says why"
        } else {
            ""
        };
        self.fail(format!("{doing}: {}{more}", self.error(code)));
    }

    pub fn failed(&self) -> bool {
        self.failing().is_some()
    }

    pub fn failure(&self) -> Option<String> {
        self.failing().clone()
    }

    /// Takes the failure of a capture: nothing of it ran, so the device remains usable.
    pub fn take_failure(&self) -> Option<String> {
        self.failing().take()
    }

    fn failing(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock()
    }

    pub(super) fn check(&self, doing: &str, code: Code) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(format!("{doing}: {}", self.error(code))) }
    }

    /// Explanation of a code, in the driver's words.
    pub fn error(&self, code: Code) -> String {
        explain(&self.api, code)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the streams and the context are null, or those that `open` made: this is their only
        // owner, and all that used the streams holds the device (`Arc`), so it is gone.
        unsafe {
            call!(self.api, cuCtxSetCurrent(self.context));
            let collectives = [self.comm_stream, self.layer_stream];
            let streams = [self.stream, self.h2d_stream, self.d2h_stream];
            let streams = streams
                .into_iter()
                .chain(collectives)
                .chain(self.message_streams);
            for stream in streams.filter(|s| !s.is_null()) {
                call!(self.api, cuStreamDestroy_v2(stream));
            }
            if !self.context.is_null() {
                call!(self.api, cuDevicePrimaryCtxRelease_v2(self.id));
            }
        }
    }
}
