//! Devices and the machines they stand in: a table (`hardware.yaml`).

use super::parts::{Part, PartSeconds};
use base::Problems;
use base::busy::Busy;
use device::{FP8_PRODUCT, Work};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The row of the processor at hand.
pub const CPU: &str = "cpu";

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    pub name: String,
    /// Names in tables of measured runs.
    #[serde(default)]
    pub also: Vec<String>,
    pub about: String,
    /// Dense, in 16 bits, of one device.
    pub peak_tflops: f64,
    /// The same in 8 and in 4 bits; 0 where it has none.
    #[serde(default)]
    pub fp8_tflops: f64,
    #[serde(default)]
    pub fp4_tflops: f64,
    /// Whether its matrix units have bf16; all have fp16.
    #[serde(default = "yes")]
    pub bf16: bool,
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
    /// Devices that such links join; 0 where these are a node's.
    #[serde(default)]
    pub link_domain: usize,
    /// Of all of a node's adapters, per direction.
    pub network_gb_s: f64,
    /// What a ring of replicas over nodes reaches of the adapters that should be its own.
    #[serde(default = "one")]
    pub ring_share: f64,
    /// Of one device and hour, in dollars.
    pub price: f64,
    /// By what share the time of the same run differs from one day to another.
    pub scatter: f64,
    /// Launches of other programs wait for the kernel before.
    #[serde(default)]
    pub blocking: bool,
    /// How the periods of measured runs begin that ran on it.
    #[serde(default)]
    pub periods: Vec<String>,
    /// What was measured of the links; not in the table.
    #[serde(skip)]
    pub links: Links,
    /// Seconds of an op by what the shares of peak and bandwidth say, by name; 1 if it has no entry. In
    /// f32, and with activations of 16 bits.
    #[serde(default)]
    pub ops: BTreeMap<String, f64>,
    #[serde(default)]
    pub ops_16: BTreeMap<String, f64>,
    /// Seconds of each part of a step by the planner's figure for it; not in the table.
    #[serde(skip, default = "as_planned")]
    pub parts: PartSeconds,
    /// A step of a real run by the planner's figure for it; not in the table.
    #[serde(skip, default = "one")]
    pub slowdown: f64,
    /// Half of what the plan's time is off by even if nothing differs between days; not in the table.
    #[serde(skip, default = "unmeasured")]
    pub doubt: f64,
    /// The processor at hand, which all ranks share as threads; not in the table.
    #[serde(skip)]
    pub here: bool,
    /// Processors that other programs keep busy, of the processor at hand; not in the table.
    #[serde(skip)]
    pub busy: Busy,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

fn as_planned() -> PartSeconds {
    [1.0; Part::COUNT]
}

/// Of a device that nobody has measured gptrain on: half the 65 % that nine in ten of the measured steps
/// of other programs are from what data sheets alone say of them (benches/RESULTS.md).
fn unmeasured() -> f64 {
    0.325
}

/// Where its products and its memory were measured.
pub const MEASURED: f64 = 0.1;

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

/// Longer than this, training on the processor at hand is not what is wanted.
const LONG_HERE: f64 = 86400.0;

impl Hardware {
    /// What a plan on such a device rests on: of `program`, whose run takes so many seconds.
    pub fn notes(&self, program: &str, seconds: f64) -> Vec<String> {
        let mut notes = Vec::new();
        if self.here && seconds > LONG_HERE {
            notes.push(
                "This is the processor of this machine; for GPUs: --hardware h100-80g (see \
                 --list-hardware)."
                    .to_string(),
            );
        }
        notes.extend(self.busy_note());
        if program == "gptrain" && self.is_unmeasured() {
            notes.push(format!("gptrain has not been measured on {}: by data sheets.", self.name));
        }
        notes
    }

    /// That other programs run on the processor at hand.
    fn busy_note(&self) -> Option<String> {
        let Busy { busy, processors } = self.busy;
        self.busy.is_loud().then(|| {
            format!(
                "This machine is busy: other programs keep {busy:.1} of its {processors:.0} \
                 processors. The plan is for an idle one."
            )
        })
    }

    /// Whether no run of gptrain was measured on such a device: its plan is by the data sheet.
    pub fn is_unmeasured(&self) -> bool {
        !self.here && self.doubt >= unmeasured()
    }

    /// The longer of an op's FLOPs and its bytes, at these shares of the peak and of the bandwidth. The
    /// peak is that of 8-bit floats for products of those, where the table has it.
    pub fn seconds(&self, op: &str, work: &Work, [products, memory]: [f64; 2]) -> f64 {
        let fp8 = op == FP8_PRODUCT && self.fp8_tflops > 0.0;
        let peak = if fp8 { self.fp8_tflops } else { self.peak_tflops };
        let (rate, bandwidth) = (peak * 1e12, self.hbm_gb_s * 1e9);
        let factor = self.ops.get(op).copied().unwrap_or(1.0);
        factor * (work.flops / (rate * products)).max(work.bytes / (bandwidth * memory))
    }

    /// The link of a device to another of its node, or of another node, where so many groups of the node
    /// use its adapters at once.
    pub fn link(&self, in_node: bool, groups: usize) -> Link {
        let (measured, sheet) = match in_node {
            true => (self.links.bus, self.bus_gb_s),
            false => (self.links.network, self.bus_gb_s.min(self.network_gb_s / groups as f64)),
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

/// The row of that name, or the only one whose name begins so.
pub fn find(name: &str, place: &str) -> Result<&'static Hardware, Problems> {
    let names =
        |rows: &[&Hardware]| rows.iter().map(|h| h.name.as_str()).collect::<Vec<_>>().join(", ");
    let all: Vec<&'static Hardware> = TABLE.iter().collect();
    let name = name.to_ascii_lowercase();
    let begins = |h: &&'static Hardware| {
        let rest = h.name.strip_prefix(&*name);
        rest.is_some_and(|rest| rest.starts_with('-') && !name.is_empty())
    };
    let alike: Vec<&'static Hardware> = all.iter().copied().filter(begins).collect();
    match (all.iter().find(|h| h.name == name || h.also.contains(&name)), &alike[..]) {
        (Some(row), _) => Ok(row),
        (None, [row]) => Ok(row),
        (None, []) => {
            let remedy = format!("take one of {}", names(&all));
            Err(Problems::one(place, format!("unknown hardware `{name}`"), remedy))
        }
        (None, several) => {
            let what = format!("hardware `{name}` is {} machines", several.len());
            Err(Problems::one(place, what, format!("take one of {}", names(several))))
        }
    }
}

/// The machine of a measured run: the one that its period names, else the row called `name`.
pub fn of_run(name: &str, period: &str) -> Result<&'static Hardware, Problems> {
    let ran = |row: &&Hardware| row.periods.iter().any(|begin| period.starts_with(begin));
    TABLE.iter().find(ran).map_or_else(|| find(name, "hardware"), Ok)
}

#[test]
fn a_machine_is_found_by_the_beginning_of_its_name() {
    let name = |name: &str| find(name, "--hardware").map(|h| h.name.clone());
    assert_eq!(name("H100").unwrap(), "h100-80g");
    assert_eq!(name("cpu").unwrap(), "cpu");
    let two = name("a100").unwrap_err().to_string();
    assert!(two.contains("is 2 machines") && two.contains("a100-40g, a100-80g"), "{two}");
    for unknown in ["h10", "", "h100-90g"] {
        assert!(name(unknown).unwrap_err().to_string().contains("unknown hardware"), "{unknown}");
    }
}
