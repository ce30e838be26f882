//! Device of a rank: a GPU or the CPU, and the process groups that communicate from it.

use super::super::rank::Rank;
use base::{Bytes, Count, Problems};
use comm::host_staged::HostStaged;
use comm::nccl::{Nccl, SERIAL};
use comm::{Group, World};
use device::cpu::{Cpu, Instructions, processor};
use device::{Backend, Gpu, GpuRequest, Identity, Monitor};
use engine::{Groups, model_dtype};
use manifest::{DeviceChoice, GpuTransport, Manifest, Precision};
use std::time::Duration;

/// Place of a rank among the ranks of its node.
#[derive(Clone, Copy, Debug)]
pub struct LocalRank {
    /// Number of the rank on its node.
    pub local_rank: usize,
    /// Number of ranks on its node.
    pub local_world: usize,
    /// Whether the rank is a process, to which the launcher may show only its own GPU.
    pub process: bool,
    /// CPU cores of the node for each of its ranks.
    pub cores: usize,
}

impl LocalRank {
    /// The only rank.
    pub const ONLY: LocalRank =
        LocalRank { local_rank: 0, local_world: 1, process: false, cores: ENOUGH_CORES };
}

/// Cores per rank at which its thread polls for its GPU: another core computes meanwhile.
const ENOUGH_CORES: usize = 2;

/// Device of a rank.
pub enum Device {
    Cpu(Cpu),
    Gpu(Gpu),
}

impl Device {
    /// Opens the device that the manifest sets. `threads` is for the CPU backend.
    pub fn open(
        m: &Manifest,
        local: LocalRank,
        threads: Option<usize>,
    ) -> Result<Device, Problems> {
        let ordinal = match m.train.device {
            DeviceChoice::Cpu => None,
            DeviceChoice::Cuda => Some(choose_gpu(m, local, Gpu::count())?),
            DeviceChoice::Auto => {
                let count = Gpu::count();
                has_enough_gpus(m, local, count)
                    .then(|| choose_gpu(m, local, count))
                    .transpose()?
            }
        };
        let Some(ordinal) = ordinal else {
            if m.precision == Precision::Tf32 {
                return Err(Problems::one(
                    m.name.as_str(),
                    "precision is tf32, and the device is the CPU, which cannot",
                    "--set precision=f32",
                ));
            }
            return Cpu::open(threads).map(Device::Cpu);
        };
        let request = GpuRequest {
            ordinal,
            dtype: model_dtype(m.precision),
            tf32: m.precision == Precision::Tf32,
            fp8: m.precision == Precision::Fp8,
            largest_collective: largest_operation(m),
            blocking: local.cores < ENOUGH_CORES,
            threads,
        };
        Gpu::open(request).map(Device::Gpu)
    }

    pub fn backend(&self) -> &dyn Backend {
        match self {
            Device::Cpu(cpu) => cpu,
            Device::Gpu(gpu) => gpu.backend(),
        }
    }

    /// Monitor of a GPU's clock, power, temperature and faults; None on the CPU or without the
    /// vendor's library.
    pub fn monitor(&self) -> Option<Box<dyn Monitor>> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu(gpu) => gpu.monitor(),
        }
    }

    /// Processor and method for this precision: `CPU (AMD EPYC, AVX2; bf16 is computed in f32), 2
    /// threads`.
    pub fn description(&self, precision: Precision) -> String {
        let cpu = match self {
            Device::Cpu(cpu) => cpu,
            Device::Gpu(gpu) => return gpu.description().to_string(),
        };
        let set = Instructions::in_use();
        let name = processor::name().map_or(String::new(), |name| format!("{name}, "));
        let widened = match precision {
            Precision::F32 | Precision::Tf32 => String::new(),
            Precision::Bf16 if set.multiplies_bf16() => String::new(),
            other => format!("; {} is computed in f32", other.name()),
        };
        format!("CPU ({name}{set}{widened}), {}", Count(cpu.threads() as u64).with_noun("thread"))
    }

    /// Advice where the processor computes the run's 16-bit floats in f32: then they save memory,
    /// but no time (benches/LOG.md).
    pub fn advice(&self, precision: Precision) -> Option<String> {
        let multiplied = Instructions::in_use().multiplies_bf16() && precision == Precision::Bf16;
        let widened = matches!(precision, Precision::Bf16 | Precision::Fp16) && !multiplied;
        (widened && matches!(self, Device::Cpu(_))).then(|| {
            let name = precision.name();
            format!("{name} saves memory on this processor, but no time: f32 is as fast")
        })
    }

    /// Identity of the GPU; None for the CPU.
    pub fn gpu(&self) -> Option<&Identity> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu(gpu) => Some(gpu.identity()),
        }
    }

    /// Name of the rank's processor on its node.
    pub fn processor(&self) -> String {
        self.gpu().map_or("CPU".to_string(), |gpu| gpu.to_string())
    }

    /// Free and total bytes of the GPU's memory; None on the CPU.
    pub fn memory(&self) -> Option<(Bytes, Bytes)> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu(gpu) => Some(gpu.memory()),
        }
    }

    /// Process groups that the engine uses. A collective of every rank of the world.
    pub fn groups(&self, world: &World, m: &Manifest) -> Result<Groups, Problems> {
        let factory = self.group_factory(world, m)?;
        if let Some(nccl) = &factory.nccl {
            check_order(nccl, world.rank() == 0, m)?;
        }
        Ok(Groups::for_rank(world.rank(), &m.topology, |name, ranks| factory.group(name, ranks)))
    }

    /// Factory of process groups for tensors of this device.
    pub fn group_factory<'a>(
        &'a self,
        world: &'a World,
        m: &Manifest,
    ) -> Result<GroupFactory<'a>, Problems> {
        let nccl = match self {
            Device::Gpu(gpu) if m.comm.gpu_transport == GpuTransport::Nccl && world.size() > 1 => {
                let timeout = Duration::from_secs_f64(m.comm.start_timeout_s);
                Some(Nccl::for_gpu(gpu)?.with_setup_timeout(timeout))
            }
            _ => None,
        };
        Ok(GroupFactory { device: self, world, nccl })
    }
}

/// Refuses messages beside computation if all collectives run on one stream. On the first rank, warns
/// if the run uses several communicators at once and NCCL does not order their launches.
fn check_order(nccl: &Nccl, first: bool, m: &Manifest) -> Result<(), Problems> {
    if nccl.is_serial() && engine::messages_overlap(&m.topology) {
        return Err(Problems::one(
            "topology.overlap_p2p",
            format!("{SERIAL}=1 runs all on one stream, where messages cannot overlap"),
            format!("--set topology.overlap_p2p=false, or unset {SERIAL}"),
        ));
    }
    let overlap = first && engine::groups_overlap(&m.topology);
    if let Some(line) = overlap.then(|| nccl.order_warning()).flatten() {
        tracing::warn!("{line}");
    }
    Ok(())
}

/// Factory of process groups for tensors of a device.
pub struct GroupFactory<'a> {
    device: &'a Device,
    world: &'a World,
    nccl: Option<Nccl>,
}

impl GroupFactory<'_> {
    /// Like `World::group`.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Box<dyn Group> {
        match (&self.nccl, self.device) {
            (Some(nccl), _) => nccl.group(self.world, name, ranks),
            (None, Device::Gpu(gpu)) if ranks.len() > 1 => {
                Box::new(HostStaged::for_gpu(gpu, self.world.group(name, ranks)))
            }
            (None, _) => self.world.group(name, ranks),
        }
    }

    /// Whether tensors move from device to device without the host.
    pub fn is_direct(&self) -> bool {
        self.nccl.is_some()
    }
}

/// Upper bound of the bytes of a run's collectives: gradients of all weights, or activations.
fn largest_operation(m: &Manifest) -> usize {
    let micros = m.batch.micro_stages.iter().map(|stage| stage.micro);
    let micro = micros.fold(m.batch.micro, usize::max);
    let activations = micro * m.model.seq_len * m.model.hidden;
    4 * activations.max(model::parameters(&m.model) as usize)
}

/// Variable that lets several ranks share a GPU in NCCL (2.30.3 or newer), to try a topology on it.
const SHARED: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

fn nccl_shares() -> bool {
    std::env::var(SHARED).is_ok_and(|value| value == "1")
}

/// Number of a rank's GPU, out of `count` visible ones. Without a visible GPU it is 0, and opening that
/// fails with the reason.
fn choose_gpu(m: &Manifest, local: LocalRank, count: usize) -> Result<usize, Problems> {
    let LocalRank { local_rank, local_world, process, .. } = local;
    match m.comm.gpu_transport {
        _ if count == 0 => Ok(0),
        GpuTransport::Host => Ok(local_rank % count),
        GpuTransport::Nccl if nccl_shares() => Ok(local_rank % count),
        GpuTransport::Nccl if local_rank < count => Ok(local_rank),
        GpuTransport::Nccl if process && count == 1 => Ok(0),
        GpuTransport::Nccl => {
            let visible = match std::env::var("CUDA_VISIBLE_DEVICES") {
                Ok(value) => format!("CUDA_VISIBLE_DEVICES={value}"),
                Err(_) => "CUDA_VISIBLE_DEVICES is not set".to_string(),
            };
            Err(Problems::one(
                "train.device: cuda",
                format!(
                    "{local_world} ranks are to have a GPU each on this node, and the driver shows \
                     {count} ({visible}): there is none for the rank with local number {local_rank}"
                ),
                too_few_remedy(count),
            ))
        }
    }
}

/// Remedy if there are fewer GPUs than ranks.
fn too_few_remedy(count: usize) -> String {
    let ranks = Count(count as u64).with_noun("rank");
    format!(
        "start {ranks} on such a node (srun --ntasks-per-node), have more GPUs shown (srun \
         --gpus-per-node, CUDA_VISIBLE_DEVICES), or let ranks share them, slowly: --set \
         comm.gpu_transport=host, or with NCCL 2.30.3 or newer {SHARED}=1"
    )
}

/// Whether `auto` chooses GPUs: only if each rank of the node can have its own.
fn has_enough_gpus(m: &Manifest, local: LocalRank, count: usize) -> bool {
    let given = local.process && count == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
    match m.comm.gpu_transport {
        GpuTransport::Host => count > 0,
        GpuTransport::Nccl => count >= local.local_world || given || count > 0 && nccl_shares(),
    }
}

/// Whether the ranks of the manifest are several and compute on GPUs of this machine, one each.
pub fn gpu_for_each_rank(m: &Manifest) -> bool {
    let ranks = m.topology.ranks();
    ranks > 1 && m.train.device != DeviceChoice::Cpu && Gpu::count() >= ranks
}

/// Adds the rank's name to the problems, if there are several ranks.
pub fn name_rank(rank: &Rank, node: &str, mut problems: Problems) -> Problems {
    if rank.grid.size() > 1 {
        let number = rank.number();
        let coord = rank.coord.name();
        for problem in &mut problems.list {
            problem.place = format!("rank {number} (node {node}, {coord}): {}", problem.place);
        }
    }
    problems
}

/// Fails unless all ranks have the same kind of device and, with NCCL, a GPU each. A collective.
pub fn check_all(rank: &Rank, m: &Manifest, node: &str, device: &Device) -> anyhow::Result<()> {
    let all: Vec<NodeGpu> = rank.gather(&(node.to_string(), device.gpu().cloned()))?;
    rank.on_first(|| {
        check_kinds(&all)?;
        match m.comm.gpu_transport {
            GpuTransport::Nccl if !nccl_shares() => Ok(check_sharing(&all)?),
            GpuTransport::Nccl | GpuTransport::Host => Ok(()),
        }
    })
}

/// Node and GPU of a rank.
type NodeGpu = (String, Option<Identity>);

/// Error that names the minority if some ranks have a GPU and others the CPU.
fn check_kinds(all: &[NodeGpu]) -> Result<(), Problems> {
    let ranks = |gpu: bool| (0..all.len()).filter(move |rank| all[*rank].1.is_some() == gpu);
    let gpus = ranks(true).count();
    let cpus = ranks(false).count();
    if gpus == 0 || cpus == 0 {
        return Ok(());
    }
    let fewer = gpus < cpus;
    let named_ranks: Vec<String> = ranks(fewer).map(|rank| name_with_node(all, rank)).collect();
    let (has, have) = if fewer {
        ("computes on a GPU", "on the CPU")
    } else {
        ("found no GPU for itself", "on GPUs")
    };
    Err(Problems::one(
        "train.device: auto",
        format!("{} {has}; the other ranks compute {have}", list_ranks(&named_ranks)),
        "--set train.device=cuda, which says what is missing there, or =cpu",
    ))
}

fn check_sharing(all: &[NodeGpu]) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let same = |a: &NodeGpu, b: &NodeGpu| match (&a.1, &b.1) {
        (Some(ours), Some(theirs)) => a.0 == b.0 && ours.uuid == theirs.uuid,
        _ => false,
    };
    for (first, found) in all.iter().enumerate() {
        let Some(gpu) = &found.1 else { continue };
        let with: Vec<usize> = (0..all.len())
            .filter(|other| same(found, &all[*other]))
            .collect();
        if with.len() == 1 || with[0] != first {
            continue;
        }
        let ranks: Vec<String> = with.iter().map(|rank| format!("rank {rank}")).collect();
        problems.add(
            "train.device: cuda",
            format!(
                "{} share one GPU of node {}, {} {}: NCCL wants one for each",
                list_ranks(&ranks),
                found.0,
                gpu.name,
                gpu
            ),
            too_few_remedy(gpu.shown),
        );
    }
    problems.or(())
}

fn name_with_node(all: &[NodeGpu], rank: usize) -> String {
    format!("rank {rank} (node {})", all[rank].0)
}

/// Names as a list, at most eight of them: "rank 1, rank 2 and rank 5".
fn list_ranks(names: &[String]) -> String {
    const NAMED: usize = 8;
    match names {
        [all @ .., last] if !all.is_empty() && names.len() <= NAMED => {
            format!("{} and {last}", all.join(", "))
        }
        _ if names.len() > NAMED => {
            format!("{} and {} more", names[..NAMED].join(", "), names.len() - NAMED)
        }
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests;
