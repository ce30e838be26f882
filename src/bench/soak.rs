//! Soak: the collectives of a step at their sizes, again and again, so that a link that fails for a minute is
//! seen. The worst minute is printed beside the mean.

use super::bench_rank::BenchRank;
use super::collectives::{Kind, Op, bandwidths, kinds, time_op};
use super::scratch::Scratch;
use anyhow::Result;
use base::{Bytes, Seconds};
use engine::model_dtype;
use estimate::measured::{COPY_GROUPS, SHARD_GROUPS, SoakSpeed};
use launch::GroupFactory;
use manifest::Manifest;
use model::{ParamSpec, table};

/// Seconds of a window, and the least number of windows of a shorter soak.
const WINDOW: f64 = 60.0;
const FEWEST: f64 = 10.0;

/// Seconds that a collective is repeated before the next one has its turn, and the limit of repetitions.
const TURN: f64 = 0.2;
const REPEATS: usize = 200;

/// Share of its mean speed below which a worst window is noted.
const NOTED: f64 = 0.8;

/// Collective of a step.
struct Cell<'k> {
    kind: &'k Kind,
    op: Op,
    bytes: u64,
    /// Repetitions in a turn.
    repeats: usize,
    /// Seconds and number of repetitions in each window, on this rank.
    windows: Vec<(f64, usize)>,
}

/// Result of a soak, equal on every rank.
#[derive(Default)]
pub struct Soak {
    pub rows: Vec<SoakSpeed>,
    pub notes: Vec<String>,
}

/// Repeats the collectives of a step for `seconds`. A collective.
pub fn measure(
    bench: &BenchRank,
    scratch: &Scratch,
    factory: &GroupFactory,
    seconds: f64,
) -> Result<Soak> {
    let (kinds, _) = kinds(bench, factory, "soak");
    let mut cells = cells(bench.m, &kinds, scratch.half() as u64);
    if cells.is_empty() {
        let note = "soak: a step of this grid has no collectives".to_string();
        return Ok(Soak { rows: Vec::new(), notes: vec![note] });
    }
    let width = WINDOW.min(seconds / FEWEST);
    for cell in &mut cells {
        let took = time_op(bench, scratch, cell.kind, cell.op, cell.bytes, 1)?.mean;
        let repeats = (TURN / took).clamp(1.0, REPEATS as f64) as usize;
        cell.repeats = bench.rank.on_first(|| Ok(repeats))?;
    }
    let begun = bench.seconds();
    loop {
        // Rank 0's clock decides for all ranks.
        let elapsed = bench.rank.on_first(|| Ok(bench.seconds() - begun))?;
        if elapsed >= seconds {
            break;
        }
        let window = (elapsed / width) as usize;
        bench.phase(&format!("soaking, {} of {}", Seconds(elapsed), Seconds(seconds)));
        for cell in &mut cells {
            let Cell { kind, op, bytes, repeats, windows } = cell;
            let took = time_op(bench, scratch, kind, *op, *bytes, *repeats)?;
            windows.resize(windows.len().max(window + 1), (0.0, 0));
            windows[window].0 += took.mean * *repeats as f64;
            windows[window].1 += *repeats;
        }
    }
    let mine: Vec<Vec<(f64, usize)>> = cells.iter().map(|cell| cell.windows.clone()).collect();
    let all = bench.rank.all_gather(&mine)?;
    let mut soak = Soak { rows: Vec::new(), notes: Vec::new() };
    for (index, cell) in cells.iter().enumerate() {
        let ranks: Vec<&[(f64, usize)]> = all.iter().map(|ranks| ranks[index].as_slice()).collect();
        let row = summarise(cell, &ranks, width);
        soak.notes.extend(note(&row));
        soak.rows.push(row);
    }
    Ok(soak)
}

/// Collectives of a step with their bytes, as far as they fit into the memory.
fn cells<'k>(m: &Manifest, kinds: &'k [Kind], most: u64) -> Vec<Cell<'k>> {
    let mut cells = Vec::new();
    for kind in kinds {
        for (op, bytes) in step_messages(m, kind.name) {
            let windows = Vec::new();
            cells.push(Cell { kind, op, bytes: bytes.min(most), repeats: 1, windows });
        }
    }
    cells
}

/// Operations of a group in a step, and their bytes: activations of a micro-batch among tensor ranks and
/// between stages; among replicas the f32 gradients of a block's matrices, and among copies of a shard its
/// part of them.
fn step_messages(m: &Manifest, group: &str) -> Vec<(Op, u64)> {
    let tokens = (m.batch.micro * m.model.seq_len) as u64;
    let activations = tokens * m.model.hidden as u64 * model_dtype(m.precision).size() as u64;
    let matrices = table(&m.model)
        .into_iter()
        .filter(ParamSpec::is_block_matrix);
    let weights: u64 = matrices
        .map(|spec| spec.share(m.topology.tensor).iter().product::<usize>() as u64)
        .sum();
    let scattered = [Op::ReduceScatter, Op::AllGather];
    let t = &m.topology;
    let shard = 4 * weights / t.shard_size() as u64;
    match group {
        "tensor" if m.topology.sequence_parallel => scattered.map(|op| (op, activations)).into(),
        "tensor" => vec![(Op::AllReduce, activations)],
        "data" if t.has_two_levels() => Vec::new(), // single numbers
        "data" if t.zero == 0 => vec![(Op::AllReduce, 4 * weights)],
        "data" | SHARD_GROUPS => scattered.map(|op| (op, 4 * weights)).into(),
        COPY_GROUPS if t.zero == 0 || t.copies_states() => vec![(Op::AllReduce, shard)],
        COPY_GROUPS => scattered.map(|op| (op, shard)).into(),
        "pipeline edge" => vec![(Op::SendRecv, activations)],
        _ => Vec::new(),
    }
}

/// Mean and worst window of a collective, from the windows of each rank. The groups of a kind run at
/// once, and a group is as slow as its slowest rank.
fn summarise(cell: &Cell, ranks: &[&[(f64, usize)]], width: f64) -> SoakSpeed {
    let mean = |windows: &[(f64, usize)]| {
        let seconds: f64 = windows.iter().map(|window| window.0).sum();
        let repeats: usize = windows.iter().map(|window| window.1).sum();
        (repeats > 0).then(|| seconds / repeats as f64)
    };
    let slowest = |seconds: &dyn Fn(usize) -> Option<f64>| {
        let all = (0..ranks.len()).filter_map(|rank| Some((seconds(rank)?, rank)));
        all.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let size = cell.kind.groups[0].len();
    let speed = |seconds: f64| bandwidths(cell.op, size, cell.bytes, seconds).1;
    let (usual, _) = slowest(&|rank| mean(ranks[rank])).expect("a soak has a turn");
    let windows = (0..ranks[0].len()).filter_map(|window| {
        let (seconds, rank) = slowest(&|rank| mean(ranks[rank].get(window..=window)?))?;
        Some((seconds, rank, window))
    });
    let (worst, rank, window) = windows
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .expect("a soak has a window");
    let group = cell.kind.groups.iter().find(|group| group.contains(&rank));
    SoakSpeed {
        group: cell.kind.name.into(),
        op: cell.op.name().into(),
        bytes: cell.bytes,
        size,
        busbw_gb_s: speed(usual),
        worst_busbw_gb_s: speed(worst),
        window_s: width,
        worst_from_s: window as f64 * width,
        slowest: group.cloned().unwrap_or_default(),
    }
}

/// Note of a window that was much slower than the mean.
fn note(row: &SoakSpeed) -> Option<String> {
    let share = row.worst_busbw_gb_s / row.busbw_gb_s;
    (share < NOTED).then(|| {
        let SoakSpeed { group, op, bytes, slowest, .. } = row;
        let [from, width] = [row.worst_from_s, row.window_s].map(Seconds);
        let ranks: Vec<String> = slowest.iter().take(8).map(usize::to_string).collect();
        let ranks = ranks.join(", ");
        format!(
            "soak: {op} of {} in group {group} fell to {:.0} % of its mean for {width} from {from} on, in \
             the group of ranks {ranks}",
            Bytes(*bytes),
            100.0 * share
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Solo;

    fn kind(name: &'static str) -> Kind {
        let groups = vec![vec![0, 1], vec![2, 3]];
        Kind { name, groups, ops: &[], group: Box::new(Solo), ring: true }
    }

    fn manifest(sets: &[&str]) -> Manifest {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        super::super::without_manifest(&sets).unwrap().manifest
    }

    #[test]
    fn messages_have_the_sizes_of_a_step() {
        // Four samples of 1,024 tokens, 768 wide, in bf16; 12 × 768² weights of a block in f32.
        let activations = 4 * 1024 * 768 * 2;
        let gradients = 12 * 768 * 768 * 4;
        let m = manifest(&[]);
        assert_eq!(step_messages(&m, "tensor"), [(Op::AllReduce, activations)]);
        assert_eq!(step_messages(&m, "data"), [(Op::AllReduce, gradients)]);
        assert_eq!(step_messages(&m, "pipeline edge"), [(Op::SendRecv, activations)]);
        assert!(step_messages(&m, "world").is_empty());
        let sets = ["topology={tensor: 2, data: 2, zero: 1, sequence_parallel: true}"];
        let m = manifest(&[&sets[..], &["batch.global=8"]].concat());
        let scattered = [Op::ReduceScatter, Op::AllGather];
        assert_eq!(step_messages(&m, "tensor"), scattered.map(|op| (op, activations)));
        assert_eq!(step_messages(&m, "data"), scattered.map(|op| (op, gradients / 2)));
        for (zero, states) in [("0", "all"), ("1", "all"), ("1", "shard")] {
            let levels = format!("topology={{data: 4, shard: 2, zero: {zero}, states: {states}}}");
            let m = manifest(&[&levels, "batch.global=16"]);
            assert!(step_messages(&m, "data").is_empty());
            assert_eq!(step_messages(&m, "shard"), scattered.map(|op| (op, gradients)));
            let halves = scattered.map(|op| (op, gradients / 2));
            let sum = [(Op::AllReduce, gradients / 2)];
            let is_divided = (zero, states) == ("1", "all");
            let copies = if is_divided { &halves[..] } else { &sum };
            assert_eq!(step_messages(&m, "copies"), copies);
        }
        let kinds = ["tensor", "world"].map(kind);
        let cut = cells(&m, &kinds, 1 << 20);
        let bytes: Vec<u64> = cut.iter().map(|cell| cell.bytes).collect();
        assert_eq!(bytes, [1 << 20, 1 << 20], "no larger than the memory");
    }

    /// Four ranks in two groups; in the third window ranks 2 and 3 take three times as long.
    #[test]
    fn the_worst_window_and_its_group_are_found() {
        let kind = kind("data");
        let cell = Cell {
            kind: &kind,
            op: Op::AllReduce,
            bytes: 1 << 30,
            repeats: 1,
            windows: Vec::new(),
        };
        let usual = vec![(0.1, 10), (0.1, 10), (0.1, 10), (0.1, 10)];
        let mut bad = usual.clone();
        bad[2] = (0.3, 10);
        let row = summarise(&cell, &[&usual, &usual, &bad, &bad], 60.0);
        assert_eq!((row.worst_from_s, row.slowest.as_slice()), (120.0, &[2, 3][..]));
        let gib = (1u64 << 30) as f64 / 1e9;
        // Two ranks: the whole array passes each link. The slow group's mean is 15 ms.
        assert!((row.busbw_gb_s - gib / 0.015).abs() < 1e-9, "{row:?}");
        assert!((row.worst_busbw_gb_s - gib / 0.03).abs() < 1e-9, "{row:?}");
        let noted = note(&row).unwrap();
        assert!(
            noted.contains("fell to 50 % of its mean") && noted.contains("ranks 2, 3"),
            "{noted}"
        );
        let even = summarise(&cell, &[&usual, &usual, &usual, &usual], 60.0);
        assert_eq!((note(&even), even.worst_busbw_gb_s), (None, even.busbw_gb_s));
        // A window without a turn, as when a turn is longer than a window.
        let gap = [(0.1, 10), (0.0, 0), (0.1, 10)];
        assert_eq!(summarise(&cell, &[&gap[..]; 4], 60.0).worst_from_s, 120.0);
    }
}
