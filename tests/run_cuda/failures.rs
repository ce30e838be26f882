//! What befalls ranks with GPUs: one is killed, stopped, its GPU fails or hangs, its numbers are not
//! finite. The others end by themselves, with one line for the job.

use super::binary::{Done, Lab, Ranks, run_args, verdict};
use super::built_for_gpus;
use super::ranks::{on_stand_in, processes, with};
use rustix::process::Signal;
use std::process::Command;

const TWO: [&str; 3] = ["train.device=cuda", "topology.data=2", "topology.zero=1"];

/// To run until something happens.
const LONG: [&str; 3] = ["train.steps=1000000", "log.interval=100000", "train.eval_interval=0"];

/// Two ranks as threads.
fn two_threads(lab: &Lab, sets: &[&str]) -> Command {
    on_stand_in(lab, lab.command(&run_args(&with(&TWO, sets))), 2)
}

/// Two ranks as processes, which have taken some steps.
fn two_processes(lab: &Lab, sets: &[&str]) -> Ranks {
    let ranks = processes(lab, 2, 2, &with(&TWO, &with(&LONG, sets)));
    lab.wait_for_steps("runs/a", 3);
    ranks
}

#[test]
fn a_killed_rank_is_named_by_those_whose_gpus_wait_for_it() {
    let lab = Lab::new();
    if !built_for_gpus(&lab) {
        return;
    }
    for victim in [1, 0] {
        let before = lab.metrics("runs/a").len();
        let ranks = processes(&lab, 2, 2, &with(&TWO, &LONG));
        lab.wait_for_steps("runs/a", before + 3);
        ranks.signal(victim, Signal::KILL);
        let line = verdict(&ranks.end([1 - victim]));
        assert!(line.contains(&format!("rank {victim} ")) && line.contains("died"), "{line}");
    }
}

#[test]
fn a_stopped_rank_is_named_by_those_whose_gpus_wait_for_it() {
    let lab = Lab::new();
    if !built_for_gpus(&lab) {
        return;
    }
    let ranks = two_processes(&lab, &["comm.timeout_s=5"]);
    ranks.signal(1, Signal::STOP);
    let line = verdict(&ranks.end([0]));
    let said = line.contains("is silent for") || line.contains("never entered");
    assert!(said && line.contains("rank 1 (node") && line.contains("TP0 PP0 DP1"), "{line}");
}

/// The process lives and says so: what is known of its GPU names it.
#[test]
fn a_gpu_that_hangs_is_named_by_the_collective_it_never_came_to() {
    let lab = Lab::new();
    if !built_for_gpus(&lab) {
        return;
    }
    let mut command = two_threads(&lab, &with(&LONG, &["comm.timeout_s=5"]));
    let line = verdict(&[Done::of(command.env("SOFTGPU_FAIL", "1:300:0").output().unwrap())]);
    assert!(line.contains("rank 1 (") && line.contains("TP0 PP0 DP1"), "{line}");
    assert!(line.contains(" never entered ") && line.contains(" of group data"), "{line}");
    assert!(line.contains("last event: computing step "), "{line}");
}

#[test]
fn a_gpu_that_fails_is_named_with_its_error_and_the_step() {
    let lab = Lab::new();
    if !built_for_gpus(&lab) {
        return;
    }
    let mut command = two_threads(&lab, &LONG);
    let failed = Done::of(command.env("SOFTGPU_FAIL", "1:300:719").output().unwrap());
    let line = verdict(std::slice::from_ref(&failed));
    assert!(
        line.contains("rank 1 (node ") && line.contains("TP0 PP0 DP1) failed: GPU 1"),
        "{line}"
    );
    assert!(line.contains("(PCI 0000:02:00.0, GPU-0000"), "{line}");
    assert!(line.contains("CUDA_ERROR_LAUNCH_FAILED") && line.contains("Xid"), "{line}");
    assert!(line.contains("last event: computing step "), "{line}");
    let dumps = lab.path("runs/a/failures");
    let dump = std::fs::read_dir(dumps).unwrap().next().unwrap().unwrap().path();
    let told = lab.gptrain(&["diagnose", dump.to_str().unwrap()]);
    told.expect(0, &[]);
    assert!(told.out.contains(line.trim_start_matches("gptrain: ")), "{}", told.out);
}

#[test]
fn processes_whose_gpu_fails_end_with_one_line() {
    let lab = Lab::new();
    if !built_for_gpus(&lab) {
        return;
    }
    let sets = with(&TWO, &LONG);
    let port = super::binary::free_port();
    let start = |rank| {
        let mut command = on_stand_in(&lab, lab.rank(rank, 2, port, &sets), 2);
        command.env("SOFTGPU_FAIL", "1:300:214").spawn().unwrap()
    };
    let line = verdict(&Ranks { children: (0..2).map(start).collect() }.end(0..2));
    assert!(line.contains("rank 1 (node ") && line.contains("ECC_UNCORRECTABLE"), "{line}");
}

#[test]
fn the_only_gpu_of_a_run_fails() {
    let lab = Lab::new();
    if !built_for_gpus(&lab) {
        return;
    }
    let sets = with(&["train.device=cuda"], &LONG);
    let mut command = on_stand_in(&lab, lab.command(&run_args(&sets)), 1);
    let done = Done::of(command.env("SOFTGPU_FAIL", "0:300:999").output().unwrap());
    let words = ["GPU 0 (PCI 0000:01:00.0, ", "CUDA_ERROR_UNKNOWN", "Xid", "computing step "];
    done.expect(1, &words);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    assert!(lab.path("runs/a/failures").exists());
}

#[test]
fn numbers_of_a_gpu_that_are_not_finite_name_tensor_rank_and_step() {
    let lab = Lab::new();
    if !built_for_gpus(&lab) {
        return;
    }
    let wild = ["lr={peak: 1000, decay: constant}", "optimizer.adamw.weight_decay=1"];
    let done = Done::of(two_threads(&lab, &wild).output().unwrap());
    done.expect(1, &["step ", "gradient", "on rank ", "(TP0 PP0 DP", "weights are still those of"]);
}
