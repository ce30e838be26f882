//! What ranks must have between them before they start: the same datasets on every node, and memory
//! for all that are on one.

use super::launch::Device;
use super::rank::Rank;
use super::resume;
use crate::base::{Bytes, Problems};
use crate::checkpoint::DataId;
use crate::device::cuda::Identity;
use crate::device::{Backend, OutOfMemory};
use crate::estimate::{change, hardware, own};
use crate::manifest::{Loaded, Manifest};
use std::collections::BTreeMap;

/// The datasets of every node are `ids`, which are those of the first rank: a rank of each node
/// looks. Named by index and length, as at a resume.
pub fn same_data(rank: &Rank, m: &Manifest, node: &str, ids: &[DataId]) -> anyhow::Result<()> {
    let nodes: Vec<String> = rank.gather(&node.to_string())?;
    let lookers: Vec<usize> = rank.first(|| {
        let first = |node: &String| nodes.iter().position(|other| other == node);
        Ok((0..nodes.len()).filter(|rank| first(&nodes[*rank]) == Some(*rank)).collect())
    })?;
    let looks = !rank.is_first() && lookers.contains(&rank.number());
    let here = rank.all(if looks { resume::data_ids(m) } else { Ok(ids.to_vec()) })?;
    let all = rank.gather(&here)?;
    rank.first(|| {
        let differs = |(number, theirs): (usize, &Vec<DataId>)| {
            let two = ids.iter().zip(theirs).find(|(ours, theirs)| ours != theirs);
            two.map(|(ours, theirs)| other_data(rank, number, &nodes[number], ours, theirs))
        };
        let problems: Vec<_> = all.iter().enumerate().filter_map(differs).collect();
        problems.into_iter().next().map_or(Ok(()), |problem| Err(problem.into()))
    })
}

fn other_data(rank: &Rank, number: usize, node: &str, ours: &DataId, theirs: &DataId) -> Problems {
    let place = rank.grid.place(number).name();
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

/// The ranks of each node have memory for all that they have reserved between them. None of it is
/// touched yet.
pub fn enough_memory(
    rank: &Rank,
    be: &dyn Backend,
    node: &str,
    reserved: Bytes,
) -> anyhow::Result<()> {
    let mine = (node.to_string(), reserved.0, be.shared_memory().map(|bytes| bytes.0));
    let all = rank.gather(&mine)?;
    rank.first(|| {
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

/// What a GPU has for its ranks, before any of them has reserved.
pub struct Room {
    gpu: Identity,
    /// With what they took when they opened it, which their bills count.
    free: Bytes,
    all: Bytes,
    /// Ranks that share it.
    sharing: usize,
}

/// None on the CPU. All ranks call this, and no rank reserves before all have.
pub fn room(rank: &Rank, device: &Device, node: &str) -> anyhow::Result<Option<Room>> {
    let key = device.gpu().map(|gpu| (node.to_string(), gpu.uuid.clone()));
    let keys: Vec<Option<(String, String)>> = rank.gather(&key)?;
    // By now all have opened theirs.
    let memory = device.memory();
    let sharing: Vec<usize> = rank.first(|| {
        let like = |key: &Option<_>| keys.iter().filter(|other| *other == key).count();
        Ok(keys.iter().map(like).collect())
    })?;
    let sharing = sharing.get(rank.number()).copied().unwrap_or(1);
    let taken = sharing as u64 * device.backend().workspace().0;
    Ok(device.gpu().zip(memory).map(|(gpu, (free, all))| {
        let free = Bytes(free.0 + taken);
        Room { gpu: gpu.clone(), free, all, sharing }
    }))
}

/// Changes that are told.
const TOLD: usize = 5;

/// What to do where the engine's memory could not be reserved.
pub fn too_small(
    rank: &Rank,
    loaded: &Loaded,
    node: &str,
    room: Option<Room>,
    error: OutOfMemory,
) -> anyhow::Error {
    let m = &loaded.manifest;
    let stages = own::stages(m, m.data.causal()).unwrap_or_default();
    let (Some(room), Some(stage)) = (room, stages.get(rank.at.pipeline)) else {
        return error.into();
    };
    let named = m.plan.hardware.as_deref().unwrap_or("h200-141g");
    let Ok(hw) = hardware::find(named, "plan.hardware") else { return error.into() };
    let share = Bytes(room.free.0 / room.sharing as u64);
    let place = match rank.grid.size() {
        1 => m.name.clone(),
        _ => format!("rank {} (node {node}, {})", rank.number(), rank.at.name()),
    };
    let others = match room.sharing {
        1 => String::new(),
        ranks => format!(" for its {ranks} ranks between them"),
    };
    let what = format!(
        "out of memory: {} has {} of its {}{others}; this rank needs {}",
        room.gpu, room.free, room.all, stage.bill
    );
    let ladder = change::own_ladder(m, &loaded.effective, share, hw);
    let step = |change: &change::Smaller| {
        let sets: Vec<String> = change.sets.iter().map(|set| format!("--set {set}")).collect();
        format!("{} ({})", sets.join(" "), change.bytes)
    };
    let remedy = match ladder.as_slice() {
        [] => "no small change is enough: take more GPUs and cut further (topology.tensor, \
               .pipeline, .zero), as `gptrain estimate --search` finds"
            .to_string(),
        some => some.iter().take(TOLD).map(step).collect::<Vec<_>>().join("\n      or "),
    };
    Problems::one(place, what, remedy).into()
}
