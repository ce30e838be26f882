//! One process per GPU without a launcher: `gptrain run` starts its ranks, forwards signals, ends with
//! their code, and leaves no process behind.

use super::ranks::{on_stand_in, threads, with};
use crate::common::binary::{Done, Lab, Ranks, has_ended, process_state, run_args, until, verdict};
use gptrain::launch::RANKS;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;

const TWO: [&str; 4] =
    ["train.device=cuda", "topology.data=2", "topology.zero=1", "train.eval_interval=0"];
const LONG: [&str; 2] = ["train.steps=1000000", "log.interval=100000"];

fn command(lab: &Lab, sets: &[&str]) -> Command {
    on_stand_in(lab, lab.command(&run_args(sets)), 2)
}

/// Processes that a process has started, in order.
fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero();
    let children = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let numbers = children
        .split_whitespace()
        .map(|text| text.parse().unwrap());
    numbers
        .map(|number| Pid::from_raw(number).unwrap())
        .collect()
}

/// A run that has taken some steps, and its ranks.
fn running(lab: &Lab, sets: &[&str]) -> (Ranks, Vec<Pid>) {
    let run = Ranks { children: vec![command(lab, sets).spawn().unwrap()] };
    run.reach(lab, "runs/a", 3);
    let ranks = children(run.pid(0));
    assert_eq!(ranks.len(), 2);
    (run, ranks)
}

/// Waits until these processes are gone; a zombie is, too.
fn all_gone(ranks: &[Pid]) {
    let is_gone = |rank: &Pid| process_state(*rank).is_none_or(|state| "ZX".contains(state));
    until("no rank is left", || ranks.iter().all(is_gone));
}

#[test]
fn each_gpu_gets_a_process_with_the_same_bits_as_a_thread() {
    let lab = Lab::new();
    let sets = with(&TWO, &["model.dropout=0.1"]);
    let set = |folder| with(&sets, &[folder]);
    let by_default = Done::of(
        command(&lab, &set("log.folder=processes"))
            .output()
            .unwrap(),
    );
    by_default.expect(0, &[]);
    assert_eq!(by_default.err, "");
    for part in ["2 ranks (processes", "1 TP0 PP0 DP1 GPU 1", "\ncomplete: processes\n"] {
        assert_eq!(by_default.out.matches(part).count(), 1, "{part}: {}", by_default.out);
    }
    let switched = threads(&lab, 2, &set("log.folder=threads"));
    switched.expect(0, &[]);
    assert!(switched.out.contains("2 ranks (threads of a process"), "{}", switched.out);
    assert_eq!(lab.losses("processes").len(), 12);
    assert_eq!(lab.losses("processes"), lab.losses("threads"));
    let mut wrong = command(&lab, &sets);
    let wrong = Done::of(wrong.env(RANKS, "fibers").output().unwrap());
    wrong.expect(2, &["GPTRAIN_RANKS: \"fibers\"", "set it to processes or threads"]);
}

#[test]
fn a_killed_rank_ends_all_with_one_line() {
    for victim in [0, 1] {
        let lab = Lab::new();
        let (run, ranks) = running(&lab, &with(&TWO, &LONG));
        kill_process(ranks[victim], Signal::KILL).unwrap();
        let line = verdict(&run.end([0]));
        assert!(line.contains(&format!("rank {victim} ")) && line.contains("died"), "{line}");
        all_gone(&ranks);
    }
}

/// The other rank waits at the rendezvous and cannot report it.
#[test]
fn a_rank_that_dies_before_all_have_met_is_named_by_the_parent() {
    let lab = Lab::new();
    let run = Ranks { children: vec![command(&lab, &with(&TWO, &LONG)).spawn().unwrap()] };
    let started = || has_ended(&run.children[0]) || children(run.pid(0)).len() == 2;
    until("the ranks have started", started);
    let ranks = children(run.pid(0));
    kill_process(ranks[1], Signal::KILL).unwrap();
    let line = verdict(&run.end([0]));
    // It may have met the other rank already.
    assert!(line.contains("rank 1 "), "{line}");
    all_gone(&ranks);
}

#[test]
fn ctrl_c_finishes_the_step_and_saves() {
    let lab = Lab::new();
    let (run, ranks) = running(&lab, &with(&TWO, &LONG));
    run.signal(0, Signal::INT);
    let ended = run.end([0]);
    ended[0].well();
    let said = &ended[0].out;
    assert!(said.contains("stopped and saved: the same command continues"), "{said}");
    assert!(lab.path("runs/a/checkpoints/latest").exists());
    all_gone(&ranks);
}

#[test]
fn a_killed_parent_leaves_no_rank_behind() {
    let lab = Lab::new();
    let (run, ranks) = running(&lab, &with(&TWO, &LONG));
    run.signal(0, Signal::KILL);
    all_gone(&ranks);
}

/// The supervisor starts the ranks' parent again, which continues from the newest checkpoint.
#[test]
fn ranks_restart_below_a_supervisor() {
    let lab = Lab::new();
    let sets = with(&TWO, &["train.steps=40", "checkpoint.interval=4", "restart.max=2"]);
    let run = Ranks { children: vec![command(&lab, &sets).spawn().unwrap()] };
    run.reach(&lab, "runs/a", 6);
    let [starter] = children(run.pid(0))[..] else { panic!("one process is supervised") };
    kill_process(children(starter)[1], Signal::KILL).unwrap();
    let ended = run.end([0]);
    assert_eq!(ended[0].code, Some(0), "{} {}", ended[0].out, ended[0].err);
    assert!(ended[0].out.contains("restart 1 (1 of 2)"), "{}", ended[0].out);
    assert_eq!(lab.metrics("runs/a").last().unwrap()["step"], 40);
}
