//! Cost at rank 0 of 100, 1,000 and 10,000 ranks: rendezvous, heartbeats, diagnosis, index, audit.
//!
//!     cargo bench --bench scale
//!
//! The other ranks are sockets of a second process, which only join, send heartbeats and leave.

use gptrain::base::{DType, majority};
use gptrain::checkpoint::{Digest, Index, Piece, Tensor, TensorState};
use gptrain::comm::tcp::testing::simulation;
use gptrain::comm::tcp::{self, Join};
use gptrain::comm::{Event, GroupCount, Op, RankReport, Watchdog, diagnose};
use gptrain::engine::{Extent, TensorSlice};
use gptrain::plan::grid::{Axis, DATA_FIRST, GRADIENT_AXES, Grid, SHARES, STAGES};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Heartbeats of every rank.
const BEATS: usize = 20;

/// Without arguments runs all worlds, each in a separate process, so that none reuses memory of
/// another.
fn main() {
    gptrain::base::input::allow_many_files();
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    match &arguments[..] {
        [world, address] => others(&join(world.parse().unwrap(), address.clone())),
        [world] => measure(world.parse().unwrap()),
        _ => {
            println!(
                "ranks | meet s | B to each | MiB | heartbeat B | CPU µs each | verdict ms | \
                 index B a piece | check ms | audit ms"
            );
            for world in ["100", "1000", "10000"] {
                assert!(itself(&[world]).status().unwrap().success());
            }
        }
    }
}

fn itself(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments);
    command
}

fn measure(world: usize) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let before = memory("VmRSS:");
    let start = Instant::now();
    let mut others = itself(&[&world.to_string(), &address]);
    let mut others = others
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let rank0 = tcp::join(&join(world, address)).unwrap_or_else(|failed| panic!("{failed}"));
    let met = start.elapsed().as_secs_f64();
    let cpu = cpu_seconds();
    drop(others.stdin.take()); // from now on the other ranks send heartbeats
    // Waits until all have left, and checks for failures meanwhile.
    drop(rank0);
    let mib = (memory("VmHWM:") - before) >> 20;
    let beat = (cpu_seconds() - cpu) / (world * BEATS) as f64;
    let told = others.wait_with_output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let beat_bytes = simulation::heartbeat_bytes(report(&grid(world), 1));
    let verdict = verdict(world);
    let (piece, check) = index(world);
    println!(
        "{world} | {met:.2} | {} | {mib} | {beat_bytes} | {:.0} | {:.3} | {piece} | {:.1} | {:.1}",
        told.trim(),
        1e6 * beat,
        1e3 * verdict,
        1e3 * check,
        1e3 * audit(world)
    );
}

/// Runs the second process.
fn others(join: &Join) {
    let ranks = simulation::meet(join).unwrap_or_else(|failed| panic!("{failed}"));
    println!("{}", ranks.received / (join.world as u64 - 1));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let grid = grid(join.world);
    for _ in 0..BEATS {
        ranks.heartbeats(|rank| report(&grid, rank)).unwrap();
    }
    ranks.leave().unwrap();
}

fn join(world: usize, address: String) -> Join {
    let long = Duration::from_secs(600);
    Join {
        rank: 0,
        world,
        node: "n1".into(),
        address,
        job: format!("scale {world}"),
        secret: b"secret".to_vec(),
        binary: 1,
        manifest: 2,
        start_timeout: long,
        watchdog: Watchdog::new(long),
        send_limit: None,
    }
}

/// Grid of tensor 4 × pipeline 5 × data.
fn grid(world: usize) -> Grid {
    let sizes = [(Axis::Tensor, 4), (Axis::Pipeline, 5), (Axis::Data, world / 20)];
    Grid::new(DATA_FIRST, &sizes)
}

/// Report of a rank 400 s after rank `hung(world)` did not enter its 100th all-reduce among
/// replicas. These replicas wait in it, the other ranks of their tensor groups wait there, and all
/// others wait in their pipelines. The diagnosis is thus at the end of a chain.
fn report(grid: &Grid, rank: usize) -> RankReport {
    let hung = hung(grid.size());
    let (at, lost) = (grid.coord(rank), grid.coord(hung));
    let same = |axis| at[axis] == lost[axis];
    let waits_in = match (same(Axis::Pipeline), same(Axis::Tensor)) {
        (true, true) => "data",
        (true, false) => "tensor",
        (false, _) => "pipeline",
    };
    let groups = [
        ("tensor", grid.group(at, SHARES)),
        ("pipeline", grid.group(at, STAGES)),
        ("data", grid.group(at, GRADIENT_AXES)),
    ];
    let event = |number: u64| Event {
        number,
        group: waits_in.into(),
        op: Op::AllReduce,
        sequence: number,
        dtype: DType::F32,
        bytes: 1 << 20,
        peer: None,
        queued: false,
        enqueued: 1.0,
        started: Some(1.0),
        awaiting: None,
        finished: (number < 100).then_some(2.0),
    };
    let count = |(name, ranks): (&str, Vec<usize>)| GroupCount {
        collectives: if name == waits_in && rank != hung { 100 } else { 99 },
        ..GroupCount::new(name, &ranks)
    };
    RankReport {
        node: format!("n{}", rank / 8),
        coord: at.name(),
        phase: "computing step 100".into(),
        now: 401.0,
        groups: groups.into_iter().map(count).collect(),
        events: (93..if rank == hung { 100 } else { 101 })
            .map(event)
            .collect(),
        ..RankReport::unknown(rank)
    }
}

fn hung(world: usize) -> usize {
    world - 2
}

/// Seconds of one check for a rank at fault.
fn verdict(world: usize) -> f64 {
    let grid = grid(world);
    let reports: Vec<_> = (0..world).map(|rank| report(&grid, rank)).collect();
    best(|| {
        let line = diagnose(&reports, 300.0).unwrap();
        assert!(line.starts_with(&format!("rank {} ", hung(world))), "{line}");
    })
}

/// Bytes per piece in the index of 16 matrices with three states, each split among all ranks; and
/// seconds to check it.
fn index(world: usize) -> (usize, f64) {
    let (folder, source) = (tempfile::tempdir().unwrap(), GPT);
    let loaded = gptrain::manifest::parse(source, "bench", folder.path(), &[]).unwrap();
    let state = gptrain::train::saving::initial_state(&loaded, Vec::new());
    let slice = |rank: usize| TensorSlice { at: [rank, 0], size: [1, 512] };
    let shards = (0..world).map(|rank| gptrain::checkpoint::Shard {
        file: format!("master-{rank:05}.safetensors"),
        bytes: 4096 + 48 * 2048,
        header_bytes: 4096,
        header_digest: Digest::default(),
    });
    let tensor = |number: usize| {
        let piece = |state: usize, rank: usize| Piece {
            shard: rank,
            byte: 4096 + 2048 * (3 * number + state) as u64,
            slice: slice(rank),
            chunks: vec![Digest::default()],
        };
        let state = |(i, name): (usize, &str)| {
            let pieces = Some((0..world).map(|rank| piece(i, rank)).collect());
            let (dtype, extent, digest) = (DType::F32, Extent::default(), Digest::default());
            (name.to_string(), TensorState { dtype, extent, digest, pieces })
        };
        let states = ["model", "first_moment", "second_moment"]
            .into_iter()
            .enumerate();
        Tensor {
            name: format!("block.{number}.weight"),
            shape: vec![world, 512],
            decay: true,
            states: states.map(state).collect::<BTreeMap<_, _>>(),
            copies: Vec::new(),
        }
    };
    let index = Index::new(state, (0..16).map(tensor).collect(), shards.collect());
    let bytes = index.text().unwrap().len() / (48 * world);
    (bytes, best(|| index.check().unwrap()))
}

/// Seconds in which a rank compares the digests of 1,000 weights of all ranks.
fn audit(world: usize) -> f64 {
    let digests: Vec<u64> = (0..world)
        .map(|rank| 7 + u64::from(rank == world / 2))
        .collect();
    best(|| {
        for _ in 0..1000 {
            black_box(majority(black_box(&digests)));
        }
    })
}

/// Minimum seconds of three runs.
fn best(what: impl Fn()) -> f64 {
    let seconds = (0..3).map(|_| {
        let start = Instant::now();
        what();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

/// Current or maximum memory of this process in bytes.
fn memory(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    line.split_whitespace()
        .next()
        .unwrap()
        .parse::<u64>()
        .unwrap()
        << 10
}

/// Processor time of this process, in hundredths of a second.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = text.rsplit(')').next().unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks
        .map(|ticks| ticks.parse::<f64>().unwrap())
        .sum::<f64>()
        / 100.0
}

const GPT: &str = "
model: {layers: 1, hidden: 16, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 1}
lr: {peak: 1e-3, decay: constant}
train: {samples: 800}
";
