//! Energy of the ranks' GPUs and of the processors of their nodes while they train.
//!
//! A GPU counts its energy itself (NVML, Volta and later); the power of one that does not is read every
//! second and summed. Processors count theirs in `/sys/class/powercap` (RAPL of Intel and AMD), which on
//! many machines is absent or may be read only by root. Processors are counted as a whole, including other
//! jobs of a shared node.

use anyhow::Result;
use base::{Count, Moment};
use device::Monitor;
use launch::Device;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Interval of readings. RAPL's counters start again at 0 after some minutes.
const INTERVAL: Duration = Duration::from_secs(1);

const JOULES_PER_KWH: f64 = 3.6e6;

/// Energy in joules since the start of this process, of one rank's GPU and node. Several ranks may share
/// either.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankEnergy {
    /// UUID of the GPU, and its energy if it reports it.
    pub gpu: Option<(String, f64)>,
    /// Number of the machine, and the energy of its processors if it is readable.
    pub cpu: Option<(u64, f64)>,
    pub machine: u64,
}

/// Energy of a run in kWh, each None if nothing reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Energy {
    pub gpu: Option<f64>,
    pub cpu: Option<f64>,
}

impl Energy {
    /// Energy of GPUs and processors.
    pub fn total(&self) -> Option<f64> {
        match (self.gpu, self.cpu) {
            (None, None) => None,
            (gpu, cpu) => Some(gpu.unwrap_or(0.0) + cpu.unwrap_or(0.0)),
        }
    }

    /// Kilograms of CO₂, with the g of CO₂ per kWh.
    pub fn co2_kg(&self, carbon: Option<f64>) -> Option<f64> {
        Some(self.total()? * carbon? / 1e3)
    }

    /// Sum with the energy of the run's earlier processes.
    fn after(self, before: Energy) -> Energy {
        let sum = |now: Option<f64>, before: Option<f64>| match (now, before) {
            (None, None) => None,
            (now, before) => Some(now.unwrap_or(0.0) + before.unwrap_or(0.0)),
        };
        Energy { gpu: sum(self.gpu, before.gpu), cpu: sum(self.cpu, before.cpu) }
    }
}

/// Meter of one rank.
pub struct EnergyMeter {
    sources: Arc<Mutex<Sources>>,
    /// Dropped with the meter, which ends its thread.
    _end: Option<Sender<()>>,
}

impl EnergyMeter {
    /// Starts a meter of a rank's GPU and node.
    pub fn start(device: &Device) -> Result<EnergyMeter> {
        let uuid = device.gpu().map(|gpu| gpu.uuid.clone());
        let gpu = uuid.zip(device.monitor());
        EnergyMeter::new(Sources::new(gpu, Path::new("/sys/class/powercap")))
    }

    fn new(sources: Sources) -> Result<EnergyMeter> {
        let measures = sources.gpu.is_some() || !sources.domains.is_empty();
        let sources = Arc::new(Mutex::new(sources));
        if !measures {
            return Ok(EnergyMeter { sources, _end: None });
        }
        let (end, ended) = channel::<()>();
        let read = sources.clone();
        base::threads::spawn("energy", move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                read.lock().read();
            }
        })?;
        Ok(EnergyMeter { sources, _end: Some(end) })
    }

    /// Energy until now.
    pub fn read(&self) -> RankEnergy {
        self.sources.lock().read()
    }
}

/// Counters of a rank's GPU and node.
struct Sources {
    gpu: Option<GpuSource>,
    domains: Vec<Domain>,
    machine: u64,
}

struct GpuSource {
    uuid: String,
    monitor: Box<dyn Monitor>,
    /// Counter at the start; None if the GPU has none, and its power is summed.
    counted_from: Option<f64>,
    /// Moment and power of the last reading.
    power: (Moment, f64),
    joules: f64,
}

/// Power domain of RAPL: a processor with its caches, or its memory.
struct Domain {
    folder: PathBuf,
    /// Microjoules at which the counter starts again.
    range: u64,
    last: u64,
    /// Microjoules since the start.
    sum: u64,
}

impl Sources {
    fn new(gpu: Option<(String, Box<dyn Monitor>)>, powercap: &Path) -> Sources {
        let gpu = gpu.and_then(|(uuid, monitor)| GpuSource::new(uuid, monitor));
        Sources { gpu, domains: domains(powercap), machine: comm::clock_id() }
    }

    fn read(&mut self) -> RankEnergy {
        let gpu = self.gpu.as_mut().map(|gpu| {
            gpu.read();
            (gpu.uuid.clone(), gpu.joules)
        });
        self.domains.iter_mut().for_each(Domain::read);
        let microjoules: u64 = self.domains.iter().map(|domain| domain.sum).sum();
        let is_counted = !self.domains.is_empty();
        let cpu = is_counted.then_some((self.machine, microjoules as f64 / 1e6));
        RankEnergy { gpu, cpu, machine: self.machine }
    }
}

impl GpuSource {
    /// None if the GPU reports neither energy nor power.
    fn new(uuid: String, monitor: Box<dyn Monitor>) -> Option<GpuSource> {
        let counted_from = monitor.energy();
        let power = match counted_from {
            Some(_) => 0.0,
            None => monitor.health().gpu_watts?,
        };
        let power = (Moment::now(), power);
        Some(GpuSource { uuid, monitor, counted_from, power, joules: 0.0 })
    }

    fn read(&mut self) {
        if let Some(from) = self.counted_from {
            // A reset of the GPU would start the counter again; then the last reading remains.
            if let Some(now) = self.monitor.energy() {
                self.joules = self.joules.max(now - from);
            }
            return;
        }
        let (since, before) = self.power;
        let watts = self.monitor.health().gpu_watts.unwrap_or(before);
        let now = Moment::now();
        self.joules += now.since(since).as_secs_f64() * 0.5 * (before + watts);
        self.power = (now, watts);
    }
}

/// Readable domains that count each joule once: processors (`package-0`), and memory (`dram`), which they
/// do not include. `psys` and the same counters by another way (`intel-rapl-mmio`) are left out.
fn domains(powercap: &Path) -> Vec<Domain> {
    let entries = fs::read_dir(powercap).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with("intel-rapl:")
        })
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders
        .into_iter()
        .filter_map(|folder| {
            let name = fs::read_to_string(folder.join("name")).ok()?;
            let counted = name.starts_with("package") || name.trim() == "dram";
            let last = counter(&folder, "energy_uj").filter(|_| counted)?;
            let range = counter(&folder, "max_energy_range_uj")?;
            Some(Domain { folder, range, last, sum: 0 })
        })
        .collect()
}

fn counter(folder: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    text.trim().parse().ok()
}

impl Domain {
    fn read(&mut self) {
        let Some(now) = counter(&self.folder, "energy_uj") else { return };
        let passed = now
            .checked_sub(self.last)
            .unwrap_or_else(|| now + self.range.saturating_sub(self.last));
        self.sum += passed;
        self.last = now;
    }
}

/// Energy of a run on rank 0: that of its earlier processes, and that of all ranks.
#[derive(Default)]
pub struct EnergySum {
    before: Energy,
    /// Whether the sources were printed.
    announced: bool,
}

impl EnergySum {
    pub fn new(before: Energy) -> EnergySum {
        EnergySum { before, announced: false }
    }

    /// Energy of the run, from the readings of all ranks.
    pub fn add(&mut self, ranks: &[RankEnergy]) -> Energy {
        let gpus: BTreeMap<&str, f64> = ranks
            .iter()
            .filter_map(|rank| rank.gpu.as_ref())
            .map(|(uuid, joules)| (uuid.as_str(), *joules))
            .collect();
        let machines: BTreeMap<u64, f64> = ranks.iter().filter_map(|rank| rank.cpu).collect();
        if !std::mem::replace(&mut self.announced, true) {
            let all = ranks.iter().map(|rank| (rank.machine, ()));
            let nodes = all.collect::<BTreeMap<_, _>>().len();
            announce(gpus.len(), machines.len(), nodes);
        }
        let kwh = |joules: f64| joules / JOULES_PER_KWH;
        let now = Energy {
            gpu: (!gpus.is_empty()).then(|| kwh(gpus.values().sum())),
            cpu: (!machines.is_empty()).then(|| kwh(machines.values().sum())),
        };
        now.after(self.before)
    }
}

/// Prints the sources of the energy, if there are any.
fn announce(gpus: usize, machines: usize, nodes: usize) {
    let gpus = (gpus > 0).then(|| Count(gpus as u64).with_noun("GPU"));
    let cpus = match machines {
        0 => None,
        all if all == nodes => Some("the processors of every node".to_string()),
        some => Some(format!("the processors of {some} of {nodes} nodes")),
    };
    let parts: Vec<String> = gpus.into_iter().chain(cpus).collect();
    if !parts.is_empty() {
        tracing::info!("energy is measured: {}", parts.join(" and "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{DeviceMemory, Faults, Health};

    /// Counter and power of a GPU.
    struct Readings {
        joules: Option<f64>,
        watts: Option<f64>,
    }

    /// GPU whose readings the test changes.
    #[derive(Clone)]
    struct Meter(Arc<Mutex<Readings>>);

    impl Monitor for Meter {
        fn health(&self) -> Health {
            Health { gpu_watts: self.0.lock().watts, ..Health::default() }
        }

        fn energy(&self) -> Option<f64> {
            self.0.lock().joules
        }

        fn memory(&self) -> DeviceMemory {
            DeviceMemory::default()
        }

        fn faults(&self) -> Faults {
            Faults::default()
        }
    }

    fn gpu(joules: Option<f64>, watts: Option<f64>) -> (Meter, Option<GpuSource>) {
        let meter = Meter(Arc::new(Mutex::new(Readings { joules, watts })));
        let source = GpuSource::new("GPU-1".into(), Box::new(meter.clone()));
        (meter, source)
    }

    #[test]
    fn a_gpu_with_a_counter_is_read_by_it_from_the_start_on() {
        let (meter, source) = gpu(Some(5e6), Some(1e9));
        let mut source = source.unwrap();
        source.read();
        assert_eq!(source.joules, 0.0);
        meter.0.lock().joules = Some(5e6 + 360.0);
        source.read();
        assert_eq!(source.joules, 360.0);
        for lost in [None, Some(1.0)] {
            meter.0.lock().joules = lost;
            source.read();
            assert_eq!(source.joules, 360.0, "what was counted remains");
        }
    }

    #[test]
    fn the_power_of_a_gpu_without_a_counter_is_summed_over_time() {
        let (meter, source) = gpu(None, Some(200.0));
        let mut source = source.unwrap();
        meter.0.lock().watts = Some(400.0);
        let begun = source.power.0;
        std::thread::sleep(Duration::from_millis(5));
        source.read();
        let seconds = source.power.0.since(begun).as_secs_f64();
        assert!(seconds > 0.0);
        assert_eq!(source.joules, seconds * 300.0, "the mean of both powers");
        assert!(gpu(None, None).1.is_none());
    }

    /// Folder of a power domain.
    fn domain(root: &Path, folder: &str, name: &str, microjoules: u64) {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        fs::write(folder.join("max_energy_range_uj"), "1000000000\n").unwrap();
        fs::write(folder.join("energy_uj"), format!("{microjoules}\n")).unwrap();
    }

    #[test]
    fn processors_and_memory_are_counted_once_and_over_the_end_of_a_counter() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        domain(root, "intel-rapl:0", "package-0", 900_000_000);
        domain(root, "intel-rapl:1", "package-1", 100);
        domain(root, "intel-rapl:0:0", "core", 5);
        domain(root, "intel-rapl:0:1", "dram", 0);
        domain(root, "intel-rapl:2", "psys", 7);
        domain(root, "intel-rapl-mmio:0", "package-0", 900_000_000);
        let mut sources = Sources::new(None, root);
        assert_eq!(sources.read().cpu.unwrap().1, 0.0);
        for folder in ["intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"] {
            domain(root, folder, "other", 999_999_999);
        }
        domain(root, "intel-rapl:0", "package-0", 200_000_000); // started again: 300 J
        domain(root, "intel-rapl:1", "package-1", 40_000_100);
        domain(root, "intel-rapl:0:1", "dram", 2_000_000);
        assert_eq!(sources.read().cpu.unwrap().1, 342.0);
        fs::remove_file(root.join("intel-rapl:1/energy_uj")).unwrap();
        domain(root, "intel-rapl:0:1", "dram", 3_000_000);
        assert_eq!(sources.read().cpu.unwrap().1, 343.0, "an unreadable counter adds nothing");
    }

    #[test]
    fn a_machine_without_readable_counters_measures_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Sources::new(None, &root.path().join("none")).read().cpu, None);
        // As for users other than root: there is a folder without a readable counter.
        domain(root.path(), "intel-rapl:0", "package-0", 1);
        fs::remove_file(root.path().join("intel-rapl:0/energy_uj")).unwrap();
        let mut sources = Sources::new(None, root.path());
        assert_eq!((sources.read().gpu, sources.read().cpu), (None, None));
        assert_eq!(EnergySum::default().add(&[sources.read()]).total(), None);
    }

    /// Three ranks on two nodes, of which two share a GPU and a node.
    #[test]
    fn shared_gpus_and_nodes_count_once_and_earlier_processes_are_added() {
        let rank = |gpu: &str, machine: u64| RankEnergy {
            gpu: Some((gpu.into(), 3.6e6)),
            cpu: Some((machine, 1.8e6)),
            machine,
        };
        let ranks = [rank("GPU-a", 1), rank("GPU-a", 1), rank("GPU-b", 2)];
        let energy = EnergySum::default().add(&ranks);
        assert_eq!(energy, Energy { gpu: Some(2.0), cpu: Some(1.0) });
        let before = Energy { gpu: Some(10.0), cpu: None };
        assert_eq!(EnergySum::new(before).add(&ranks).total(), Some(13.0));
        // A later process on machines without counters keeps what was counted.
        let none = EnergySum::new(before).add(&[RankEnergy::default()]);
        assert_eq!(none, before);
    }
}
