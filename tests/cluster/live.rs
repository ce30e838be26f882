//! `gptrain diagnose --now`: ranks of a running job report their state, and one that is stopped is named
//! long before its time limit.

use crate::common::binary::{Done, Lab, Ranks, until};
use gptrain::base::testing::at_any_load;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// A run that ends only by a signal, and whose ranks wait for each other for an hour.
const SETS: [&str; 6] = [
    "topology.tensor=2",
    "topology.data=2",
    "topology.zero=1",
    "train.steps=1000000",
    "log.interval=100000",
    "comm.timeout_s=3600",
];

fn ask(lab: &Lab, wait: Duration, more: &[&str]) -> Done {
    let wait = wait.as_secs().to_string();
    lab.gptrain(&[&["diagnose", "--now", "runs/a", "--wait", &wait], more].concat())
}

/// All four answer, with the threads of one.
fn all_answer(lab: &Lab, ranks: &Ranks) {
    let done = ask(lab, Duration::from_secs(3600), &["--rank", "1"]);
    done.well();
    let said = &done.out;
    assert!(said.starts_with("4 ranks of runs/a: 4 answered\n"), "{said}");
    assert!(!said.contains("did not answer"), "{said}");
    for place in ["TP0 PP0 DP0", "TP1 PP0 DP0", "TP0 PP0 DP1", "TP1 PP0 DP1"] {
        assert!(said.contains(&format!(", {place}): ")), "{place}: {said}");
    }
    let threads = format!("threads of process {}:", ranks.pid(1).as_raw_nonzero());
    let (_, threads) = said
        .split_once(&threads)
        .unwrap_or_else(|| panic!("{said}"));
    for name in ["rank 1 ", "heartbeats ", "live reports "] {
        assert!(threads.contains(name), "{name}: {threads}");
    }
    assert!(said.contains("INFO: device: CPU"), "its messages: {said}");
}

#[test]
fn a_stopped_rank_is_named_while_the_job_runs() {
    let lab = Lab::new();
    let ranks = lab.ranks(4, &SETS);
    lab.wait_for_steps("runs/a", 3);
    all_answer(&lab, &ranks);
    ranks.signal(2, Signal::STOP);
    at_any_load(Duration::from_secs(10), |wait| {
        let done = ask(&lab, wait, &[]);
        done.well();
        let said = &done.out;
        assert!(said.starts_with("4 ranks of runs/a: 3 answered\n"), "{said}");
        let named = |line: &&str| {
            let process = format!("process {}, did not answer", ranks.pid(2).as_raw_nonzero());
            line.starts_with("rank 2 (node ") && line.contains(&process)
        };
        assert_eq!(said.lines().filter(named).count(), 1, "{said}");
        assert_eq!(said.matches("did not answer within").count(), 1, "{said}");
        // The others wait for it, directly or by another.
        let waits = said.lines().find(|line| line.starts_with("longest wait: "));
        let waits = waits.unwrap_or_else(|| panic!("{said}"));
        assert!(waits.contains("rank 2 (node ") && waits.contains("TP0 PP0 DP1"), "{waits}");
        assert!(waits.contains("3 ranks waiting"), "{waits}");
    });
    // The job is unharmed.
    ranks.signal(2, Signal::CONT);
    let steps = lab.metrics("runs/a").len();
    lab.wait_for_steps("runs/a", steps + 3);
    all_answer(&lab, &ranks);
    ranks.signal(0, Signal::TERM);
    ranks.end(0..4).iter().for_each(Done::well);
    let ended = ask(&lab, Duration::from_secs(2), &[]);
    ended.expect(2, &["the run is not running: stopped", "gptrain diagnose runs/a"]);
}

/// Ranks that are threads of one process stop together.
#[test]
fn a_stopped_process_and_a_folder_without_a_run_are_told() {
    let lab = Lab::new();
    lab.gptrain(&["diagnose", "--now", "nowhere"])
        .expect(2, &["nowhere", "does not exist"]);
    std::fs::create_dir_all(lab.path("runs/a")).unwrap();
    ask(&lab, Duration::from_secs(2), &[]).expect(2, &["holds no run", "log.folder"]);
    let mut child = lab.start(&SETS);
    let pid = Pid::from_child(&child);
    lab.wait_for_steps("runs/a", 2);
    let answered = ask(&lab, Duration::from_secs(3600), &[]);
    assert!(answered.out.starts_with("4 ranks of runs/a: 4 answered\n"), "{}", answered.out);
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = ask(&lab, Duration::from_secs(2), &[]);
    stopped
        .expect(1, &["no rank answered within 2.0 s", "gptrain diagnose --now --wait 120 runs/a"]);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the status says that it was killed", || {
        let killed = ask(&lab, Duration::from_secs(2), &[]);
        killed.code == Some(2) && killed.err.contains("the run is not running: killed")
    });
}
