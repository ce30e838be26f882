//! Order of a rank's work: two accesses to one byte, one of them a write, are ordered by waits
//! between their queues, in every manifest and on every kind of grid.

use crate::common;
use gptrain::comm::Solo;
use gptrain::comm::dry::{self, Journal};
use gptrain::device::Dry;
use gptrain::engine::{Engine, Groups};
use gptrain::manifest::{Batch, Manifest, Train, load};
use gptrain::plan::grid::Axis;
use std::path::Path;
use std::rc::Rc;

/// Groups of a stage's first rank, which only count.
pub fn dry_groups(m: &Manifest, stage: usize, journal: &Rc<Journal>) -> Groups {
    let grid = m.topology.grid();
    let rank = grid.rank(grid.first().with(Axis::Pipeline, stage));
    Groups::for_rank(rank, &m.topology, |name, ranks| {
        let index = ranks
            .iter()
            .position(|member| *member == rank)
            .expect("a member");
        match ranks.len() {
            1 => Box::new(Solo),
            size => Box::new(dry::Dry::new(name, index, size, journal)),
        }
    })
}

/// Three steps of a stage's first rank, of which two are in flight at a time. Returns the races and
/// the number of waits, of which one may be left out.
fn checked(m: &Manifest, stage: usize, skip: Option<usize>) -> (Vec<String>, usize) {
    let rounds = if m.topology.chunks > 1 { m.topology.pipeline } else { 1 };
    let (micros, micro) = (2 * rounds, m.batch.micro);
    let batch = Batch::constant(micro, micros * micro * m.topology.data);
    let train = Train { device_memory: None, ..m.train.clone() };
    let m = &Manifest { batch, train, ..m.clone() };
    let device = Rc::new(Dry::ordered(skip));
    let journal = Journal::for_device(&device);
    let groups = dry_groups(m, stage, &journal);
    let engine = Engine::new(&*device, groups, m, m.data.causal()).expect("it is never full");
    let queue = || {
        engine
            .queue(&mut |_: &_| Ok(()), micros, 1e-3)
            .expect("nothing is loaded")
    };
    queue();
    for _ in 0..2 {
        queue();
        engine.outcome().expect("the device does not fail");
    }
    engine.outcome().expect("the device does not fail");
    device.order(|order| (order.races().to_vec(), order.waits()))
}

/// First, second and last stage of the pipeline.
fn stages(m: &Manifest) -> Vec<usize> {
    let last = m.topology.pipeline - 1;
    let mut stages = vec![0, last.min(1), last];
    stages.dedup();
    stages
}

#[test]
fn work_of_every_manifest_is_ordered() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let list = |folder: &Path| std::fs::read_dir(folder).expect("manifests/");
    let files = list(&folder).chain(list(&folder.join("sweep")));
    let files = files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.is_file());
    let mut count = 0;
    for file in files {
        let m = load(&file, &[])
            .unwrap_or_else(|error| panic!("{error:#}"))
            .manifest;
        for stage in stages(&m) {
            let (races, _) = checked(&m, stage, None);
            assert!(races.is_empty(), "{}, stage {stage}: {races:#?}", file.display());
        }
        count += 1;
    }
    assert!(count > 20, "{count} manifests");
}

/// Kinds of grids, each with waits that its result depends on.
const GRIDS: [&[&str]; 27] = [
    &["topology.data=2"],
    &["topology={data: 2, zero: 1}"],
    &["topology={data: 2, zero: 2}", "precision=bf16"],
    &["topology={data: 2, zero: 3}"],
    &["topology={data: 2, zero: 3, tensor: 2, sequence_parallel: true}", "precision=bf16"],
    &["topology={tensor: 2, sequence_parallel: true, recompute: selective}"],
    &["topology.pipeline=2"],
    &["topology={pipeline: 2, overlap_p2p: true, schedule: interleaved}", "model.layers=4"],
    &["topology={pipeline: 2, tensor: 2, data: 2, zero: 1}"],
    &["topology={data: 2, zero: 1, offload: optimizer}"],
    &["topology={data: 2, zero: 1, offload: {what: full, gradients: host}}", "precision=bf16"],
    &["topology={pipeline: 2, data: 2, zero: 2}", "model.layers=6", "precision=bf16"],
    &["topology={pipeline: 2, data: 2, zero: 2, schedule: gpipe}", "model.layers=6"],
    &[
        "topology={pipeline: 2, data: 2, zero: 2, tensor: 2, sequence_parallel: true, \
         schedule: interleaved, overlap_p2p: true}",
        "model.layers=4",
        "batch.global=16",
    ],
    &["topology={pipeline: 2, data: 2, zero: 2, offload: {what: full, gradients: host}}"],
    &["topology={data: 2, compression: {powersgd: {rank: 2, min_rate: 1}}}"],
    &["topology={data: 4, shard: 2}", "batch.micro=2"],
    &["topology={data: 4, shard: 2, zero: 1}", "precision=bf16", "batch.micro=2"],
    &["topology={data: 4, shard: 2, zero: 2}", "precision=bf16", "batch.micro=2"],
    &["topology={data: 4, shard: 2, zero: 3}", "model.layers=4", "batch.micro=2"],
    &[
        "topology={pipeline: 2, data: 4, shard: 2, zero: 2, tensor: 2}",
        "model.layers=6",
        "batch.micro=2",
    ],
    &[
        "topology={data: 4, shard: 2, zero: 3, offload: {what: full, gradients: host}}",
        "batch.micro=2",
    ],
    &["topology={pipeline: 2, schedule: breadth_first}", "model.layers=4"],
    &[
        "topology={pipeline: 2, data: 2, zero: 3, schedule: breadth_first, chunks: 3}",
        "model.layers=12",
        "precision=bf16",
    ],
    &[
        "topology={pipeline: 2, data: 2, zero: 2, zero_every: 2, schedule: breadth_first, tensor: 2, \
         sequence_parallel: true}",
        "model.layers=8",
    ],
    &[
        "topology={pipeline: 2, data: 4, shard: 2, zero: 3, zero_every: 3, schedule: breadth_first, \
         chunks: 3}",
        "model.layers=12",
        "batch.micro=2",
    ],
    &[
        "topology={pipeline: 2, data: 2, zero: 3, zero_every: 2, schedule: breadth_first, chunks: 3, \
         offload: {what: full, gradients: host}}",
        "model.layers=12",
    ],
];

#[test]
fn work_of_every_grid_is_ordered() {
    for sets in GRIDS {
        let m = common::manifest(sets);
        for stage in stages(&m) {
            let (races, waits) = checked(&m, stage, None);
            assert!(races.is_empty(), "stage {stage} of {sets:?}: {races:#?}");
            assert!(waits > 0, "{sets:?}");
        }
    }
}

/// Waits for the outcomes of the steps, whose bytes on the host the checker does not see.
const OUTCOMES: usize = 3;

/// Leaves out each wait in turn. A wait that a later one of the same queue includes is not missed.
#[test]
fn a_missing_wait_is_found() {
    let mut all = Vec::new();
    for sets in GRIDS {
        let m = common::manifest(sets);
        let (_, waits) = checked(&m, 0, None);
        let found = (0..waits)
            .filter(|wait| !checked(&m, 0, Some(*wait)).0.is_empty())
            .count();
        assert!(found > 0 || waits == OUTCOMES, "none of {waits} waits is missed: {sets:?}");
        all.push(found);
    }
    assert!(all.iter().sum::<usize>() > 300, "{all:?}");
}
