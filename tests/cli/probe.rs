//! `gptrain run --probe`: the run's own steps from a sample on, and nothing left of them.

use crate::common::binary::{Lab, Ranks, free_port, has_ended, until};
use gptrain::train::probe::Probe;
use gptrain::train::testing::STEP_DELAY;
use rustix::process::Signal;
use std::fs;

const RAMP: [&str; 2] = ["batch.global=8", "batch.ramp_up=4 4 24"];

fn probe<'a>(sets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let words = ["run", "run.yaml"].into_iter().chain(sets);
    words.chain(more.iter().copied()).collect()
}

/// Names in the lab's folder.
fn entries(lab: &Lab) -> Vec<String> {
    let listed = fs::read_dir(lab.path("")).unwrap();
    let mut names: Vec<String> = listed
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn its_steps_are_those_of_the_run_and_it_leaves_nothing() {
    let lab = Lab::new();
    let before = entries(&lab);
    let done = lab.gptrain(&probe(&RAMP, &["--probe", "3", "--json"]));
    done.expect(0, &[]);
    let first: Probe = serde_json::from_str(&done.out).unwrap();
    let done = lab.gptrain(&probe(&RAMP, &["--probe", "2", "--at-samples", "45"]));
    done.expect(0, &[]);
    for part in ["run: steps 9 to 10 of its schedule", "8 samples, 128 tokens", "simple"] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
    let later = probe(&RAMP, &["--probe", "2", "--at-samples=45", "--probe-output", "p.json"]);
    lab.gptrain(&later).expect(0, &[]);
    let later: Probe = serde_json::from_slice(&fs::read(lab.path("p.json")).unwrap()).unwrap();
    fs::remove_file(lab.path("p.json")).unwrap();
    let mut after = entries(&lab);
    after.retain(|name| name != "cache"); // of the order of samples
    assert_eq!(before, after);
    // The same weights and samples: the run's losses, to the last bit. Later, only the schedule is.
    lab.run(&RAMP).expect(0, &[]);
    let run = lab.metrics("runs/a");
    for step in first.steps.iter().chain(&later.steps) {
        let row = &run[step.step as usize - 1];
        assert_eq!(row["consumed_samples"], step.consumed_samples);
        assert_eq!(row["global_batch"], step.global_batch);
        assert_eq!(row["lr"], step.lr);
        assert!(step.step > 3 || row["lm_loss"] == step.lm_loss, "{step:?}: {row}");
    }
    let numbers: Vec<u64> = later.steps.iter().map(|step| step.step).collect();
    assert_eq!(numbers, [9, 10]);
    let memory = later.memory.memory;
    assert!(0 < memory.in_use && memory.in_use <= memory.reserved, "{memory:?}");
    assert!(memory.host.unwrap() > memory.reserved, "{memory:?}");
    // A run's folder keeps its files to the byte.
    let status = fs::read(lab.path("runs/a/status.json")).unwrap();
    let names = fs::read_dir(lab.path("runs/a")).unwrap().count();
    lab.gptrain(&["run", "runs/a", "--probe", "1"])
        .expect(0, &[]);
    assert_eq!(fs::read(lab.path("runs/a/status.json")).unwrap(), status);
    assert_eq!(fs::read_dir(lab.path("runs/a")).unwrap().count(), names);
}

#[test]
fn a_probe_that_cannot_be_is_refused_with_one_that_can() {
    let lab = Lab::new();
    for (more, says) in [
        (["--probe", "13", "--at-samples", "0"], "--probe 12"),
        (["--probe", "3", "--at-samples", "40"], "--probe 2"),
        (["--probe", "3", "--at-samples", "4000"], "--at-samples 36"),
    ] {
        let done = lab.gptrain(&probe(&[], &more));
        done.expect(2, &[says]);
    }
    lab.gptrain(&probe(&[], &["--at-samples", "4"]))
        .expect(2, &["--probe"]);
    lab.gptrain(&probe(&[], &["--probe", "2", "--minutes", "1"]))
        .expect(2, &["--minutes"]);
    assert!(!lab.path("runs").exists());
}

/// Two ranks as processes, whose rendezvous is in the run's folder.
fn start(lab: &Lab, delay: &str, steps: &str) -> Ranks {
    let port = free_port();
    let sets = ["topology.data=2", "train.steps=1000"];
    let start = |rank| {
        let mut command = lab.rank(rank, 2, port, &sets);
        command.args(["--probe", steps]).env(STEP_DELAY, delay);
        command.spawn().unwrap()
    };
    Ranks { children: (0..2).map(start).collect() }
}

#[test]
fn processes_leave_no_folder_at_the_end_nor_at_a_signal_or_a_death() {
    let lab = Lab::new();
    let done = start(&lab, "0", "3").end(0..2);
    done[0].expect(0, &[]);
    assert!(done[0].out.contains("steps 1 to 3") && done[1].code == Some(0));
    assert!(done[1].out.is_empty() && !lab.path("runs").exists());
    let ranks = start(&lab, "0.05", "1000");
    until("the folder of the rendezvous is gone", || {
        let seen = has_met(&ranks);
        seen && !lab.path("runs").exists()
    });
    ranks.signal(1, Signal::INT);
    let done = ranks.end(0..2);
    done[0].expect(1, &["stopped by a signal after"]);
    assert!(done[1].code == Some(1) && !lab.path("runs").exists());
    let ranks = start(&lab, "0.05", "1000");
    until("the ranks have met", || has_met(&ranks));
    ranks.signal(1, Signal::KILL);
    let done = ranks.end([0]);
    done[0].expect(3, &["rank 1"]);
    assert!(!lab.path("runs").exists());
}

/// Whether both ranks have opened the dataset, which they do after they have met.
fn has_met(ranks: &Ranks) -> bool {
    ranks.children.iter().all(|child| {
        assert!(!has_ended(child), "a rank ended early");
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap_or_default();
        maps.contains("corpus.bin")
    })
}
