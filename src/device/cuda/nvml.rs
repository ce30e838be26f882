//! How a GPU fares: clock, power, temperature, as NVIDIA's management library (NVML) tells them. It
//! comes with the driver; a machine without it, or a GPU that does not say, has no readings.
//!
//! The declarations are those of nvml.h: handles are pointers, results ints of which 0 is success.

use super::library::{Library, Symbol};
use serde::{Deserialize, Serialize};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;

/// Readings of one GPU, each None where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Clock of the multiprocessors, MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_mhz: Option<u32>,
    /// Power, W.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_watts: Option<f64>,
    /// Temperature of the chip, °C.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_celsius: Option<u32>,
}

type Handle = *mut c_void;

/// NVML_CLOCK_SM, NVML_TEMPERATURE_GPU.
const CLOCK_SM: c_int = 1;
const TEMPERATURE_GPU: c_int = 0;

/// One GPU, as NVML knows it.
pub struct Monitor {
    gpu: Handle,
    clock: unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> c_int,
    power: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int,
    temperature: unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> c_int,
    /// Never closed: NVML is in use to the end of the process.
    _library: Library,
}

// SAFETY: NVML may be called by any thread (nvml.h: "the library is thread-safe").
unsafe impl Send for Monitor {}

impl Monitor {
    /// The GPU with this UUID (`GPU-…`); None where there is no NVML, or it does not know it.
    pub fn open(folders: &[PathBuf], uuid: &str) -> Option<Monitor> {
        let library = Library::open(folders, &["libnvidia-ml.so.1", "libnvidia-ml.so"]).ok()?;
        let symbol = |name: &str| -> Option<Symbol> { library.symbol(name) };
        let uuid = CString::new(uuid).ok()?;
        // SAFETY: each is the function of that name in nvml.h.
        let monitor = unsafe {
            let init: unsafe extern "C" fn() -> c_int = symbol("nvmlInit_v2")?.of_type();
            let find: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int =
                symbol("nvmlDeviceGetHandleByUUID")?.of_type();
            let mut gpu = null_mut();
            if init() != 0 || find(uuid.as_ptr(), &mut gpu) != 0 {
                return None;
            }
            Monitor {
                gpu,
                clock: symbol("nvmlDeviceGetClockInfo")?.of_type(),
                power: symbol("nvmlDeviceGetPowerUsage")?.of_type(),
                temperature: symbol("nvmlDeviceGetTemperature")?.of_type(),
                _library: library,
            }
        };
        Some(monitor)
    }

    /// What it says now; some milliseconds.
    pub fn read(&self) -> Health {
        let value = |read: &dyn Fn(*mut c_uint) -> c_int| {
            let mut value = 0;
            (read(&mut value) == 0).then_some(value)
        };
        // SAFETY: the handle is NVML's, the pointer one to an unsigned int.
        let power = |to: *mut c_uint| unsafe { (self.power)(self.gpu, to) };
        Health {
            // SAFETY: as above.
            gpu_mhz: value(&|to| unsafe { (self.clock)(self.gpu, CLOCK_SM, to) }),
            gpu_watts: value(&power).map(|milliwatts| f64::from(milliwatts) / 1e3),
            // SAFETY: as above.
            gpu_celsius: value(&|to| unsafe { (self.temperature)(self.gpu, TEMPERATURE_GPU, to) }),
        }
    }
}
