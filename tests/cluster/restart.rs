//! Restarts in the job: a rank killed, stopped, or lost with its supervisor. The run continues from its
//! last checkpoint with the losses of an undisturbed one: the same bits on the same grid, those of the
//! old grid to 1e-6 on fewer replicas. The number of restarts has a limit.
//!
//! Each step of a rank takes a while (its test hook), so that it is in the middle when something
//! happens.

use crate::common::binary::{Done, Lab, Ranks, free_port, rank_of, run_args, until};
use gptrain::base::testing::at_any_load;
use gptrain::launch::events::{self, Kind};
use gptrain::train::testing::STEP_DELAY;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::time::Duration;

const SETS: [&str; 6] = [
    "topology.data=2",
    "restart.max=3",
    "train.steps=80",
    "train.eval_interval=0",
    "checkpoint.interval=5",
    "log.interval=1000",
];

/// The run as it is when nothing happens, on threads of one process.
fn undisturbed(lab: &Lab) {
    lab.run(&[&SETS[..], &["restart.max=0", "log.folder=runs/whole"]].concat())
        .well();
}

/// Tasks of a launcher, each of which supervises a rank.
fn tasks(lab: &Lab, tasks: usize, sets: &[&str]) -> Ranks {
    let port = free_port();
    let sets = [&SETS[..], sets].concat();
    let start = |task| {
        lab.rank(task, tasks, port, &sets)
            .env(STEP_DELAY, "0.03")
            .spawn()
            .unwrap()
    };
    Ranks { children: (0..tasks).map(start).collect() }
}

fn signal_rank(of: &Ranks, task: usize, signal: Signal) {
    kill_process(rank_of(of.pid(task)).expect("its rank is at work"), signal).unwrap();
}

/// The line about a restart, which one task says.
fn restarts(ended: &[Done]) -> Vec<&str> {
    let said = ended.iter().flat_map(|done| done.out.lines());
    said.filter(|line| line.starts_with("note: restart "))
        .collect()
}

#[test]
fn a_killed_rank_begins_anew() {
    let lab = Lab::new();
    undisturbed(&lab);
    let of = tasks(&lab, 2, &[]);
    lab.wait_for_steps("runs/a", 12);
    signal_rank(&of, 1, Signal::KILL);
    let starts = || events::read(&lab.path("runs/a")).unwrap();
    let starts = || {
        starts()
            .iter()
            .filter(|event| event.kind == Kind::Start)
            .count()
    };
    until("the ranks restart", || starts() == 2);
    lab.wait_for_steps("runs/a", lab.metrics("runs/a").len() + 6);
    signal_rank(&of, 0, Signal::KILL);
    let ended = of.end(0..2);
    ended
        .iter()
        .for_each(|done| assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.err));
    let said = restarts(&ended);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said.iter()
            .all(|line| line.contains(" (1 of 3): from the checkpoint of step "))
    );
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
    lab.gptrain(&["report", "runs/a"]).well();
    let page = fs::read_to_string(lab.path("runs/a/report.html")).unwrap();
    assert!(page.contains("<td>restart</td>") && page.contains("goodput"), "the page shows it");
}

#[test]
fn a_spare_task_takes_the_place_of_a_lost_one() {
    at_any_load(Duration::from_secs(4), |wait| {
        let lab = Lab::new();
        undisturbed(&lab);
        let of = tasks(&lab, 3, &[&format!("restart.wait_s={}", wait.as_secs())]);
        of.reach(&lab, "runs/a", 12);
        // Rank 0, which listens; its rank goes with it.
        of.signal(0, Signal::KILL);
        let ended = of.end([1, 2]);
        ended
            .iter()
            .for_each(|done| assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.err));
        let said = restarts(&ended);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].ends_with("without task 0, with the spare task 2"), "{said:?}");
        assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
    });
}

#[test]
fn without_spares_fewer_replicas_go_on() {
    at_any_load(Duration::from_secs(4), |wait| {
        let lab = Lab::new();
        undisturbed(&lab);
        let of = tasks(&lab, 2, &[&format!("restart.wait_s={}", wait.as_secs())]);
        of.reach(&lab, "runs/a", 12);
        of.signal(1, Signal::KILL);
        let ended = of.end([0]);
        assert_eq!(ended[0].code, Some(0), "{}\n{}", ended[0].out, ended[0].err);
        let said = restarts(&ended);
        assert!(said[0].ends_with("on 1 replica instead of 2, with the same batch"), "{said:?}");
        let (ours, whole) = (lab.losses("runs/a"), lab.losses("runs/whole"));
        assert_eq!((ours.len(), whole.len()), (80, 80));
        for (a, b) in ours.iter().zip(&whole) {
            let (a, b) = (f64::from_bits(a[1]), f64::from_bits(b[1]));
            assert!((a - b).abs() <= 1e-6 * b, "{a} and {b}");
        }
    });
}

#[test]
fn a_rank_that_hangs_is_killed_and_begins_anew() {
    at_any_load(Duration::from_secs(5), |limit| {
        let lab = Lab::new();
        undisturbed(&lab);
        let of = tasks(&lab, 2, &[&format!("comm.timeout_s={}", limit.as_secs())]);
        of.reach(&lab, "runs/a", 12);
        signal_rank(&of, 1, Signal::STOP);
        let ended = of.end(0..2);
        ended
            .iter()
            .for_each(|done| assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.err));
        assert_eq!(restarts(&ended).len(), 1);
        assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
    });
}

/// Threads of one process, which die at each start.
#[test]
fn nobody_begins_anew_for_ever() {
    let lab = Lab::new();
    let mut start = lab.command(&run_args(&[&SETS[..], &["train.steps=1000000"]].concat()));
    // None reaches its first checkpoint, however late it is seen.
    let mut one = Ranks { children: vec![start.env(STEP_DELAY, "5").spawn().unwrap()] };
    until("it gives up", || {
        if let Some(rank) = rank_of(one.pid(0)) {
            let _ = kill_process(rank, Signal::KILL);
        }
        one.ended(0)
    });
    let ended = Ranks { children: one.children.drain(..).collect() }.end([0]);
    let none = "gptrain: no further restart: 3 restarts from the checkpoint of step 0 brought no \
                newer one (restart.max: 3)";
    ended[0].expect(3, &[none]);
    assert_eq!(restarts(&ended).len(), 3, "{}", ended[0].out);
}

/// A failure that a restart cannot fix ends the job at once, and so does a stop.
#[test]
fn mistakes_and_stops_are_no_reason_to_begin_anew() {
    let lab = Lab::new();
    let wrong = tasks(&lab, 2, &["data.train=nothing"]).end(0..2);
    assert!(wrong.iter().all(|done| done.code == Some(2)), "{:?}", wrong[0].err);
    assert!(restarts(&wrong).is_empty());
    assert!(!lab.path("runs").exists(), "nothing has begun");
    let of = tasks(&lab, 3, &["train.steps=1000000"]);
    lab.wait_for_steps("runs/a", 3);
    of.signal(1, Signal::TERM);
    let ended = of.end(0..3);
    ended
        .iter()
        .for_each(|done| assert_eq!(done.code, Some(0), "{}\n{}", done.out, done.err));
    assert!(ended[0].out.contains("stopped and saved"), "{}", ended[0].out);
    assert!(!lab.path("runs/a/restarts").exists(), "the job is over");
}
