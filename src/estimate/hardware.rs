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
    /// What was measured of the links; not in the table.
    #[serde(skip)]
    pub links: Links,
}

/// Measured links. None: by the data sheet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Links {
    /// Between the devices of a node.
    pub bus: Option<Link>,
    /// Between devices of different nodes.
    pub network: Option<Link>,
}

/// n bytes take latency + n/bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub latency_us: f64,
    /// Of a device, in one direction.
    pub gb_s: f64,
}

/// The share of a link's data sheet that messages reach.
const LINK_SHARE: f64 = 0.7;

impl Hardware {
    /// The link of a device to another of its node, of so many devices, or of another node.
    pub fn link(&self, in_node: bool, per_node: usize) -> Link {
        let (measured, sheet) = match in_node {
            true => (self.links.bus, self.bus_gb_s),
            false => (self.links.network, self.network_gb_s / per_node as f64),
        };
        measured.unwrap_or(Link { latency_us: 0.0, gb_s: sheet * LINK_SHARE })
    }
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
