//! Several ranks, each with a stand-in GPU, or all with one.

use super::variables;
use crate::common::binary::{Done, Lab, Ranks, free_port, run_args};
use gptrain::device::cuda::WORKSPACE;
use gptrain::estimate::measured::Measured;
use gptrain::estimate::parts::Part;
use gptrain::launch::RANKS;
use std::process::Command;

/// The learning rate does not depend on where the run ends.
const RUN: [&str; 5] = [
    "train.device=cuda",
    "train.steps=6",
    "lr={peak: 3e-3, decay: constant}",
    "model.dropout=0.1",
    "train.eval_interval=0",
];

pub fn with<'a>(sets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [sets, more].concat()
}

/// A command on the stand-in, whose ranks meet in the lab.
pub fn on_stand_in(lab: &Lab, mut command: Command, gpus: usize) -> Command {
    command.envs(variables()).env("TMPDIR", lab.path(""));
    command.env("SOFTGPU_DEVICES", gpus.to_string());
    command
}

/// All ranks as threads of a process, to its end.
pub fn threads(lab: &Lab, gpus: usize, sets: &[&str]) -> Done {
    let mut command = on_stand_in(lab, lab.command(&run_args(sets)), gpus);
    Done::of(command.env(RANKS, "threads").output().unwrap())
}

/// All ranks as processes that see the same GPUs, left running.
pub fn processes(lab: &Lab, world: usize, gpus: usize, sets: &[&str]) -> Ranks {
    let port = free_port();
    let start = |rank| {
        on_stand_in(lab, lab.rank(rank, world, port, sets), gpus)
            .spawn()
            .unwrap()
    };
    Ranks { children: (0..world).map(start).collect() }
}

/// Losses and gradient norms of two runs are the same, but for rounding.
fn close(lab: &Lab, run: &str, other: &str) {
    let rows = |run: &str| -> Vec<[f64; 4]> {
        lab.losses(run)
            .into_iter()
            .map(|row| row.map(f64::from_bits))
            .collect()
    };
    let (ours, theirs) = (rows(run), rows(other));
    assert_eq!((ours.len(), theirs.len()), (6, 6), "steps of {run} and {other}");
    for (a, b) in ours.iter().zip(&theirs) {
        assert!((a[1] / b[1] - 1.0).abs() < 1e-5, "loss: {a:?} and {b:?}");
        assert!((a[2] / b[2] - 1.0).abs() < 1e-4, "norm: {a:?} and {b:?}");
    }
}

#[test]
fn a_grid_of_gpus_trains_as_one_cpu_and_goes_on_bit_for_bit() {
    let lab = Lab::new();
    let grid = with(&RUN, &["topology.tensor=2", "topology.pipeline=2", "checkpoint.interval=3"]);
    let whole = threads(&lab, 4, &with(&grid, &["log.folder=whole"]));
    whole.expect(0, &[]);
    assert!(
        whole
            .out
            .contains("0 TP0 PP0 DP0 GPU 0 · 1 TP1 PP0 DP0 GPU 1"),
        "{}",
        whole.out
    );
    lab.run(&with(&RUN, &["train.device=cpu", "log.folder=cpu"]))
        .well();
    close(&lab, "whole", "cpu");
    let [table] = &lab.part_tables("whole")[..] else { panic!("one table") };
    // The stand-in's clock counts kernels alone, and so no waits.
    for part in [Part::Products, Part::Attention, Part::Optimizer] {
        assert!(table.row(part).1 > 0.0, "{}: {table:?}", part.name());
    }

    threads(&lab, 4, &with(&grid, &["log.folder=parts", "train.steps=3"])).well();
    threads(&lab, 4, &with(&grid, &["log.folder=parts"])).well();
    assert_eq!(lab.losses("parts"), lab.losses("whole"));
}

#[test]
fn processes_with_a_gpu_each_or_one_for_all() {
    let lab = Lab::new();
    let zero = with(&RUN, &["topology.data=2", "topology.zero=1"]);
    let ended = processes(&lab, 2, 2, &with(&zero, &["log.folder=nccl"])).end(0..2);
    ended.iter().for_each(Done::well);
    assert!(ended[0].out.contains("1 TP0 PP0 DP1 GPU 1"), "{}", ended[0].out);
    let host = with(&zero, &["comm.gpu_transport=host", "log.folder=host"]);
    let ended = processes(&lab, 2, 1, &host).end(0..2);
    ended.iter().for_each(Done::well);
    assert!(ended[0].out.contains("1 TP0 PP0 DP1 GPU 0"), "{}", ended[0].out);
    lab.run(&with(&RUN, &["train.device=cpu", "log.folder=cpu"]))
        .well();
    close(&lab, "nccl", "cpu");
    close(&lab, "host", "cpu");
    for run in ["nccl", "host"] {
        let [table] = &lab.part_tables(run)[..] else { panic!("one table of {run}") };
        assert!(table.row(Part::Products).1 > 0.0, "{table:?}");
        assert_eq!(table.row(Part::Data).1 > 0.0, run == "host", "{table:?}");
    }
}

#[test]
fn gpus_that_are_too_few_are_told() {
    let lab = Lab::new();
    let two = with(&RUN, &["topology.data=2"]);
    let few = "2 ranks are to have a GPU each on this node, and the driver shows 1";
    let words = ["rank 1 (node ", few, "CUDA_VISIBLE_DEVICES", "comm.gpu_transport=host"];
    threads(&lab, 1, &two).expect(2, &words);
    // Each process could have been given the only one it sees.
    let ended = processes(&lab, 2, 1, &two).end(0..2);
    let words = ["rank 0 and rank 1 share one GPU of node ", "PCI 0000:01:00.0", "start 1 rank"];
    ended[0].expect(2, &words);
    ended[1].expect(2, &[]);
    assert_eq!(ended[1].err, "", "one rank says it");
}

#[test]
fn memory_that_is_too_small_is_told_with_what_to_change() {
    let lab = Lab::new();
    let run = |bytes: u64, ranks: usize, sets: &[&str]| {
        let sets = with(&with(&RUN, &["batch={micro: 4, global: 8}"]), sets);
        let mut command = on_stand_in(&lab, lab.command(&run_args(&sets)), 1);
        // 1/64 of a small GPU remains free.
        let memory = (bytes + ranks as u64 * WORKSPACE.0) * 64 / 63;
        command.env("SOFTGPU_MEMORY", memory.to_string());
        Done::of(command.output().unwrap())
    };
    let alone = run(800_000, 1, &[]);
    alone
        .expect(2, &["run: out of memory: GPU 0 (PCI 0000:01:00.0, GPU-", "--set batch.micro=2 ("]);
    let shared = ["topology.data=2", "comm.gpu_transport=host"];
    let both = run(1_600_000, 2, &shared);
    both.expect(2, &["TP0 PP0 DP", "for its 2 ranks between them", "--set batch.micro=2 ("]);
    // And so it fits.
    run(1_600_000, 2, &with(&shared, &["batch.micro=2"])).well();
}

/// Transfers and NCCL too. No rank is slow by a factor of a hundred.
#[test]
fn gpus_are_measured() {
    let lab = Lab::new();
    let words = ["bench", "run.yaml", "--quick", "--json", "--tolerance=0.99"];
    let sets = ["--set", "train.device=cuda", "--set", "topology.data=2"];
    let mut command = on_stand_in(&lab, lab.command(&[&words[..], &sets].concat()), 2);
    let done = Done::of(command.output().unwrap());
    done.expect(0, &[]);
    let found = Measured::read(&done.out, "stdout").unwrap();
    assert!(
        found
            .ranks
            .iter()
            .all(|rank| rank.upload_gb_s.is_some_and(|speed| speed > 0.0))
    );
    assert!(
        found
            .ranks
            .iter()
            .all(|rank| rank.download_gb_s.is_some_and(|speed| speed > 0.0))
    );
    let groups: Vec<&str> = found.groups.iter().map(|row| row.group.as_str()).collect();
    assert!(groups.len() >= 4 && groups.iter().all(|group| *group == "data"), "{groups:?}");
    assert_eq!((found.pairs.len(), !found.notes.is_empty()), (1, true), "two cannot tell");
}
