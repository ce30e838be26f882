//! Collectives of each group of the real grid, with all groups of a kind running at once. algbw and
//! busbw as defined by nccl-tests (doc/PERFORMANCE.md), GB = 10⁹ bytes.

use super::bench_rank::BenchRank;
use super::scratch::{Scratch, Timing, timed_together};
use anyhow::Result;
use base::{Bytes, DType};
use comm::{Group, Message};
use device::{Tensor, op};
use estimate::measured::{COPY_GROUPS, GroupSpeed, LATENCY_BYTES, SHARD_GROUPS};
use launch::GroupFactory;
use plan::grid::{Axis, GRADIENT_AXES, SHARES, STAGES};
use plan::levels::Levels;

/// Sizes of the array: one for the latency, a first try, and 1 MiB … 1 GiB.
const SIZES: [u64; 8] =
    [LATENCY_BYTES, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];
const QUICK: [u64; 5] = [LATENCY_BYTES, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// Above this number of ranks, collectives of the whole world are left out, because each rank would
/// connect to all others.
const LARGEST_WORLD: usize = 128;

/// End of this part in seconds since the start, normal and quick.
const END: (f64, f64) = (36.0, 5.6);

/// Maximum repetitions of an op on one size, and repetitions per batch.
const REPEATS: usize = 20;
const BATCH: usize = 5;

/// Measured operation of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    AllReduce,
    ReduceScatter,
    AllGather,
    /// Each rank sends to the next and receives from the previous one.
    SendRecv,
}

impl Op {
    pub(super) const ALL: [Op; 4] = [Op::AllReduce, Op::ReduceScatter, Op::AllGather, Op::SendRecv];

    pub(super) fn name(self) -> &'static str {
        match self {
            Op::AllReduce => "all_reduce",
            Op::ReduceScatter => "reduce_scatter",
            Op::AllGather => "all_gather",
            Op::SendRecv => "send_recv",
        }
    }

    /// busbw / algbw among n ranks: the share of the array that passes each rank's link.
    fn bus_factor(self, n: usize) -> f64 {
        let share = (n - 1) as f64 / n as f64;
        match self {
            Op::AllReduce => 2.0 * share,
            Op::ReduceScatter | Op::AllGather => share,
            Op::SendRecv => 1.0,
        }
    }
}

/// algbw and busbw in GB/s of an op on an array of `bytes` among n ranks.
pub(super) fn bandwidths(op: Op, n: usize, bytes: u64, seconds: f64) -> (f64, f64) {
    let algbw = bytes as f64 / seconds / 1e9;
    (algbw, algbw * op.bus_factor(n))
}

/// Groups of one kind.
pub(super) struct Kind {
    pub name: &'static str,
    /// World ranks of each group.
    pub groups: Vec<Vec<usize>>,
    pub ops: &'static [Op],
    /// Group of this rank.
    pub group: Box<dyn Group>,
    /// Whether messages form a ring: the last rank sends to the first.
    pub ring: bool,
}

pub struct Groups {
    pub rows: Vec<GroupSpeed>,
    pub notes: Vec<String>,
}

/// Measures every op of every kind of group, from the smallest size up while time permits. The rows
/// are equal on every rank.
pub fn measure(bench: &BenchRank, scratch: &Scratch, factory: &GroupFactory) -> Result<Groups> {
    let (kinds, mut notes) = kinds(bench, factory, "bench");
    if kinds.is_empty() {
        return Ok(Groups { rows: Vec::new(), notes });
    }
    let cells = || {
        kinds
            .iter()
            .flat_map(|kind| kind.ops.iter().map(move |op| (kind, *op)))
    };
    let sizes: &[u64] = if bench.options.quick { &QUICK } else { &SIZES };
    let fits = sizes
        .iter()
        .filter(|bytes| **bytes <= scratch.half() as u64);
    let sizes: Vec<u64> = fits.copied().collect();
    // Size and mean seconds of the last measurement of each op.
    let mut last: Vec<Option<(u64, f64)>> = vec![None; cells().count()];
    let mut rows = Vec::new();
    for (at, bytes) in sizes.iter().copied().enumerate() {
        bench.phase(&format!("measuring groups, {} at a time", Bytes(bytes)));
        let budget = bench
            .rank
            .on_first(|| Ok(budget(bench, sizes.len() - at)))?
            / last.len() as f64;
        let mut mine = Vec::new();
        for ((kind, op), known) in cells().zip(&last) {
            let repeats = match known {
                // The time of the smallest size does not predict the next.
                Some((LATENCY_BYTES, _)) => bench.rank.on_first(|| Ok(tries(bench)))?,
                _ => repeats(*known, bytes, budget),
            };
            mine.push(match repeats {
                0 => None,
                repeats => Some(time_op(bench, scratch, kind, op, bytes, repeats)?),
            });
        }
        let all = bench.rank.all_gather(&mine)?;
        for (cell, (kind, op)) in cells().enumerate() {
            let timings: Option<Vec<Timing>> = all.iter().map(|ranks| ranks[cell]).collect();
            if let Some(timings) = timings {
                let mean = timings.iter().map(|timing| timing.mean).fold(0.0, f64::max);
                last[cell] = Some((bytes, mean));
                rows.push(row(bench, kind, op, bytes, &timings));
            }
        }
    }
    rows.sort_by_key(|row: &GroupSpeed| {
        let cell = cells().position(|(kind, op)| (kind.name, op.name()) == (&row.group, &row.op));
        (cell, row.bytes)
    });
    if last
        .iter()
        .flatten()
        .any(|(bytes, _)| Some(bytes) < sizes.last())
    {
        notes.push("some larger messages were left out: there was no time for them".into());
    }
    Ok(Groups { rows, notes })
}

/// Groups of the grid, and the world if it is another group. Their names begin with `prefix`.
pub(super) fn kinds(
    bench: &BenchRank,
    factory: &GroupFactory,
    prefix: &str,
) -> (Vec<Kind>, Vec<String>) {
    let (grid, at, world) = (bench.rank.grid, bench.rank.coord, bench.rank.grid.size());
    let all_ranks = || (0..world).collect::<Vec<usize>>();
    let every_group = |group: &dyn Fn(usize) -> Vec<usize>| -> Vec<Vec<usize>> {
        let groups = (0..world).map(|rank| (rank, group(rank)));
        groups
            .filter(|(rank, group)| group[0] == *rank)
            .map(|(_, group)| group)
            .collect()
    };
    let every = |axes: &[Axis]| every_group(&|rank| grid.group(grid.coord(rank), axes));
    let mut kinds = Vec::new();
    let mut add = |name, groups: Vec<Vec<usize>>, mine: Vec<usize>, ops, ring| {
        if mine.len() > 1 {
            let group = factory.group(&format!("{prefix} {name}"), &mine);
            kinds.push(Kind { name, groups, ops, group, ring });
        }
    };
    const ALL: &[Op] = &Op::ALL;
    add("tensor", every(SHARES), grid.group(at, SHARES), ALL, true);
    add("pipeline edge", every(STAGES), grid.group(at, STAGES), &[Op::SendRecv], false);
    add("data", every(GRADIENT_AXES), grid.group(at, GRADIENT_AXES), ALL, true);
    let topology = &bench.m.topology;
    if topology.has_two_levels() {
        let mut add_level = |name, members: fn(Levels, &[usize]) -> Vec<usize>| {
            let group = |rank| {
                let replicas = grid.group(grid.coord(rank), GRADIENT_AXES);
                let place = replicas.iter().position(|replica| *replica == rank);
                members(topology.levels(place.expect("a replica of itself")), &replicas)
            };
            add(name, every_group(&group), group(grid.rank(at)), ALL, true);
        };
        add_level(SHARD_GROUPS, Levels::shard_group);
        add_level(COPY_GROUPS, Levels::copy_group);
    }
    let mut notes = Vec::new();
    let is_world = [SHARES, GRADIENT_AXES]
        .iter()
        .any(|axes| grid.along(axes) == world);
    if !is_world && world <= LARGEST_WORLD {
        add("world", vec![all_ranks()], all_ranks(), ALL, true);
    } else if !is_world {
        notes.push(format!("the world's collectives were left out above {LARGEST_WORLD} ranks"));
    }
    (kinds, notes)
}

/// Seconds for one size when `sizes` sizes remain. Small sizes leave part of their share to large
/// ones.
fn budget(bench: &BenchRank, sizes: usize) -> f64 {
    let left = (bench.allow(END.0, END.1) - bench.seconds()).max(0.0);
    left * (2.0 / sizes as f64).min(0.8)
}

/// Repetitions of an op on the second size: a few while any time remains.
fn tries(bench: &BenchRank) -> usize {
    if budget(bench, 1) > 0.0 { 2 } else { 0 }
}

/// Repetitions of an op in `budget` seconds, estimated from a smaller size, if there is one. 0 if
/// there is no time.
fn repeats(known: Option<(u64, f64)>, bytes: u64, budget: f64) -> usize {
    match known {
        None => REPEATS,
        Some((before, seconds)) => {
            let once = seconds * bytes as f64 / before as f64;
            // One more run warms up.
            ((budget / once) as usize).saturating_sub(1).min(REPEATS)
        }
    }
}

/// Times an op on this rank.
pub(super) fn time_op(
    bench: &BenchRank,
    scratch: &Scratch,
    kind: &Kind,
    op: Op,
    bytes: u64,
    repeats: usize,
) -> Result<Timing> {
    let be = bench.backend();
    let group = &*kind.group;
    scratch.with(|arena| {
        // All ranks' parts are equal.
        let numel = (bytes as usize / 4).max(group.size()) / group.size() * group.size();
        let [x, y] = [0; 2].map(|_| arena.matrix(1, numel, DType::F32));
        be.run(op::Zero { x: x.set() }); // sums of zeros remain zero
        let part = x.span(group.rank() * (numel / group.size()), numel / group.size());
        let messages = messages(group, kind.ring, x, y);
        // Several in a row hide the kernel launches of a GPU, and differences in the ranks' start.
        let each = repeats.min(BATCH);
        timed_together(be, repeats / each, each, || match op {
            Op::AllReduce => group.all_reduce(x),
            Op::ReduceScatter => group.reduce_scatter(x, part),
            Op::AllGather => group.all_gather(part, x),
            Op::SendRecv => group.exchange(&messages),
        })
    })
}

/// Messages to the next rank and from the previous one.
fn messages(group: &dyn Group, ring: bool, x: Tensor, y: Tensor) -> Vec<Message> {
    let rank = group.rank();
    let size = group.size();
    let send = (ring || rank + 1 < size).then_some(Message::Send { to: (rank + 1) % size, x });
    let from = (rank + size - 1) % size;
    let receive = (ring || rank > 0).then_some(Message::Recv { from, x: y });
    send.into_iter().chain(receive).collect()
}

/// Row of the slowest group, from all ranks' timings.
fn row(bench: &BenchRank, kind: &Kind, op: Op, bytes: u64, all: &[Timing]) -> GroupSpeed {
    let seconds = |group: &Vec<usize>| group.iter().map(|rank| all[*rank].best).fold(0.0, f64::max);
    let slowest = kind
        .groups
        .iter()
        .max_by(|a, b| seconds(a).total_cmp(&seconds(b)))
        .expect("there is a group");
    let size = slowest.len();
    let (algbw_gb_s, busbw_gb_s) = bandwidths(op, size, bytes, seconds(slowest));
    GroupSpeed {
        group: kind.name.into(),
        size,
        groups: kind.groups.len(),
        in_node: kind.groups.iter().all(|group| {
            group
                .iter()
                .all(|rank| bench.nodes[*rank] == bench.nodes[group[0]])
        }),
        op: op.name().into(),
        bytes,
        seconds: seconds(slowest),
        algbw_gb_s,
        busbw_gb_s,
        slowest: slowest.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_follow_from_the_time_of_a_smaller_size() {
        let mib = 1u64 << 20;
        assert_eq!(repeats(None, LATENCY_BYTES, 0.0), REPEATS);
        // 4 MiB take 40 ms: five fit into 0.2 s, one of them to warm up.
        assert_eq!(repeats(Some((mib, 0.01)), 4 * mib, 0.21), 4);
        assert_eq!(repeats(Some((mib, 0.01)), 4 * mib, 100.0), REPEATS);
        assert_eq!(repeats(Some((mib, 0.01)), 4 * mib, 0.05), 0);
        // A skipped size: extrapolated from the last measured one.
        assert_eq!(repeats(Some((mib, 0.01)), 16 * mib, 0.33), 1);
    }

    /// Factors of nccl-tests: 2(n−1)/n, (n−1)/n, (n−1)/n, 1.
    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        let gib = 1u64 << 30;
        let expect = |op, n, algbw: f64, busbw: f64| {
            let (alg, bus) = bandwidths(op, n, gib, 0.01);
            assert!((alg - algbw).abs() < 1e-9 && (bus - busbw).abs() < 1e-9, "{alg} {bus}");
        };
        expect(Op::AllReduce, 8, 107.3741824, 187.9048192);
        expect(Op::AllReduce, 2, 107.3741824, 107.3741824);
        expect(Op::ReduceScatter, 8, 107.3741824, 93.9524096);
        expect(Op::AllGather, 4, 107.3741824, 80.5306368);
        expect(Op::SendRecv, 2, 107.3741824, 107.3741824);
    }
}
