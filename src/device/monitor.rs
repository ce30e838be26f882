//! Identity and state of a GPU of any vendor.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Name and place of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Index among the GPUs that the driver shows to this process.
    pub ordinal: usize,
    /// Number of GPUs that the driver shows.
    pub shown: usize,
    pub name: String,
    /// "0000:3B:00.0".
    pub bus: String,
    /// In hexadecimal, as nvidia-smi prints it.
    pub uuid: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} (PCI {}, {})", self.ordinal, self.bus, self.uuid)
    }
}

/// Readings of one GPU, each None if it does not report the value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Health {
    /// Clock of the multiprocessors, MHz.
    pub gpu_mhz: Option<u32>,
    /// Power, W.
    pub gpu_watts: Option<f64>,
    /// Temperature of the chip, °C.
    pub gpu_celsius: Option<u32>,
}

/// Memory of one GPU in bytes, each None if it does not report the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// Memory of this process: its allocations, the driver's context, buffers of NCCL.
    pub process: Option<u64>,
    /// Memory that the driver and the firmware keep for themselves.
    pub driver: Option<u64>,
}

/// Faults that a GPU reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// ECC errors since the driver was loaded that could not be corrected.
    pub uncorrected: u64,
    /// Whether rows or pages of its memory will be replaced when it is reset.
    pub rows_pending: bool,
    /// Whether they could not be replaced: no spare ones remain.
    pub remap_failed: bool,
    /// Whether the GPU no longer responds.
    pub lost: bool,
    /// NVIDIA's Xid errors since the last reading, in their order.
    pub xids: Vec<u64>,
}

/// Monitor of one GPU, by its vendor's management library.
pub trait Monitor: Send {
    /// Reads the present state; some milliseconds.
    fn health(&self) -> Health;
    /// Reads the present memory; some milliseconds.
    fn memory(&self) -> DeviceMemory;
    /// Joules of the GPU since its driver was loaded; None if it does not count them.
    fn energy(&self) -> Option<f64>;
    /// Reads the present faults; some milliseconds.
    fn faults(&self) -> Faults;
}
