//! Checks before the first step: every node has the same datasets, and memory for all its ranks.

use super::launch::Device;
use super::rank::Rank;
use super::resume;
use crate::base::{Bytes, Problems};
use crate::checkpoint::DataId;
use crate::device::cuda::Identity;
use crate::device::{Backend, OutOfMemory};
use crate::estimate::gptrain::{dry_run, remedies};
use crate::estimate::hardware;
use crate::manifest::{Loaded, Manifest};
use std::collections::BTreeMap;

/// An error unless every node's datasets are `ids`, those of rank 0: one rank per node compares
/// index digests and lengths, as a resume does.
pub fn same_data(rank: &Rank, m: &Manifest, node: &str, ids: &[DataId]) -> anyhow::Result<()> {
    let nodes: Vec<String> = rank.gather(&node.to_string())?;
    let node_leaders: Vec<usize> = rank.on_first(|| {
        let first = |node: &String| nodes.iter().position(|other| other == node);
        Ok((0..nodes.len()).filter(|rank| first(&nodes[*rank]) == Some(*rank)).collect())
    })?;
    let leads = !rank.is_first() && node_leaders.contains(&rank.number());
    let here = rank.agree(if leads { resume::data_ids(m) } else { Ok(ids.to_vec()) })?;
    let all = rank.gather(&here)?;
    rank.on_first(|| {
        let differs = |(number, theirs): (usize, &Vec<DataId>)| {
            let two = ids.iter().zip(theirs).find(|(ours, theirs)| ours != theirs);
            two.map(|(ours, theirs)| other_data(rank, number, &nodes[number], ours, theirs))
        };
        let problems: Vec<_> = all.iter().enumerate().filter_map(differs).collect();
        problems.into_iter().next().map_or(Ok(()), |problem| Err(problem.into()))
    })
}

fn other_data(rank: &Rank, number: usize, node: &str, ours: &DataId, theirs: &DataId) -> Problems {
    let place = rank.grid.coord(number).name();
    let what = format!(
        "rank {number} (node {node}, {place}) has another dataset there than rank 0: index of {} \
         bytes and digest {}, {} bytes of tokens; not {}, {}, {}",
        theirs.index_bytes,
        theirs.index_digest,
        theirs.token_bytes,
        ours.index_bytes,
        ours.index_digest,
        ours.token_bytes
    );
    let remedy = "copy the same .idx and .bin to every node, or keep them on a disk that all see";
    Problems::one(ours.prefix.as_str(), what, remedy)
}

/// An error unless each node has physical memory for all that its ranks have reserved. None of it
/// has been touched yet.
pub fn enough_memory(
    rank: &Rank,
    be: &dyn Backend,
    node: &str,
    reserved: Bytes,
) -> anyhow::Result<()> {
    let mine = (node.to_string(), reserved.0, be.shared_memory().map(|bytes| bytes.0));
    let all = rank.gather(&mine)?;
    rank.on_first(|| {
        let mut nodes: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        for (node, reserved, left) in &all {
            let of = nodes.entry(node).or_insert((0, 0, u64::MAX));
            *of = (of.0 + 1, of.1 + reserved, of.2.min(left.unwrap_or(u64::MAX)));
        }
        match nodes.iter().find(|(_, (_, asked, left))| asked > left) {
            None => Ok(()),
            Some((node, (ranks, asked, left))) => Err(Problems::one(
                format!("node {node}"),
                format!(
                    "its {ranks} ranks need {} between them, and {} is free",
                    Bytes(*asked),
                    Bytes(*left)
                ),
                "start fewer ranks on it, or split the model further: topology.zero=1 or more, \
                 topology.tensor, batch.micro, topology.recompute",
            )
            .into()),
        }
    })
}

/// The memory of a GPU before any rank has reserved its arenas.
pub struct GpuMemory {
    gpu: Identity,
    /// Including what its ranks allocated when they opened it, which their memory plans count.
    free: Bytes,
    all: Bytes,
    /// Ranks that share this GPU.
    sharing: usize,
}

/// None on the CPU. A collective: no rank reserves memory before all have measured.
pub fn gpu_memory(rank: &Rank, device: &Device, node: &str) -> anyhow::Result<Option<GpuMemory>> {
    let key = device.gpu().map(|gpu| (node.to_string(), gpu.uuid.clone()));
    let keys: Vec<Option<(String, String)>> = rank.gather(&key)?;
    // After the gather, all ranks have opened their device.
    let memory = device.memory();
    let sharing: Vec<usize> = rank.on_first(|| {
        let like = |key: &Option<_>| keys.iter().filter(|other| *other == key).count();
        Ok(keys.iter().map(like).collect())
    })?;
    let sharing = sharing.get(rank.number()).copied().unwrap_or(1);
    let taken = sharing as u64 * device.backend().workspace().0;
    Ok(device.gpu().zip(memory).map(|(gpu, (free, all))| {
        let free = Bytes(free.0 + taken);
        GpuMemory { gpu: gpu.clone(), free, all, sharing }
    }))
}

/// The error for an engine that does not fit, with the settings that would make it fit.
pub fn out_of_memory(
    rank: &Rank,
    loaded: &Loaded,
    node: &str,
    memory: Option<GpuMemory>,
    error: OutOfMemory,
) -> anyhow::Error {
    let m = &loaded.manifest;
    let stages = dry_run::stages(m);
    let (Some(memory), Some(stage)) = (memory, stages.get(rank.at.pipeline)) else {
        return error.into();
    };
    let named = m.plan.hardware.as_deref().unwrap_or("h200-141g");
    let Ok(hw) = hardware::find(named, "plan.hardware") else { return error.into() };
    let share = Bytes(memory.free.0 / memory.sharing as u64);
    let place = match rank.grid.size() {
        1 => m.name.clone(),
        _ => format!("rank {} (node {node}, {})", rank.number(), rank.at.name()),
    };
    let others = match memory.sharing {
        1 => String::new(),
        ranks => format!(" for its {ranks} ranks between them"),
    };
    let what = format!(
        "out of memory: {} has {} of its {}{others}; this rank needs {}",
        memory.gpu, memory.free, memory.all, stage.memory_plan
    );
    Problems::one(place, what, remedies::advice(loaded, share, hw)).into()
}
