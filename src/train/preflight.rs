//! Checks before the first step: every node has the same datasets, and memory for all its ranks.

use super::resume;
use anyhow::Result;
use base::memory::HostMemory;
use base::{Bytes, Problems};
use checkpoint::DataId;
use device::{Backend, Gpu, Identity, MemoryKind, OutOfMemory};
use engine::{Engine, Groups, MemoryPlan};
use estimate::gptrain::advisor::Advisor;
use estimate::gptrain::dry_run::{self, MemoryLimits};
use estimate::machine;
use estimate::setup::{Program, Setup};
use launch::Device;
use launch::rank::Rank;
use manifest::{GradientHome, Loaded, Manifest};
use plan::grid::Axis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Fails unless every node has the datasets of rank 0, whose identities are `ids`. One rank per node
/// reads its own with `read`: index digests and lengths, as a resume does.
pub fn compare_datasets(
    rank: &Rank,
    node: &str,
    ids: &[DataId],
    read: impl FnOnce() -> Result<Vec<DataId>>,
) -> Result<()> {
    let nodes: Vec<String> = rank.gather(&node.to_string())?;
    let node_leaders: Vec<usize> = rank.on_first(|| {
        let is_leader = |rank: &usize| !nodes[..*rank].contains(&nodes[*rank]);
        Ok((0..nodes.len()).filter(is_leader).collect())
    })?;
    let leads = !rank.is_first() && node_leaders.contains(&rank.number());
    let own = rank.agree(if leads { read() } else { Ok(ids.to_vec()) })?;
    let all_ids = rank.gather(&own)?;
    rank.on_first(|| {
        for (number, theirs) in all_ids.iter().enumerate() {
            for (ours, theirs) in ids.iter().zip(theirs) {
                if ours != theirs {
                    let node = &nodes[number];
                    return Err(different_dataset(rank, number, node, ours, theirs).into());
                }
            }
        }
        Ok(())
    })
}

fn different_dataset(
    rank: &Rank,
    number: usize,
    node: &str,
    ours: &DataId,
    theirs: &DataId,
) -> Problems {
    let place = rank.grid.coord(number).name();
    Problems::one(
        ours.prefix.as_str(),
        format!(
            "rank {number} (node {node}, {place}) has another dataset there than rank 0: {}, not {}",
            resume::describe_files(theirs),
            resume::describe_files(ours)
        ),
        "copy the same .idx and .bin to every node, or keep them on a disk that all see",
    )
}

/// Memory that a rank will reserve on its node, and the free memory there.
#[derive(Clone, Serialize, Deserialize)]
struct Need {
    node: String,
    /// Bytes for a device whose memory is the node's, and bytes of host memory.
    device: u64,
    host: u64,
    /// Whether the host memory is page-locked; true for the host of a GPU.
    locks: bool,
    free: Option<u64>,
    /// `HostMemory` as text, and the maximum that a process may lock.
    limits: String,
    lockable: Option<u64>,
}

/// Fails unless each node has memory for everything that its ranks will reserve. The limit is the
/// free memory of the machine or the container, whichever is less. Called before reserving, because
/// a process that takes more is killed without a message.
pub fn check_memory(rank: &Rank, be: &dyn Backend, node: &str, needed: &MemoryPlan) -> Result<()> {
    let shared = be.shared_memory();
    let host = needed.host_total().0;
    let free = shared.or_else(|| be.host().shared_memory().filter(|_| host > 0));
    let device = if shared.is_some() { needed.total().0 } else { 0 };
    let free = free.map(|bytes| bytes.0);
    let memory = HostMemory::detect();
    let limits = memory
        .as_ref()
        .map_or("nothing is known".to_string(), HostMemory::to_string);
    let lockable = memory.and_then(|memory| Some(memory.lockable?.0));
    let node = node.to_string();
    let locks = shared.is_none();
    let needs = rank.gather(&Need { node, device, host, locks, free, limits, lockable })?;
    rank.on_first(|| memory_shortage(&needs).map_or(Ok(()), |problem| Err(problem.into())))?;
    if rank.is_first() {
        for line in node_lines(&needs) {
            tracing::info!("{line}");
        }
        if let Some(line) = lock_limit_warning(&needs) {
            tracing::warn!("{line}");
        }
    }
    Ok(())
}

/// Memory required by the ranks of a node, and memory available.
struct OnNode<'a> {
    ranks: usize,
    asked: u64,
    /// Part of `asked` for `topology.offload`.
    host: u64,
    free: u64,
    limits: &'a str,
}

/// Sums per node, sorted by name.
fn sum_by_node(needs: &[Need]) -> BTreeMap<&str, OnNode<'_>> {
    let mut nodes = BTreeMap::new();
    for need in needs {
        let sums = nodes.entry(need.node.as_str()).or_insert_with(|| OnNode {
            ranks: 0,
            asked: 0,
            host: 0,
            free: u64::MAX,
            limits: &need.limits,
        });
        sums.ranks += 1;
        sums.asked += need.device + need.host;
        sums.host += need.host;
        sums.free = sums.free.min(need.free.unwrap_or(u64::MAX));
    }
    nodes
}

impl OnNode<'_> {
    /// For example "its 2 ranks need 10.0 GiB (6.0 GiB of it by topology.offload) between them, and
    /// …".
    fn text(&self) -> String {
        let (need, between) = match self.ranks {
            1 => ("its rank needs".to_string(), ""),
            ranks => (format!("its {ranks} ranks need"), " between them"),
        };
        let offloaded = match self.host {
            0 => String::new(),
            host => format!(" ({} of it by topology.offload)", Bytes(host)),
        };
        format!("{need} {}{offloaded}{between}, and {}", Bytes(self.asked), self.limits)
    }
}

/// Lines about each node's memory for `topology.offload`.
fn node_lines(needs: &[Need]) -> Vec<String> {
    let nodes = sum_by_node(needs)
        .into_iter()
        .filter(|(_, sums)| sums.host > 0);
    nodes
        .map(|(node, sums)| format!("memory of node {node}: {}", sums.text()))
        .collect()
}

/// Warning if a rank would lock more than its limit. Many drivers ignore the limit.
fn lock_limit_warning(needs: &[Need]) -> Option<String> {
    for Need { node, host, lockable, locks, .. } in needs {
        if let Some(limit) = *lockable
            && *locks
            && *host > limit
        {
            return Some(format!(
                "node {node}: a rank is to page-lock {} for topology.offload, and ulimit -l is {}: a \
                 driver that counts it will refuse; {RAISE}",
                Bytes(*host),
                Bytes(limit)
            ));
        }
    }
    None
}

/// Remedy for a low `ulimit -l`.
const RAISE: &str = "raise ulimit -l (Slurm: PropagateResourceLimitsExcept=MEMLOCK, docker: --ulimit \
                     memlock=-1)";

/// Problem of the first node, by name, whose ranks need more than is free.
fn memory_shortage(needs: &[Need]) -> Option<Problems> {
    let (node, sums) = sum_by_node(needs)
        .into_iter()
        .find(|(_, sums)| sums.asked > sums.free)?;
    let remedy = match sums.host {
        0 => "",
        _ => {
            "let more replicas share the states (topology.zero=1 or more, topology.data), turn \
             topology.offload off, "
        }
    };
    Some(Problems::one(
        format!("node {node}"),
        format!("out of memory: {}", sums.text()),
        format!(
            "{remedy}start fewer ranks on it, or split the model further: topology.zero=1 or more, \
             topology.tensor, batch.micro, topology.recompute"
        ),
    ))
}

/// Memory of a GPU after NCCL has its buffers, and before any rank has reserved its arenas.
pub struct GpuMemory {
    gpu: Identity,
    /// Free memory, including the allocations of its ranks on opening, which their memory plans
    /// count.
    free: Bytes,
    all: Bytes,
    /// Part of the free memory that ranks leave free (`Gpu::headroom`).
    headroom: Bytes,
    /// Number of ranks that share this GPU.
    sharing: usize,
}

impl GpuMemory {
    /// Memory that each rank may reserve.
    fn share(&self) -> Bytes {
        Bytes(self.free.0.saturating_sub(self.headroom.0) / self.sharing as u64)
    }
}

/// Measures the GPU's memory; None on the CPU. A collective: no rank reserves memory before all
/// have measured.
pub fn measure_gpu(rank: &Rank, device: &Device, node: &str) -> Result<Option<GpuMemory>> {
    let key = device.gpu().map(|gpu| (node.to_string(), gpu.uuid.clone()));
    let keys: Vec<Option<(String, String)>> = rank.gather(&key)?;
    // After the gather, all ranks have opened their device and created their groups.
    let memory = device.memory();
    let sharing_by_rank: Vec<usize> = rank.on_first(|| {
        Ok(keys
            .iter()
            .map(|key| keys.iter().filter(|other| *other == key).count())
            .collect())
    })?;
    let sharing = sharing_by_rank.get(rank.number()).copied().unwrap_or(1);
    let taken = sharing as u64 * device.backend().workspace().0;
    Ok(device.gpu().zip(memory).map(|(gpu, (free, all))| {
        let free = Bytes(free.0 + taken);
        GpuMemory { gpu: gpu.clone(), free, all, headroom: Gpu::headroom(all), sharing }
    }))
}

/// Resolves `offload.gradients`: moves gradients to the host if the manifest leaves it open and the
/// device of some rank has too little memory. A collective.
pub fn place_gradients(
    rank: &Rank,
    be: &dyn Backend,
    groups: &Groups,
    m: &Manifest,
    memory: Option<&GpuMemory>,
) -> Manifest {
    if !m.gradients_are_open() {
        return m.clone();
    }
    let on_device = m.with_gradients(GradientHome::Device);
    let available = memory.map(GpuMemory::share);
    let most = available.into_iter().chain(m.train.device_memory).min();
    let is_short = most.is_some_and(|most| {
        let (needed, _) = Engine::plan(be, groups, &on_device, m.data.causal());
        needed.total() > most
    });
    match rank.count_ranks([is_short]) {
        [0] => on_device,
        _ => m.with_gradients(GradientHome::Host),
    }
}

/// Fails if a rank would reserve memory that CUDA and NCCL need later, in a step.
pub fn check_headroom(needed: &MemoryPlan, memory: Option<&GpuMemory>) -> Result<(), OutOfMemory> {
    let asked = needed.total();
    let available = memory.map(GpuMemory::share);
    match available {
        Some(share) if asked > share => {
            Err(OutOfMemory { memory: MemoryKind::Device, asked, available })
        }
        _ => Ok(()),
    }
}

/// Error for an engine that does not fit, with settings that would make it fit.
pub fn out_of_memory(
    rank: &Rank,
    loaded: &Loaded,
    node: &str,
    memory: Option<GpuMemory>,
    error: OutOfMemory,
) -> anyhow::Error {
    let m = &loaded.manifest;
    let place = match rank.grid.size() {
        1 => m.name.clone(),
        _ => format!("rank {} (node {node}, {})", rank.number(), rank.coord.name()),
    };
    if error.memory == MemoryKind::Host {
        return lock_problem(place, &error).into();
    }
    let stages = dry_run::stages(m);
    let Some(stage) = stages.get(rank.coord[Axis::Pipeline]) else { return error.into() };
    let named = m.plan.hardware.as_deref().unwrap_or("h200-141g");
    let Ok(hw) = machine::find(named, "plan.hardware") else { return error.into() };
    let (share, present) = match (m.train.device_memory, memory) {
        (Some(most), _) if stage.memory_plan.total() > most => {
            (most, format!("train.device_memory is {most}"))
        }
        (_, Some(memory)) => (memory.share(), memory.to_string()),
        (_, None) => return error.into(),
    };
    let setup = &Setup::new(m, Program::Gptrain, hw);
    let limits = MemoryLimits { device: share, ..MemoryLimits::new(m, hw) };
    let advisor = Advisor { effective: &loaded.effective, manifest: m, setup, limits };
    Problems::one(
        place,
        format!("out of memory: {present}; this rank needs {}", stage.memory_plan),
        advisor.describe_remedies(),
    )
    .into()
}

impl fmt::Display for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {} of its {}", self.gpu, self.free, self.all)?;
        write!(f, " ({} of it for CUDA and NCCL)", self.headroom)?;
        match self.sharing {
            1 => Ok(()),
            ranks => write!(f, " for its {ranks} ranks between them"),
        }
    }
}

/// Error for memory that the host has but does not provide.
fn lock_problem(place: String, error: &OutOfMemory) -> Problems {
    let limit = HostMemory::detect().map_or("unknown".to_string(), |memory| memory.lockable());
    Problems::one(
        place,
        format!("{error}, page-locked for topology.offload; ulimit -l is {limit}"),
        format!("{RAISE}, start fewer ranks on the node, or set topology.offload to none"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks per node, each of which needs 2 + 3 GiB.
    fn needs(free: [u64; 2], lockable: Option<u64>) -> Vec<Need> {
        (0..4)
            .map(|i| Need {
                node: format!("n{}", i / 2),
                device: 2 << 30,
                host: 3 << 30,
                locks: true,
                free: Some(free[i / 2]),
                limits: format!("{} is free", Bytes(free[i / 2])),
                lockable,
            })
            .collect()
    }

    #[test]
    fn a_node_has_memory_for_all_its_ranks_or_is_named() {
        let verdict = |free| memory_shortage(&needs(free, None)).map(|found| found.to_string());
        assert_eq!(verdict([10 << 30, 10 << 30]), None);
        let refused = verdict([11 << 30, (10 << 30) - 1]).unwrap();
        let says = [
            "node n1: out of memory: its 2 ranks need 10.0 GiB (6.0 GiB of it by topology.offload) \
             between them, and 10.0 GiB is free",
            "topology.zero=1 or more, topology.data",
        ];
        assert!(says.iter().all(|part| refused.contains(part)), "{refused}");
    }

    #[test]
    fn what_is_taken_of_each_node_is_said_and_what_may_not_be_locked() {
        let all = needs([11 << 30, 12 << 30], None);
        let lines = node_lines(&all);
        let second = "memory of node n1: its 2 ranks need 10.0 GiB (6.0 GiB of it by \
                      topology.offload) between them, and 12.0 GiB is free";
        assert_eq!((lines.len(), lines[1].as_str()), (2, second));
        assert_eq!(lock_limit_warning(&all), None);
        assert_eq!(lock_limit_warning(&needs([11 << 30; 2], Some(3 << 30))), None);
        let said = lock_limit_warning(&needs([11 << 30; 2], Some(8 << 20))).unwrap();
        assert!(said.contains("page-lock 3.0 GiB") && said.contains("is 8.0 MiB"), "{said}");
    }

    #[test]
    fn a_rank_leaves_memory_for_what_cuda_and_nccl_allocate_later() {
        let (name, bus, uuid) = Default::default();
        let gpu = Identity { ordinal: 0, shown: 1, name, bus, uuid };
        let all = Bytes(80 << 30);
        let memory = |free| GpuMemory {
            gpu: gpu.clone(),
            free,
            all,
            headroom: Gpu::headroom(all),
            sharing: 2,
        };
        let rank = |bytes| MemoryPlan { rows: vec![("weights", Bytes(bytes))], host: Vec::new() };
        let fits = |bytes, free| check_headroom(&rank(bytes), Some(&memory(Bytes(free)))).is_ok();
        assert!(fits(5 << 30, 11 << 30));
        assert!(!fits((5 << 30) + 1, 11 << 30), "1 GiB of 11 remains free, two ranks have 5 each");
        assert!(!fits(1, 1 << 20), "less is free than what is to stay free");
        assert!(check_headroom(&rank(u64::MAX), None).is_ok(), "a CPU");
    }
}
