//! The device of a rank: which one, opened, and the groups that are carried from it to others.

use super::super::rank::Rank;
use crate::base::{Bytes, Problems};
use crate::comm::nccl::Nccl;
use crate::comm::staged::Staged;
use crate::comm::{Group, World};
use crate::device::Backend;
use crate::device::cpu::Cpu;
use crate::device::cuda::{self, Cuda, Identity, Options};
use crate::engine::Groups;
use crate::manifest::{DeviceChoice, GpuTransport, Manifest, Precision};
use std::time::Duration;

/// Where a rank is among those of its node.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    pub local_rank: usize,
    /// Ranks on its node.
    pub local_world: usize,
    /// It is a process, to which its launcher may have given a GPU that it alone is shown.
    pub process: bool,
}

impl Seat {
    /// A rank without others.
    pub const ALONE: Seat = Seat { local_rank: 0, local_world: 1, process: false };
}

/// What a rank computes on.
pub enum Device {
    Cpu(Cpu),
    Gpu { cuda: Box<Cuda>, options: Options },
}

impl Device {
    /// The device that the manifest asks for. `threads` is for the CPU.
    pub fn open(m: &Manifest, seat: Seat, threads: Option<usize>) -> Result<Device, Problems> {
        let shown = || cuda::shown(&Options::of_machine(0));
        let ordinal = match m.train.device {
            DeviceChoice::Cpu => None,
            DeviceChoice::Cuda => Some(ordinal(m, seat, shown().count)?),
            DeviceChoice::Auto => {
                let shown = shown();
                let usable = shown.real && enough(m, seat, shown.count);
                usable.then(|| ordinal(m, seat, shown.count)).transpose()?
            }
        };
        let Some(ordinal) = ordinal else {
            if m.precision == Precision::Tf32 {
                let what = "precision is tf32, and the device is the CPU, which cannot";
                return Err(Problems::one(m.name.as_str(), what, "--set precision=f32"));
            }
            return Ok(Device::Cpu(Cpu::new(threads)));
        };
        let options = Options { precision: m.precision, ..Options::of_machine(ordinal) };
        Ok(Device::Gpu { cuda: Box::new(Cuda::open(&options)?), options })
    }

    pub fn backend(&self) -> &dyn Backend {
        match self {
            Device::Cpu(cpu) => cpu,
            Device::Gpu { cuda, .. } => &**cuda,
        }
    }

    /// For a person.
    pub fn description(&self) -> String {
        match self {
            Device::Cpu(cpu) => format!("CPU, {} threads", cpu.threads()),
            Device::Gpu { cuda, .. } => cuda.description().to_string(),
        }
    }

    /// None is the CPU.
    pub fn gpu(&self) -> Option<&Identity> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu { cuda, .. } => Some(cuda.identity()),
        }
    }

    /// Bytes of a GPU's own memory that are free, and all of it; None on the CPU.
    pub fn memory(&self) -> Option<(Bytes, Bytes)> {
        match self {
            Device::Cpu(_) => None,
            Device::Gpu { cuda, .. } => Some(cuda.free_memory()),
        }
    }

    /// The groups that the engine computes with. Every rank of the world calls this.
    pub fn groups(&self, world: &World, m: &Manifest) -> Result<Groups, Problems> {
        let Device::Gpu { cuda, options } = self else {
            return Ok(Groups::new(world, &m.topology));
        };
        let nccl = match m.comm.gpu_transport {
            GpuTransport::Nccl if world.size() > 1 => {
                let patience = Duration::from_secs_f64(m.comm.start_timeout_s);
                Some(Nccl::open(cuda, options)?.patience(patience))
            }
            _ => None,
        };
        Ok(Groups::of(world.rank(), &m.topology, |name, ranks| -> Box<dyn Group> {
            match &nccl {
                Some(nccl) => nccl.group(world, name, ranks),
                None if ranks.len() == 1 => world.group(name, ranks),
                None => Box::new(Staged::new(cuda, world.group(name, ranks))),
            }
        }))
    }
}

/// The GPU of a rank, of `count` that its driver shows. Where there is none, opening it says why.
fn ordinal(m: &Manifest, seat: Seat, count: usize) -> Result<usize, Problems> {
    let Seat { local_rank, local_world, process } = seat;
    match m.comm.gpu_transport {
        _ if count == 0 => Ok(0),
        GpuTransport::Host => Ok(local_rank % count),
        GpuTransport::Nccl if local_rank < count => Ok(local_rank),
        GpuTransport::Nccl if process && count == 1 => Ok(0),
        GpuTransport::Nccl => {
            let visible = match std::env::var("CUDA_VISIBLE_DEVICES") {
                Ok(value) => format!("CUDA_VISIBLE_DEVICES={value}"),
                Err(_) => "CUDA_VISIBLE_DEVICES is not set".to_string(),
            };
            let what = format!(
                "{local_world} ranks are to have a GPU each on this node, and the driver shows \
                 {count} ({visible}): there is none for the rank with local number {local_rank}"
            );
            Err(Problems::one("train.device: cuda", what, few(count)))
        }
    }
}

/// What helps where GPUs are few.
fn few(count: usize) -> String {
    let ranks = if count == 1 { "1 rank".to_string() } else { format!("{count} ranks") };
    format!(
        "start {ranks} on such a node (srun --ntasks-per-node), have more GPUs shown (srun \
         --gpus-per-node, CUDA_VISIBLE_DEVICES), or let ranks share them, slowly: --set \
         comm.gpu_transport=host"
    )
}

/// Whether `auto` takes GPUs: where each rank of the node can have what it needs.
fn enough(m: &Manifest, seat: Seat, count: usize) -> bool {
    let given = seat.process && count == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
    match m.comm.gpu_transport {
        GpuTransport::Host => count > 0,
        GpuTransport::Nccl => count >= seat.local_world || given,
    }
}

/// What is wrong with one rank of several, with its name.
pub fn of_rank(rank: &Rank, node: &str, mut problems: Problems) -> Problems {
    if rank.grid.size() > 1 {
        let (number, at) = (rank.number(), rank.at.name());
        for problem in &mut problems.list {
            problem.place = format!("rank {number} (node {node}, {at}): {}", problem.place);
        }
    }
    problems
}

/// The ranks have found devices of one kind, and NCCL's a GPU each. All ranks call this.
pub fn agree(rank: &Rank, m: &Manifest, node: &str, device: &Device) -> anyhow::Result<()> {
    let all: Vec<Found> = rank.gather(&(node.to_string(), device.gpu().cloned()))?;
    rank.first(|| {
        mixed(&all)?;
        match m.comm.gpu_transport {
            GpuTransport::Nccl => Ok(shared(&all)?),
            GpuTransport::Host => Ok(()),
        }
    })
}

/// A rank's node and GPU.
type Found = (String, Option<Identity>);

/// Names the ranks that are fewer.
fn mixed(all: &[Found]) -> Result<(), Problems> {
    let of = |gpu: bool| (0..all.len()).filter(move |rank| all[*rank].1.is_some() == gpu);
    let (gpus, cpus) = (of(true).count(), of(false).count());
    if gpus == 0 || cpus == 0 {
        return Ok(());
    }
    let fewer = gpus < cpus;
    let odd: Vec<String> = of(fewer).map(|rank| named(all, rank)).collect();
    let (has, have) = match fewer {
        true => ("computes on a GPU", "on the CPU"),
        false => ("found no GPU for itself", "on GPUs"),
    };
    let what = format!("{} {has}; the other ranks compute {have}", list(&odd));
    let remedy = "--set train.device=cuda, which says what is missing there, or =cpu";
    Err(Problems::one("train.device: auto", what, remedy))
}

fn shared(all: &[Found]) -> Result<(), Problems> {
    let mut problems = Problems::default();
    let same = |a: &Found, b: &Found| match (&a.1, &b.1) {
        (Some(ours), Some(theirs)) => a.0 == b.0 && ours.uuid == theirs.uuid,
        _ => false,
    };
    for (first, found) in all.iter().enumerate() {
        let Some(gpu) = &found.1 else { continue };
        let with: Vec<usize> = (0..all.len()).filter(|other| same(found, &all[*other])).collect();
        if with.len() == 1 || with[0] != first {
            continue;
        }
        let ranks: Vec<String> = with.iter().map(|rank| format!("rank {rank}")).collect();
        let what = format!(
            "{} share one GPU of node {}, {} {}: NCCL wants one for each",
            list(&ranks),
            found.0,
            gpu.name,
            gpu
        );
        problems.add("train.device: cuda", what, few(gpu.shown));
    }
    problems.or(())
}

fn named(all: &[Found], rank: usize) -> String {
    format!("rank {rank} (node {})", all[rank].0)
}

/// "rank 1, rank 2 and rank 5"; the first few.
fn list(names: &[String]) -> String {
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
