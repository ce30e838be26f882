//! Messages of a start: the run and its data, the placement of its ranks, the memory of the fullest rank.

use super::super::saving::Saver;
use super::{Device, Process, Rank};
use base::{Bytes, Count};
use checkpoint::State;
use data::Datasets;
use engine::{Engine, lr};
use manifest::{Manifest, Topology};
use plan::grid::{GRADIENT_AXES, SHARES};
use std::collections::BTreeMap;

/// Epochs of a dataset above which more of them teach nothing (Muennighoff et al. 2023).
const WORTHLESS_EPOCHS: f64 = 40.0;

/// Prints the run, its epochs and notes, on rank 0.
pub fn announce_run(process: &Process, rank: &Rank, data: &Datasets) -> anyhow::Result<()> {
    if !rank.is_first() {
        return Ok(());
    }
    let m = &process.loaded.manifest;
    let tokens = m.schedule().tokens(m.train.samples);
    let (epochs, most) = epochs(data, m.train.samples);
    tracing::info!(
        "{}: {} parameters, {} steps, {} tokens ({epochs}), {}",
        m.name,
        Count(model::parameters(&m.model)),
        Count(m.batch.ramp().steps(m.train.samples)),
        Count(tokens),
        m.precision.name(),
    );
    for line in describe_mixture(data, m.train.samples) {
        tracing::info!("{line}");
    }
    if most > WORTHLESS_EPOCHS {
        tracing::warn!(
            "{epochs} of the training data: after {WORTHLESS_EPOCHS} more of them teach nothing; a \
             shorter run (train.steps) or more data is as good"
        );
    }
    for note in m
        .notes()
        .into_iter()
        .chain(model::named_size_note(&m.name, &m.model))
    {
        tracing::warn!("{note}");
    }
    tracing::info!("sample order: {} of host memory in each process", data.order_bytes());
    Ok(())
}

/// Datasets of a mixture that a start lists.
const MAX_DATASETS_SHOWN: usize = 100;

/// Samples and epochs of each of several training datasets in a run of `samples`, as lines.
fn describe_mixture(data: &Datasets, samples: u64) -> Vec<String> {
    let cursors = data.train.cursors(samples);
    if cursors.len() < 2 {
        return Vec::new();
    }
    let read: u64 = cursors.iter().map(|cursor| cursor.samples).sum();
    let mut lines = vec![format!("{} training datasets:", cursors.len())];
    lines.extend(cursors.iter().take(MAX_DATASETS_SHOWN).map(|cursor| {
        format!(
            "  {:6.2} %, {} samples, {:.2} epochs: {}",
            100.0 * cursor.samples as f64 / read.max(1) as f64,
            Count(cursor.samples),
            cursor.samples as f64 / cursor.per_epoch.max(1) as f64,
            cursor.prefix.display()
        )
    }));
    if cursors.len() > MAX_DATASETS_SHOWN {
        lines.push(format!("  and {} more", cursors.len() - MAX_DATASETS_SHOWN));
    }
    lines
}

/// Epochs of the training data in a run of `samples`, as text, and the epochs of the most repeated dataset.
fn epochs(data: &Datasets, samples: u64) -> (String, f64) {
    let cursors = data.train.cursors(samples).into_iter();
    let each = cursors.map(|cursor| cursor.samples as f64 / cursor.per_epoch.max(1) as f64);
    let least = each.clone().fold(f64::INFINITY, f64::min);
    let most = each.fold(0.0, f64::max);
    let digits = |epochs: f64| match epochs {
        ..1.0 => 2,
        ..10.0 => 1,
        _ => 0,
    };
    let text = if least < 0.9 * most {
        format!("{least:.*} to {most:.*}", digits(least), digits(most))
    } else {
        format!("{most:.*}", digits(most))
    };
    (format!("{text} epochs"), most)
}

/// Prints the placement of the ranks, and the memory of the rank with the largest plan. A collective.
pub fn announce_ranks(
    process: &Process,
    rank: &Rank,
    device: &Device,
    engine: &Engine,
) -> anyhow::Result<()> {
    let m = &process.loaded.manifest;
    let place = (process.node.clone(), device.gpu().map(|gpu| gpu.ordinal));
    let mine = (place, engine.memory_plan().total().0, engine.memory_plan().to_string());
    let ranks = rank.gather(&mine)?;
    if !rank.is_first() {
        return Ok(());
    }
    if rank.grid.size() > 1 {
        let places: Vec<_> = ranks.iter().map(|(place, ..)| place.clone()).collect();
        tracing::info!("{}", placement(process, rank, &places));
        warn_of_split_tensor_group(rank, &places);
        let nodes: Vec<&str> = places.iter().map(|(node, _)| node.as_str()).collect();
        if let Some(warning) = split_shard_group(&m.topology, &nodes) {
            tracing::warn!("{warning}");
        }
    }
    let most = ranks
        .iter()
        .enumerate()
        .max_by_key(|(rank, (_, total, _))| (*total, usize::MAX - rank));
    let Some((fullest, (.., memory_plan))) = most else { return Ok(()) };
    if m.topology.compression.is_some() && m.topology.data == 1 {
        tracing::info!(
            "topology.compression: one replica sends no gradients, so none is compressed"
        );
    }
    match rank.grid.size() {
        1 => tracing::info!("memory: {memory_plan}"),
        _ => tracing::info!("memory of rank {fullest}, which takes most: {memory_plan}"),
    }
    Ok(())
}

/// Prints the host memory of all ranks' snapshots. A collective.
pub fn announce_snapshots(rank: &Rank, saver: &Saver) -> anyhow::Result<()> {
    let bytes: u64 = rank.gather(&saver.bytes().0)?.iter().sum();
    if rank.is_first() {
        tracing::info!("checkpoints: {} of host memory for snapshots", Bytes(bytes));
    }
    Ok(())
}

/// Warns of steps without a useful learning rate, and of one that rises because the run is longer.
pub fn warn_of_schedule(rank: &Rank, m: &Manifest, state: &State) {
    let step = state.progress.step;
    let samples = state.progress.consumed_samples;
    if !rank.is_first() {
        return;
    }
    if let Some(note) = m.schedule_note(step, samples) {
        tracing::warn!("{note}");
    }
    let next = m.step_samples().after(samples);
    let rate = lr::for_step(&m.lr, &next);
    let decays = step > 0 && samples >= m.lr.warmup_samples && next.end <= m.train.samples;
    if decays && rate > 2.0 * state.lr {
        let lr = state.lr;
        let hold = if lr > 0.0 {
            format!(
                "\n    → as it was, and constant: --set lr.decay=constant --set lr.min=0 --set \
                 lr.peak={lr:e}"
            )
        } else {
            String::new()
        };
        let next = step + 1;
        tracing::warn!(
            "the learning rate was {lr:.3e} at step {step}, and is {rate:.3e} at step {next}: lr.decay \
             now ends later{hold}"
        );
    }
}

/// Nodes listed in a placement.
const MAX_NODES_SHOWN: usize = 16;

/// The ranks of each node:
/// `8 ranks (threads of a process, CPU threads each: 1): tensor 2 × pipeline 2 × data 2, gpipe, ZeRO 1`.
/// `places` is by rank: its node, and its GPU if it has one.
fn placement(process: &Process, rank: &Rank, places: &[(String, Option<usize>)]) -> String {
    let nodes: Vec<&str> = places.iter().map(|(node, _)| node.as_str()).collect();
    let topology = &process.loaded.manifest.topology;
    let mut text = format!(
        "{} ranks ({}, CPU threads each: {}): tensor {} × pipeline {} × data {}{}, ZeRO {}",
        nodes.len(),
        process.kind,
        process.threads,
        topology.tensor,
        topology.pipeline,
        topology.data,
        topology.schedule_words(),
        topology.zero
    );
    if topology.has_two_levels() {
        let shard = topology.shard_size();
        text += &format!(" in {} shard groups of {shard}", topology.data / shard);
    }
    if topology.copies_states() {
        text += ", each with all states";
    }
    let mut ranks: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        let first = nodes
            .iter()
            .position(|other| other == node)
            .unwrap_or(number);
        let place = rank.grid.coord(number).name();
        let gpu = places[number]
            .1
            .map(|gpu| format!(" GPU {gpu}"))
            .unwrap_or_default();
        ranks
            .entry(first)
            .or_default()
            .push(format!("{number} {place}{gpu}"));
    }
    for (first, list) in ranks.iter().take(MAX_NODES_SHOWN) {
        text += &format!("\n  {}: {}", nodes[*first], list.join(" · "));
    }
    if ranks.len() > MAX_NODES_SHOWN {
        text += &format!("\n  and {} more nodes", ranks.len() - MAX_NODES_SHOWN);
    }
    text
}

/// Warns if the ranks of a tensor group are on several nodes.
fn warn_of_split_tensor_group(rank: &Rank, places: &[(String, Option<usize>)]) {
    let group_of = |number| rank.grid.group(rank.grid.coord(number), SHARES);
    let node = |number: usize| &places[number].0;
    if let Some(number) = (0..places.len()).find(|number| {
        group_of(*number)
            .iter()
            .any(|other| node(*other) != node(*number))
    }) {
        let group = group_of(number);
        tracing::warn!(
            "the tensor-parallel ranks {group:?} are not on one node, which is slow: start a \
             multiple of {} ranks on each",
            group.len()
        );
    }
}

/// Warning if the ranks of the first shard group are on several nodes although one could hold them. `nodes`
/// is by rank.
fn split_shard_group(topology: &Topology, nodes: &[&str]) -> Option<String> {
    if !topology.has_two_levels() {
        return None;
    }
    let grid = topology.grid();
    let replicas = grid.group(grid.first(), GRADIENT_AXES);
    let group = topology.levels(0).shard_group(&replicas);
    let on_first = nodes.iter().filter(|node| **node == nodes[0]).count();
    let is_split = group.iter().any(|rank| nodes[*rank] != nodes[group[0]]);
    (is_split && group.len() * topology.tensor <= on_first).then(|| {
        format!(
            "the ranks {group:?} of a shard group are not on one node, which is slow: start the ranks of \
             a node one after the other, as srun does with --distribution=block, or set topology.shard \
             to node"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_group_on_several_nodes_is_named() {
        let text = "
model: {layers: 4, hidden: 32, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 8}
lr: {peak: 1e-3}
train: {samples: 80}
topology: {data: 4, shard: 2}
";
        let m = manifest::for_test::<&str>(text, &[]);
        assert_eq!(split_shard_group(&m.topology, &["a", "a", "b", "b"]), None);
        let warning = split_shard_group(&m.topology, &["a", "b", "a", "b"]).expect("a warning");
        assert!(warning.starts_with("the ranks [0, 1] of a shard group are not on one node"));
        assert_eq!(split_shard_group(&m.topology, &["a", "b", "c", "d"]), None, "a rank per node");
        let one_level = manifest::for_test(text, &["topology.shard=all"]);
        assert_eq!(split_shard_group(&one_level.topology, &["a", "b", "a", "b"]), None);
    }
}
