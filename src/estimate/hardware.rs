//! Devices and the machines they stand in: a table (`hardware.yaml`).

use crate::base::Problems;
use serde::Deserialize;
use std::sync::LazyLock;

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    pub name: String,
    pub about: String,
    /// Dense, in 16 bits, of one device.
    pub peak_tflops: f64,
    /// Of one device's memory.
    pub hbm_gb_s: f64,
    pub memory_gib: f64,
    /// Of a process, before it allocates anything (CUDA context).
    pub context_mib: f64,
    /// Multiprocessors, to which a product's tiles are dealt.
    pub units: usize,
    /// What gptrain's own kernels reach of the peak and of the memory, and what starting one costs.
    pub product_share: f64,
    pub memory_share: f64,
    pub launch_us: f64,
    /// Devices of a node.
    pub per_node: usize,
    /// Of the memory of a node's processors, and how much of it there is.
    pub host_gb_s: f64,
    pub host_gib: f64,
    /// Between a device and its host, per direction.
    pub link_gb_s: f64,
    /// Between the devices of a node, per device and direction.
    pub bus_gb_s: f64,
    /// Of all of a node's adapters, per direction.
    pub network_gb_s: f64,
    /// Of one device and hour, in dollars.
    pub price: f64,
    /// By what share the time of the same run differs from one day to another.
    pub scatter: f64,
}

static TABLE: LazyLock<Vec<Hardware>> = LazyLock::new(|| {
    serde_saphyr::from_str(include_str!("hardware.yaml")).expect("hardware.yaml is well-formed")
});

pub fn table() -> &'static [Hardware] {
    &TABLE
}

/// The row of that name.
pub fn find(name: &str, place: &str) -> Result<&'static Hardware, Problems> {
    let known = || TABLE.iter().map(|h| h.name.as_str()).collect::<Vec<_>>().join(", ");
    TABLE.iter().find(|h| h.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        Problems::one(
            place,
            format!("unknown hardware `{name}`"),
            format!("take one of {}", known()),
        )
    })
}
