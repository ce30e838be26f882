//! Monitor of a GPU by NVIDIA's management library (NVML), which is part of the driver. A machine
//! without it, or a GPU that does not report a value, has no readings.
//!
//! The declarations are those of nvml.h: handles are pointers, results ints of which 0 is success.

use super::library::{Library, Symbol};
use crate::{DeviceMemory, Faults, Health, Monitor};
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;

type Handle = *mut c_void;

/// NVML_CLOCK_SM, NVML_TEMPERATURE_GPU.
const CLOCK_SM: c_int = 1;
const TEMPERATURE_GPU: c_int = 0;

/// NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError.
const UNCORRECTED: c_int = 1;
const VOLATILE: c_int = 0;
const XID: c_ulonglong = 8;

/// NVML_ERROR_GPU_IS_LOST.
const GPU_IS_LOST: c_int = 15;

/// nvmlEventData_t.
#[repr(C)]
struct EventData {
    gpu: Handle,
    kind: c_ulonglong,
    data: c_ulonglong,
    instances: [c_uint; 2],
}

/// nvmlMemory_v2_t.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// NVML_STRUCT_VERSION(Memory, 2).
const MEMORY_VERSION: c_uint = size_of::<MemoryInfo>() as c_uint | 2 << 24;

/// nvmlProcessInfo_v2_t.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    instances: [c_uint; 2],
}

/// Processes of a GPU that are read; it has one for each rank.
const MOST_PROCESSES: usize = 64;

/// NVML_VALUE_NOT_AVAILABLE, of a value of 64 bits.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

type ReadMemory = unsafe extern "C" fn(Handle, *mut MemoryInfo) -> c_int;
type ListProcesses = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;
type ReadEnergy = unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_int;
type CountEcc = unsafe extern "C" fn(Handle, c_int, c_int, *mut c_ulonglong) -> c_int;
type CountRows =
    unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint, *mut c_uint, *mut c_uint) -> c_int;
type WaitForEvent = unsafe extern "C" fn(Handle, *mut EventData, c_uint) -> c_int;

/// Functions that read faults, each None if this NVML lacks it.
struct Counters {
    ecc: Option<CountEcc>,
    rows: Option<CountRows>,
    pages: Option<unsafe extern "C" fn(Handle, *mut c_int) -> c_int>,
    /// Set that receives Xid errors, and the function that takes one from it.
    events: Option<(Handle, WaitForEvent)>,
}

/// Handle of one GPU, and the functions of NVML that read it.
pub struct NvmlMonitor {
    gpu: Handle,
    clock: unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> c_int,
    power: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
    temperature: unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> c_int,
    /// None if this NVML lacks the function.
    memory: Option<ReadMemory>,
    processes: Option<ListProcesses>,
    energy: Option<ReadEnergy>,
    counters: Counters,
    /// Never closed: NVML is in use to the end of the process.
    _library: Library,
}

// SAFETY: NVML may be called from any thread (nvml.h: "the library is thread-safe"); handles are valid
// until NVML is shut down, which gptrain never does.
unsafe impl Send for NvmlMonitor {}

impl NvmlMonitor {
    /// Opens the GPU with this UUID (`GPU-…`, also that of a slice of one, which NVML calls `MIG-…`).
    /// None if there is no NVML, or it has no such GPU.
    pub fn open(folders: &[PathBuf], uuid: &str) -> Option<NvmlMonitor> {
        let library = Library::open(folders, &["libnvidia-ml.so.1", "libnvidia-ml.so"]).ok()?;
        let symbol = |name: &str| library.symbol(name);
        let slice = CString::new(uuid.replacen("GPU-", "MIG-", 1)).ok()?;
        let uuid = CString::new(uuid).ok()?;
        // SAFETY: each symbol gets the type of the function of that name in nvml.h. The UUIDs end with a
        // NUL; the handle is written to the live variable.
        let monitor = unsafe {
            let init: unsafe extern "C" fn() -> c_int = symbol("nvmlInit_v2")?.cast();
            let find: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int =
                symbol("nvmlDeviceGetHandleByUUID")?.cast();
            let mut gpu = null_mut();
            let known = init() == 0
                && [uuid, slice]
                    .iter()
                    .any(|id| find(id.as_ptr(), &mut gpu) == 0);
            if !known {
                return None;
            }
            NvmlMonitor {
                gpu,
                clock: symbol("nvmlDeviceGetClockInfo")?.cast(),
                power: symbol("nvmlDeviceGetPowerUsage")?.cast(),
                temperature: symbol("nvmlDeviceGetTemperature")?.cast(),
                memory: symbol("nvmlDeviceGetMemoryInfo_v2").map(|found| found.cast()),
                processes: symbol("nvmlDeviceGetComputeRunningProcesses_v3")
                    .map(|found| found.cast()),
                energy: symbol("nvmlDeviceGetTotalEnergyConsumption").map(|found| found.cast()),
                counters: Counters::new(gpu, &symbol),
                _library: library,
            }
        };
        Some(monitor)
    }
}

impl NvmlMonitor {
    /// Bytes that the driver keeps for itself.
    fn driver_memory(&self) -> Option<u64> {
        let mut info = MemoryInfo { version: MEMORY_VERSION, ..MemoryInfo::default() };
        // SAFETY: the handle is NVML's; an nvmlMemory_v2_t, as `version` says, is written to the live
        // variable.
        let code = unsafe { self.memory?(self.gpu, &mut info) };
        (code == 0).then_some(info.reserved)
    }

    /// Bytes of this process. In a container NVML may list it by another number: then it is the only
    /// process, or unknown.
    fn process_memory(&self) -> Option<u64> {
        let mut listed = [ProcessInfo::default(); MOST_PROCESSES];
        let mut count = MOST_PROCESSES as c_uint;
        // SAFETY: the handle is NVML's; at most `count` of nvmlProcessInfo_v2_t are written to the
        // live array, which has so many, and their number to the live variable.
        let code = unsafe { self.processes?(self.gpu, &mut count, listed.as_mut_ptr()) };
        let listed = listed.get(..count as usize).filter(|_| code == 0)?;
        let ours = listed.iter().find(|info| info.pid == std::process::id());
        let only = listed.first().filter(|_| listed.len() == 1);
        let used = ours.or(only)?.used;
        (used != NOT_AVAILABLE).then_some(used)
    }
}

impl Monitor for NvmlMonitor {
    fn memory(&self) -> DeviceMemory {
        DeviceMemory { process: self.process_memory(), driver: self.driver_memory() }
    }

    fn energy(&self) -> Option<f64> {
        let mut millijoules = 0;
        // SAFETY: the handle is NVML's; an unsigned long long is written to the live variable.
        let code = unsafe { self.energy?(self.gpu, &mut millijoules) };
        (code == 0).then_some(millijoules as f64 / 1e3)
    }

    fn faults(&self) -> Faults {
        let gpu = self.gpu;
        let mut faults = Faults::default();
        let Counters { ecc, rows, pages, events } = &self.counters;
        let mut code = 0;
        if let Some(ecc) = ecc {
            let mut count = 0;
            // SAFETY: the handle is NVML's; an unsigned long long is written to the live variable.
            code = unsafe { ecc(gpu, UNCORRECTED, VOLATILE, &mut count) };
            faults.uncorrected = if code == 0 { count } else { 0 };
        }
        if let Some(rows) = rows {
            let [mut corrected, mut uncorrected, mut pending, mut failed] = [0; 4];
            // SAFETY: the handle is NVML's; unsigned ints are written to the live variables.
            let told =
                unsafe { rows(gpu, &mut corrected, &mut uncorrected, &mut pending, &mut failed) };
            faults.rows_pending = told == 0 && pending > 0;
            faults.remap_failed = told == 0 && failed > 0;
        }
        if let Some(pages) = pages {
            let mut pending = 0;
            // SAFETY: the handle is NVML's; an int is written to the live variable.
            faults.rows_pending |= unsafe { pages(gpu, &mut pending) } == 0 && pending > 0;
        }
        if let Some((set, wait)) = events {
            let mut event = EventData { gpu, kind: 0, data: 0, instances: [0; 2] };
            // SAFETY: the set is NVML's; an nvmlEventData_t is written to the live variable.
            while faults.xids.len() < MOST_XIDS && unsafe { wait(*set, &mut event, 0) } == 0 {
                faults
                    .xids
                    .extend((event.kind == XID).then_some(event.data));
            }
        }
        let mut mhz = 0;
        // SAFETY: the handle is NVML's; an unsigned int is written to the live variable.
        let clock = unsafe { (self.clock)(gpu, CLOCK_SM, &mut mhz) };
        faults.lost = [code, clock].contains(&GPU_IS_LOST);
        faults
    }

    fn health(&self) -> Health {
        let value = |read: &dyn Fn(*mut c_uint) -> c_int| {
            let mut value = 0;
            (read(&mut value) == 0).then_some(value)
        };
        // SAFETY: the handle is NVML's; `value` passes the address of an unsigned int.
        let power = |to: *mut c_uint| unsafe { (self.power)(self.gpu, to) };
        Health {
            // SAFETY: as for `power`.
            gpu_mhz: value(&|to| unsafe { (self.clock)(self.gpu, CLOCK_SM, to) }),
            gpu_watts: value(&power).map(|milliwatts| f64::from(milliwatts) / 1e3),
            // SAFETY: as for `power`.
            gpu_celsius: value(&|to| unsafe { (self.temperature)(self.gpu, TEMPERATURE_GPU, to) }),
        }
    }
}

/// Maximum Xid errors that are read at once: a broken GPU may report them without end.
const MOST_XIDS: usize = 64;

impl Counters {
    /// Functions for a GPU, whose Xid errors are recorded from now on.
    ///
    /// # Safety
    /// NVML is in use, and the GPU is one of its handles.
    unsafe fn new(gpu: Handle, symbol: &dyn Fn(&str) -> Option<Symbol>) -> Counters {
        // SAFETY: each symbol gets the type of the function of that name in nvml.h (`Counters`).
        unsafe {
            Counters {
                ecc: symbol("nvmlDeviceGetTotalEccErrors").map(|found| found.cast()),
                rows: symbol("nvmlDeviceGetRemappedRows").map(|found| found.cast()),
                pages: symbol("nvmlDeviceGetRetiredPagesPendingStatus").map(|found| found.cast()),
                events: Counters::events(gpu, symbol),
            }
        }
    }

    /// # Safety
    /// As `new`.
    unsafe fn events(
        gpu: Handle,
        symbol: &dyn Fn(&str) -> Option<Symbol>,
    ) -> Option<(Handle, WaitForEvent)> {
        let mut set = null_mut();
        // SAFETY: each symbol gets the type of the function of that name in nvml.h. The set is written to
        // the live variable; the GPU is one of NVML's handles.
        unsafe {
            let create: unsafe extern "C" fn(*mut Handle) -> c_int =
                symbol("nvmlEventSetCreate")?.cast();
            let register: unsafe extern "C" fn(Handle, c_ulonglong, Handle) -> c_int =
                symbol("nvmlDeviceRegisterEvents")?.cast();
            let wait = symbol("nvmlEventSetWait_v2")?.cast();
            let made = create(&mut set) == 0 && register(gpu, XID, set) == 0;
            made.then_some((set, wait))
        }
    }
}
