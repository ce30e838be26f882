//! Table of devices and their machines (`hardware.yaml`).

use super::parts::{Part, PartSeconds};
use super::rings;
use base::Problems;
use base::busy::Busy;
use device::{ATTENTION, ATTENTION_BACKWARD, FP8_PRODUCT, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Row of the local CPU.
pub const CPU: &str = "cpu";

/// Row of the table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    pub name: String,
    /// Names in tables of measured runs.
    #[serde(default)]
    pub also: Vec<String>,
    pub about: String,
    /// Machines of alike processors, which share what is learned of a program.
    pub family: String,
    /// Cluster, if several rows are of one.
    #[serde(default)]
    pub site: Option<String>,
    /// Peak of one device, dense, in 16 bits.
    pub peak_tflops: f64,
    /// Peak TFLOP/s in 8-bit and in 4-bit floats; 0 if unsupported.
    #[serde(default)]
    pub fp8_tflops: f64,
    #[serde(default)]
    pub fp4_tflops: f64,
    /// Whether its matrix units have bf16; all have fp16.
    #[serde(default = "yes")]
    pub bf16: bool,
    /// Bandwidth of one device's memory.
    pub hbm_gb_s: f64,
    pub memory_gib: f64,
    /// Memory of a process before it allocates anything (CUDA context).
    pub context_mib: f64,
    /// Number of multiprocessors, among which a product's tiles are divided.
    pub units: usize,
    /// Share of the peak that gptrain's products reach: of large ones, and the smallest side of those
    /// that reach half of it.
    #[serde(default = "gpu_products")]
    pub product_share: f64,
    #[serde(default = "gpu_half_side")]
    pub product_half_side: f64,
    /// Shares of the peak that attention reaches, forward and backward.
    #[serde(default = "gpu_attention")]
    pub attention_shares: [f64; 2],
    /// Share of the memory's bandwidth that element-wise ops reach.
    #[serde(default = "gpu_memory")]
    pub memory_share: f64,
    /// Time of a launch, on a GPU within a graph.
    #[serde(default = "gpu_launch")]
    pub launch_us: f64,
    /// Devices per node.
    pub per_node: usize,
    /// Bandwidth and size of the memory of a node's processors.
    pub host_gb_s: f64,
    pub host_gib: f64,
    /// Bandwidth between a device and its host, per direction.
    pub link_gb_s: f64,
    /// Bandwidth between the devices of a node, per device and direction.
    pub bus_gb_s: f64,
    /// Number of devices that such links connect; 0 for those of a node.
    #[serde(default)]
    pub link_domain: usize,
    /// Bandwidth of all adapters of a node, per direction.
    pub network_gb_s: f64,
    /// Share of its adapters' bandwidth that a ring of replicas over nodes reaches.
    #[serde(default = "one")]
    pub ring_share: f64,
    /// Price of one device for one hour, in dollars.
    pub price: f64,
    /// Relative variation of the time of the same run between days.
    pub scatter: f64,
    /// Whether launches of other programs wait for the previous kernel.
    #[serde(default)]
    pub blocking: bool,
    /// Prefix of the periods of measured runs on this machine.
    #[serde(default)]
    pub periods: Vec<String>,
    /// Prefixes of those in which launches did not wait.
    #[serde(default)]
    pub async_periods: Vec<String>,
    /// Row of the table from which a machine of the user's own differs; not in the table.
    #[serde(skip)]
    pub measured_as: Option<String>,
    /// Measured links; not in the table.
    #[serde(skip)]
    pub links: Links,
    /// Devices of the measurements of gptrain; 0 without any; not in the table.
    #[serde(skip)]
    pub measured_devices: usize,
    /// Factor of an op over its seconds by the shares of peak and bandwidth, by name; 1 without an entry.
    /// In f32, and with activations of 16 bits.
    #[serde(default)]
    pub ops: BTreeMap<String, f64>,
    #[serde(default)]
    pub ops_16: BTreeMap<String, f64>,
    /// Ratio of each part's seconds to the planned ones; not in the table.
    #[serde(skip, default = "as_planned")]
    pub parts: PartSeconds,
    /// Ratio of a real run's step time to the planned one; not in the table.
    #[serde(skip, default = "one")]
    pub slowdown: f64,
    /// Half the plan's relative error without variation between days; not in the table.
    #[serde(skip, default = "unmeasured")]
    pub uncertainty: f64,
    /// Whether it is the local CPU, which all ranks share as threads; not in the table.
    #[serde(skip)]
    pub is_local: bool,
    /// Cores of the local CPU that other programs keep busy; not in the table.
    #[serde(skip)]
    pub busy: Busy,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

/// Shares of a GPU are a forecast from data sheets and other programs' kernels: gptrain has not run on
/// a GPU. With these two, products with a smallest side of 768, 1,600 and 4,096 reach 0.61, 0.67 and
/// 0.71 of the peak, as cuBLAS does.
fn gpu_products() -> f64 {
    0.74
}

fn gpu_half_side() -> f64 {
    163.0
}

/// With `mma`, which runs by default.
fn gpu_attention() -> [f64; 2] {
    [0.25, 0.15]
}

/// Shares of attention with `GPTRAIN_ATTENTION=wgmma`, on Hopper.
pub const WGMMA: [f64; 2] = [0.40, 0.30];

fn gpu_memory() -> f64 {
    0.84
}

fn gpu_launch() -> f64 {
    1.25
}

/// Share of its bandwidth that passes over the host's memory reach.
pub const HOST_SHARE: f64 = 0.7;

/// Share of the 16-bit products' share that 8-bit products reach of their own peak.
const FP8_SHARE: f64 = 0.77;

/// Shares of a device's peak and of its memory's bandwidth that ops reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    pub products: f64,
    /// Smallest side of a product that reaches half of it.
    pub half_side: f64,
    /// Forward and backward.
    pub attention: [f64; 2],
    pub memory: f64,
}

impl Shares {
    /// As the data sheet says.
    pub const ALL: Shares =
        Shares { products: 1.0, half_side: 0.0, attention: [1.0; 2], memory: 1.0 };

    /// Shares of each of so many ranks on one device.
    pub fn divide_among(self, ranks: f64) -> Shares {
        Shares {
            products: self.products / ranks,
            half_side: self.half_side,
            attention: self.attention.map(|share| share / ranks),
            memory: self.memory / ranks,
        }
    }
}

fn as_planned() -> PartSeconds {
    [1.0; Part::COUNT]
}

/// Half the error bar for a device without measurements of gptrain. The bar is 65 %: nine in ten measured
/// steps of other programs are within it of an estimate by data sheets alone (benches/LOG.md).
pub const UNMEASURED: f64 = 0.325;

fn unmeasured() -> f64 {
    UNMEASURED
}

/// Half the error bar for a device whose products and memory were measured.
pub const MEASURED: f64 = 0.1;

/// Measured links; None for those of the data sheet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Links {
    /// Link between the devices of a node.
    pub bus: Option<Link>,
    /// Link between devices of different nodes.
    pub network: Option<Link>,
    /// Link of a device in a ring of replicas over nodes, and the number of those nodes.
    pub ring: Option<(Link, usize)>,
}

/// Link on which n bytes take latency + n/bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    pub latency_us: f64,
    /// Bandwidth of a device, in one direction.
    pub gb_s: f64,
}

/// Share of a link's data sheet bandwidth that messages reach.
const LINK_SHARE: f64 = 0.7;

/// Seconds above which training on the local CPU is probably unintended.
const LONG_HERE: f64 = 86400.0;

impl Hardware {
    /// Row for the rest of the process: a command plans once, and every copy of a setup points at its
    /// hardware.
    pub fn leak(self) -> &'static Hardware {
        Box::leak(Box::new(self))
    }

    /// Machine whose measured runs correct a prediction for this one.
    pub fn measured_as(&self) -> &str {
        self.measured_as.as_deref().unwrap_or(&self.name)
    }

    /// Cluster on which it was measured.
    pub fn site(&self) -> &str {
        self.site.as_deref().unwrap_or(self.measured_as())
    }

    /// Whether launches of measured runs in this period waited for the kernel before.
    pub fn waited(&self, period: &str) -> bool {
        let mut others = self.async_periods.iter();
        self.blocking && !others.any(|begin| period.starts_with(begin))
    }

    /// Whether another machine is at least as good in every column of speed.
    pub fn is_exceeded_by(&self, other: &Hardware) -> bool {
        let columns = |hw: &Hardware| {
            [
                hw.peak_tflops,
                hw.hbm_gb_s,
                hw.memory_gib,
                hw.bus_gb_s,
                hw.network_gb_s,
                hw.ring_share,
                hw.per_node as f64,
                hw.link_domain.max(hw.per_node) as f64,
                f64::from(u8::from(!hw.blocking)),
            ]
        };
        self.name != other.name
            && columns(self)
                .iter()
                .zip(columns(other))
                .all(|(a, b)| *a <= b)
    }

    /// Notes on the basis of a plan for `program` on such a device, whose run takes so many seconds.
    pub fn notes(&self, program: &str, seconds: f64) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_local && seconds > LONG_HERE {
            notes.push(
                "This is the processor of this machine; for GPUs: --hardware h100-80g (see \
                 --list-hardware)."
                    .to_string(),
            );
        }
        notes.extend(self.busy_note());
        if let Some(row) = &self.measured_as {
            notes.push(format!("The machine is {row} with columns of its own."));
        }
        if program == "gptrain" && self.is_unmeasured() {
            notes.push(format!(
                "gptrain has not run on a GPU: the plan for {} is a model's forecast, not measured.",
                self.name
            ));
        }
        notes
    }

    /// Note that other programs run on the local CPU.
    fn busy_note(&self) -> Option<String> {
        let Busy { busy, processors } = self.busy;
        self.busy.exceeds_idle().then(|| {
            format!(
                "This machine is busy: other programs keep {busy:.1} of its {processors:.0} \
                 processors. The plan is for an idle one."
            )
        })
    }

    /// Whether there is no measured run of gptrain on such a device, so that the data sheet is used.
    pub fn is_unmeasured(&self) -> bool {
        !self.is_local && self.uncertainty >= unmeasured()
    }

    pub fn shares(&self) -> Shares {
        Shares {
            products: self.product_share,
            half_side: self.product_half_side,
            attention: self.attention_shares,
            memory: self.memory_share,
        }
    }

    /// Seconds of an op: the longer of its FLOPs and its bytes, at these shares of the peak and of the
    /// bandwidth. A product with smallest side n takes 1 + half_side/n times as long as at the full
    /// share. Products of 8-bit floats use their own peak, if the table has it.
    pub fn seconds(&self, op: &str, work: &Work, shares: Shares) -> f64 {
        let (peak, share) = match op {
            FP8_PRODUCT if self.fp8_tflops > 0.0 => (self.fp8_tflops, FP8_SHARE * shares.products),
            ATTENTION => (self.peak_tflops, shares.attention[0]),
            ATTENTION_BACKWARD => (self.peak_tflops, shares.attention[1]),
            _ => (self.peak_tflops, shares.products),
        };
        let flops = work.flops + shares.half_side * work.flops_by_side;
        let rate = peak * 1e12 * share;
        let bandwidth = self.hbm_gb_s * 1e9 * shares.memory;
        let factor = self.ops.get(op).copied().unwrap_or(1.0);
        factor * (flops / rate).max(work.bytes / bandwidth)
    }

    /// Link of a device to another of its node, or of another node, if so many groups of the node use its
    /// adapters at once.
    pub fn link(&self, in_node: bool, groups: f64) -> Link {
        let (measured, sheet) = if in_node {
            (self.links.bus, self.bus_gb_s)
        } else {
            (self.links.network, self.bus_gb_s.min(self.network_gb_s / groups))
        };
        measured.unwrap_or(Link { latency_us: 0.0, gb_s: sheet * LINK_SHARE })
    }

    /// Link of a device to the next in a ring of replicas over so many nodes, if so many groups of a node use
    /// its adapters at once: the measured one, or `ring_share` of the adapters; slower by contention.
    pub fn ring_link(&self, groups: f64, nodes: usize) -> Link {
        let slower = |link: Link, measured: usize| {
            let times = rings::contention(nodes) / rings::contention(measured.max(1));
            Link { gb_s: link.gb_s * times.min(1.0), ..link }
        };
        match self.links {
            Links { ring: Some((link, measured)), .. } => slower(link, measured),
            Links { network: Some(link), .. } => slower(link, 1),
            _ => {
                let share = (self.ring_share / LINK_SHARE).min(1.0);
                let link = self.link(false, groups);
                let ring = share * LINK_SHARE * self.network_gb_s / groups;
                slower(Link { gb_s: link.gb_s.min(ring), ..link }, 1)
            }
        }
    }

    /// Whether rings of replicas over nodes are slower than their adapters, by the table or a setting.
    pub fn has_slow_rings(&self) -> bool {
        let links = self.links;
        self.ring_share < LINK_SHARE && links.ring.is_none() && links.network.is_none()
    }
}

static TABLE: LazyLock<Vec<Hardware>> = LazyLock::new(|| {
    serde_saphyr::from_str(include_str!("hardware.yaml")).expect("hardware.yaml is well-formed")
});

pub fn table() -> &'static [Hardware] {
    &TABLE
}

/// Former rows: the row that replaces each, and its setting.
pub const FORMER: &[(&str, &str, &str)] =
    &[("jean-zay-a100-async", "jean-zay-a100", "hardware.blocking=false")];

/// Row with that name, or the only one whose name begins with it.
pub fn find(name: &str, place: &str) -> Result<&'static Hardware, Problems> {
    let names = |rows: &[&Hardware]| {
        rows.iter()
            .map(|h| h.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let rows: Vec<&'static Hardware> = TABLE.iter().collect();
    let name = name.to_ascii_lowercase();
    if let Some((_, row, set)) = FORMER.iter().find(|(former, ..)| *former == name) {
        return Err(Problems::one(
            place,
            format!("`{name}` is no longer a machine: it is {row} with other settings"),
            format!("take {row} with `--set {set}`; in a table of runs, a column `blocking` of 0"),
        ));
    }
    let alike: Vec<&'static Hardware> = rows
        .iter()
        .copied()
        .filter(|h| {
            let rest = h.name.strip_prefix(&*name);
            rest.is_some_and(|rest| rest.starts_with('-') && !name.is_empty())
        })
        .collect();
    match (
        rows.iter()
            .find(|h| h.name == name || h.also.contains(&name)),
        &alike[..],
    ) {
        (Some(row), _) => Ok(row),
        (None, [row]) => Ok(row),
        (None, []) => Err(Problems::one(
            place,
            format!("unknown hardware `{name}`"),
            format!("take one of {}, or a YAML file", names(&rows)),
        )),
        (None, several) => Err(Problems::one(
            place,
            format!("hardware `{name}` is {} machines", several.len()),
            format!("take one of {}", names(several)),
        )),
    }
}

/// Machine of a measured run: the one that its period names, else the row `name`.
pub fn for_run(name: &str, period: &str) -> Result<&'static Hardware, Problems> {
    TABLE
        .iter()
        .find(|row| row.periods.iter().any(|begin| period.starts_with(begin)))
        .map_or_else(|| find(name, "hardware"), Ok)
}

#[test]
fn a_machine_is_found_by_the_beginning_of_its_name() {
    let name = |name: &str| find(name, "--hardware").map(|h| h.name.clone());
    assert_eq!(name("H100").unwrap(), "h100-80g");
    assert_eq!(name("cpu").unwrap(), "cpu");
    let two = name("a100").unwrap_err().to_string();
    assert!(two.contains("is 2 machines") && two.contains("a100-40g, a100-80g"), "{two}");
    for unknown in ["h10", "", "h100-90g"] {
        assert!(
            name(unknown)
                .unwrap_err()
                .to_string()
                .contains("unknown hardware"),
            "{unknown}"
        );
    }
}

/// Products by their smallest side, attention by shares of its own, elements by bytes.
#[test]
fn ops_of_a_gpu_have_separate_shares() {
    let gpu = find("h200-141g", "test").unwrap();
    let share = |op: &str, side: f64, peak: f64| {
        let work = Work { calls: 1.0, flops: 1e12, bytes: 1.0, flops_by_side: 1e12 / side };
        1e12 / gpu.seconds(op, &work, gpu.shares()) / (peak * 1e12)
    };
    for (side, expected) in [(768.0, 0.61), (1600.0, 0.67), (4096.0, 0.71)] {
        let reached = share("gemm", side, gpu.peak_tflops);
        assert!((reached - expected).abs() < 0.005, "{reached} with {side}");
    }
    assert!((share(FP8_PRODUCT, 4096.0, gpu.fp8_tflops) - 0.548).abs() < 0.005);
    for (op, expected) in [(ATTENTION, 0.25), (ATTENTION_BACKWARD, 0.15)] {
        assert!((share(op, f64::INFINITY, gpu.peak_tflops) - expected).abs() < 1e-9, "{op}");
    }
    let moved = Work { bytes: 4800e9, ..Work::default() };
    assert!((gpu.seconds("layernorm", &moved, gpu.shares()) - 1.0 / 0.84).abs() < 1e-9);
}
