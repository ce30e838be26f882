//! A rank that takes 15 % longer than its peers is reported during the run, and no other rank is. Each
//! step of a rank is as long as its test hook says, which no load of the machine shortens.

use crate::common::binary::{Lab, Ranks, free_port, until};
use gptrain::base::testing::at_any_load;
use gptrain::launch::sick_nodes::{self, Reason};
use gptrain::train::testing::STEP_DELAY;
use rustix::process::Signal;
use std::time::Duration;

const SETS: [&str; 5] = [
    "topology.data=4",
    "batch.global=8",
    "train.steps=1000000",
    "train.eval_interval=0",
    "log.interval=100000",
];

/// Four tasks of a Slurm step, each on a node of its own; rank 2's steps are slower.
fn start(lab: &Lab, step: Duration) -> Ranks {
    let port = free_port();
    let start = |rank: usize| {
        let mut task = lab.rank(rank, 4, port, &SETS);
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"] {
            task.env_remove(name);
        }
        task.env("SLURM_PROCID", rank.to_string())
            .env("SLURM_NODEID", rank.to_string());
        task.env("SLURM_STEP_NUM_TASKS", "4")
            .env("SLURM_STEP_TASKS_PER_NODE", "1(x4)");
        task.env("SLURM_LOCALID", "0")
            .env("SLURM_STEP_NODELIST", "n[1-4]");
        task.env("SLURM_STEP_ID", "0")
            .env("SLURMD_NODENAME", format!("n{}", rank + 1));
        // No job that this machine's own Slurm, if it has one, could know.
        task.env("SLURM_JOB_ID", "4000000000").env("PATH", "");
        task.env("GPTRAIN_RENDEZVOUS", format!("127.0.0.1:{port}"));
        let slower = if rank == 2 { 1.15 } else { 1.0 };
        task.env(STEP_DELAY, (step.as_secs_f64() * slower).to_string())
            .spawn()
            .unwrap()
    };
    Ranks { children: (0..4).map(start).collect() }
}

#[test]
fn a_rank_slower_by_15_percent_is_named() {
    // Where others than its hook make a rank slow, longer steps make that less.
    at_any_load(Duration::from_millis(20), |step| {
        let lab = Lab::new();
        let ranks = start(&lab, step);
        let noted = || sick_nodes::read(&lab.path("runs/a")).unwrap_or_default();
        until("a node is noted", || !noted().is_empty());
        let noted: Vec<_> = noted()
            .into_iter()
            .map(|node| (node.host, node.reason))
            .collect();
        assert_eq!(noted, [("n3".to_string(), Reason::Straggles)]);
        ranks.signal(0, Signal::TERM);
        let ended = ranks.end(0..4);
        ended.iter().for_each(|done| done.well());
        let said: Vec<_> = ended[0]
            .out
            .lines()
            .filter(|line| line.contains(" is slow"))
            .collect();
        let [line] = said[..] else { panic!("{said:?}") };
        assert!(line.contains("note: rank 2 (node n3, TP0 PP0 DP2) is slow: busy for"), "{line}");
        assert!(line.contains("the median of the 4 ranks of stage 0"), "{line}");
        let shown = lab.gptrain(&["nodes", "runs/a"]);
        let terms = "(excluded if slurm.exclude_stragglers is true); expires in ";
        assert!(shown.out.contains("n3: seen once") && shown.out.contains(terms), "{}", shown.out);
        let status = lab.gptrain(&["status", "runs/a"]);
        assert!(status.out.contains(" is slow: busy for"), "{}", status.out);
        lab.gptrain(&["report", "runs/a"]).well();
        let page = std::fs::read_to_string(lab.path("runs/a/report.html")).unwrap();
        assert!(page.contains("what happened") && page.contains(" is slow: busy for"));
        assert_eq!(sick_nodes::hosts_to_exclude(&lab.path("runs/a"), true), ["n3"]);
    });
}
