//! `gptrain run` on several ranks, as threads of one process and as processes: equal to one rank,
//! resumed bit for bit, also on another grid; and failures of ranks.

use crate::common::binary;
use crate::common::binary::{Done, Lab, Ranks, free_port, until, verdict};
use gptrain::base::testing::at_any_load;
use gptrain::launch::events::{self, Kind};
use rustix::process::Signal;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

/// Two of everything.
const GRID: [&str; 4] =
    ["topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1"];

fn with<'a>(sets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [sets, more].concat()
}

/// Losses and gradient norms of two runs are the same, but for rounding.
fn close(lab: &Lab, run: &str, other: &str) {
    let columns = |run: &str| {
        lab.losses(run)
            .into_iter()
            .map(|row| row.map(f64::from_bits))
    };
    let (ours, theirs): (Vec<_>, Vec<_>) = (columns(run).collect(), columns(other).collect());
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(&theirs) {
        assert_eq!((a[0], a[3]), (b[0], b[3]), "step and learning rate");
        assert!((a[1] - b[1]).abs() <= 2e-6 * b[1], "loss: {a:?} and {b:?}");
        assert!((a[2] - b[2]).abs() <= 1e-4 * b[2], "norm: {a:?} and {b:?}");
    }
}

#[test]
fn a_grid_of_threads_trains_the_quick_start_as_one_rank_does() {
    let lab = Lab::new();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/quickstart.yaml");
    let run = |folder: &str, sets: &[&str]| {
        let small = ["batch.micro=2", "batch.global=8", "train.steps=6", "train.eval_interval=3"];
        let folder = format!("log.folder={folder}");
        let all = [
            &small[..],
            &["precision=f32", "log.interval=1", "train.eval_samples=10", &folder],
            sets,
        ]
        .concat();
        let args = ["run", manifest.to_str().unwrap()];
        let done = lab.gptrain(&[&args[..], &sets_of(&all)].concat());
        done.expect(0, &[]);
        done
    };
    let done = run("grid", &GRID);
    assert!(done.out.contains("8 ranks (threads of a process"), "{}", done.out);
    assert!(done.out.contains("7 TP1 PP1 DP1"), "{}", done.out);
    assert!(done.out.contains("\ncomplete: grid\n"), "{}", done.out);
    run("one", &["train.threads=2"]);
    close(&lab, "grid", "one");
    let evaluated = |run: &str| {
        let text = std::fs::read_to_string(lab.path(run).join("metrics.jsonl")).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines
            .filter_map(|line| line.get("eval").and(line["lm_loss"].as_f64()))
            .collect::<Vec<f64>>()
    };
    let (grid, one) = (evaluated("grid"), evaluated("one"));
    assert_eq!((grid.len(), one.len()), (2, 2));
    grid.iter()
        .zip(&one)
        .for_each(|(a, b)| assert!((a - b).abs() <= 2e-6 * b, "{a} and {b}"));
}

#[test]
fn processes_give_the_same_bits_as_threads() {
    let lab = Lab::new();
    lab.run(&with(&GRID, &["log.folder=runs/threads"]))
        .expect(0, &[]);
    let ended = lab.ranks(8, &GRID).end(0..8);
    ended.iter().for_each(Done::well);
    assert!(ended[0].out.contains("8 ranks (processes"), "{}", ended[0].out);
    assert!(ended[1..].iter().all(|done| done.out.is_empty()), "one rank speaks");
    assert_eq!(lab.losses("runs/a").len(), 12);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/threads"));
}

#[test]
fn the_schedule_is_named_with_the_topology() {
    let lab = Lab::new();
    let topology = "topology={pipeline: 2, schedule: breadth_first}";
    let sets = ["model.layers=4", topology, "train.steps=1"];
    let named = "tensor 1 × pipeline 2 × data 1, breadth_first with 2 chunks, ZeRO";
    let check = ["manifest", "check", "run.yaml"].into_iter();
    let check = check.chain(sets.iter().flat_map(|set| ["--set", *set]));
    for done in [lab.run(&sets), lab.gptrain(&check.collect::<Vec<_>>())] {
        assert!(done.expect(0, &[]).out.contains(named), "{}", done.out);
    }
}

/// Four ranks on what their launcher calls two nodes: two levels, as with the number; and the same folder
/// continues on one node, with one level.
#[test]
fn the_replicas_of_a_node_are_a_shard_group() {
    let lab = Lab::new();
    let sets = ["topology.data=4", "topology.zero=3", "batch.micro=1"];
    let number = lab.run(&with(&sets, &["topology.shard=2", "log.folder=runs/number"]));
    number.expect(0, &[]);
    assert!(number.out.contains("in 2 shard groups of 2"), "{}", number.out);
    let port = free_port();
    let on_node = with(&sets, &["topology.shard=node"]);
    let start = |rank: usize| {
        let mut command = lab.rank(rank, 4, port, &on_node);
        command
            .env("LOCAL_WORLD_SIZE", "2")
            .env("LOCAL_RANK", (rank % 2).to_string());
        command.spawn().unwrap()
    };
    let ended = Ranks { children: (0..4).map(start).collect() }.end(0..4);
    ended.iter().for_each(Done::well);
    assert!(ended[0].out.contains("in 2 shard groups of 2"), "{}", ended[0].out);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/number"));
    let kept = std::fs::read_to_string(lab.path("runs/a/manifest.yaml")).unwrap();
    assert!(kept.contains("shard: node"), "{kept}");
    let further = lab.run(&with(&on_node, &["train.steps=14"]));
    further.expect(0, &[]);
    assert!(further.out.contains("resuming from"), "{}", further.out);
    assert!(!further.out.contains("shard groups"), "one node: {}", further.out);
    assert_eq!(lab.losses("runs/a").len(), 14);
}

/// Rank 0 at an IPv6 address, as torchrun gives it, and as a URL has it; and at a name of both families.
#[test]
fn ranks_meet_at_every_kind_of_address() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("not tested: this machine has no IPv6");
        return;
    }
    let lab = Lab::new();
    for (number, address) in ["::1", "[::1]", "localhost", "127.0.0.2"]
        .into_iter()
        .enumerate()
    {
        let (port, folder) = (free_port(), format!("log.folder=runs/{number}"));
        let sets = ["topology.data=2", "train.steps=3", &folder];
        let start = |rank| {
            let mut command = lab.rank(rank, 2, port, &sets);
            command.env("MASTER_ADDR", address).spawn().unwrap()
        };
        Ranks { children: (0..2).map(start).collect() }
            .end(0..2)
            .iter()
            .for_each(Done::well);
        assert_eq!(lab.metrics(&format!("runs/{number}")).len(), 3, "{address}");
    }
    let mut linked = lab.rank(0, 2, free_port(), &["topology.data=2"]);
    let linked = linked.env("MASTER_ADDR", "fe80::1%eth0").output().unwrap();
    Done::of(linked).expect(2, &["MASTER_ADDR: fe80::1%eth0 is an address of one link"]);
}

#[test]
fn a_signal_to_any_rank_stops_and_saves_all_and_they_go_on_bit_for_bit() {
    let lab = Lab::new();
    let sets = with(&GRID, &["train.steps=60", "model.dropout=0.1", "precision=bf16"]);
    lab.run(&with(&sets, &["log.folder=runs/whole"]))
        .expect(0, &[]);
    let ranks = lab.ranks(8, &sets);
    lab.wait_for_steps("runs/a", 6);
    ranks.signal(5, Signal::TERM);
    let ended = ranks.end(0..8);
    ended.iter().for_each(Done::well);
    assert!(ended[0].out.contains("stopped and saved"), "{}", ended[0].out);
    assert!(lab.metrics("runs/a").len() < 60, "stopped before the end");
    let threads = lab.run(&sets);
    threads.expect(0, &[]);
    assert!(threads.out.contains("resuming from"), "{}", threads.out);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"));
    let verified = [&["run", "run.yaml", "--verify-resume", "3"][..], &sets_of(&sets)].concat();
    let verified = lab.gptrain(&verified);
    verified.expect(0, &[]);
    assert!(verified.out.contains("equal to the last bit"), "{}", verified.out);
}

fn sets_of<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    sets.iter().flat_map(|set| ["--set", set]).collect()
}

#[test]
fn a_file_in_the_folder_stops_and_saves_all_ranks_and_refuses_the_next_start() {
    let lab = Lab::new();
    let sets =
        with(&GRID, &["train.steps=200000", "log.interval=1000", "checkpoint.interval=100000"]);
    let ranks = lab.ranks(8, &sets);
    lab.wait_for_steps("runs/a", 2);
    let stop = lab.path("runs/a/stop");
    std::fs::write(&stop, "").unwrap();
    let ended = ranks.end(0..8);
    ended.iter().for_each(Done::well);
    assert!(
        ended[0]
            .out
            .contains("runs/a/stop is there: saving and leaving"),
        "{}",
        ended[0].out
    );
    assert!(ended[0].out.contains("stopped and saved"), "{}", ended[0].out);
    lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"])
        .expect(0, &[]);
    let saved = lab.metrics("runs/a").len();
    lab.run(&sets)
        .expect(2, &["runs/a/stop: is there: the run was stopped by it", "rm runs/a/stop"]);
    std::fs::remove_file(stop).unwrap();
    let resumed = lab.run(&with(&sets, &[&format!("train.steps={}", saved + 1)]));
    resumed.expect(0, &[]);
    assert!(resumed.out.contains("resuming from"), "{}", resumed.out);
}

#[test]
fn what_one_grid_saved_another_goes_on_with() {
    let lab = Lab::new();
    let sets = ["batch.ramp_up=4 4 24", "batch.global=8", "checkpoint.interval=3"];
    lab.run(&with(&sets, &["log.folder=runs/one"]))
        .expect(0, &[]);
    lab.run(&with(&sets, &GRID)).expect(0, &[]);
    let grids: [(&str, &[&str]); 3] = [
        ("step-00000003", &["topology.data=2", "topology.zero=3"]),
        ("step-00000006", &["topology.tensor=4", "topology.sequence_parallel=true"]),
        ("step-00000009", &["topology.pipeline=2", "topology.data=2"]),
    ];
    for (from, grid) in grids {
        let sets = sets_of(&with(&sets, grid));
        let done = lab.gptrain(&[&["run", "run.yaml", "--resume-from", from][..], &sets].concat());
        done.expect(0, &[]);
        assert!(done.out.contains(&format!("{from} (step")), "{}", done.out);
    }
    close(&lab, "runs/a", "runs/one");
}

#[test]
fn a_save_is_asked_of_any_rank() {
    let lab = Lab::new();
    let sets =
        with(&GRID, &["train.steps=200000", "log.interval=1000", "checkpoint.interval=100000"]);
    let ranks = lab.ranks(8, &sets);
    lab.wait_for_steps("runs/a", 2);
    ranks.signal(6, Signal::USR1);
    let latest = lab.path("runs/a/checkpoints/latest");
    until("there is a checkpoint", || latest.exists());
    lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"])
        .expect(0, &[]);
}

#[test]
fn a_killed_rank_is_named_and_the_run_goes_on_from_its_last_checkpoint() {
    let lab = Lab::new();
    let sets = with(&GRID, &["train.steps=200000", "log.interval=1000"]);
    for victim in [5, 0] {
        let before = lab.metrics("runs/a").len();
        let ranks = lab.ranks(8, &sets);
        lab.wait_for_steps("runs/a", before + 7);
        ranks.signal(victim, Signal::KILL);
        let ended = ranks.end((0..8).filter(|rank| *rank != victim));
        let line = verdict(&ended);
        // The next morning: the same verdict in the events, in the report and in the status.
        let said = line.trim_start_matches("gptrain: ");
        let status = lab.gptrain(&["status", "runs/a"]);
        assert!(status.out.contains(&format!(" ago: {said}")), "{said}\n{}", status.out);
        let events = events::read(&lab.path("runs/a")).unwrap();
        let failure = events
            .iter()
            .rfind(|event| event.kind == Kind::Failure)
            .unwrap();
        assert_eq!(failure.text, said);
        lab.gptrain(&["report", "runs/a", "--overwrite"])
            .expect(0, &[]);
        let page = std::fs::read_to_string(lab.path("runs/a/report.html")).unwrap();
        assert!(page.contains("<td>failure</td>"), "the page shows it");
        if victim == 0 {
            assert!(line.contains("rank 0 died"), "{line}");
            continue;
        }
        assert!(line.contains("rank 5 (node") && line.contains("TP1 PP1 DP0"), "{line}");
        assert!(line.contains("died"), "{line}");
        let failures = std::fs::read_dir(lab.path("runs/a/failures")).unwrap();
        let folder = failures.map(|entry| entry.unwrap().path()).next().unwrap();
        let told = lab.gptrain(&["diagnose", folder.to_str().unwrap()]);
        told.expect(0, &[]);
        assert!(told.out.contains(line.trim_start_matches("gptrain: ")), "{}", told.out);
        assert!(told.out.contains("rank 7 (node"), "{}", told.out);
        let messages = lab
            .gptrain(&["diagnose", folder.to_str().unwrap(), "--rank=7"])
            .out;
        assert!(messages.contains(" s  INFO: device: CPU"), "{messages}");
    }
}

#[test]
fn a_stopped_rank_is_named() {
    at_any_load(Duration::from_secs(3), |limit| {
        let lab = Lab::new();
        let limit = format!("comm.timeout_s={}", limit.as_secs());
        let long = ["train.steps=200000", "log.interval=1000", &limit];
        let ranks = lab.ranks(8, &with(&GRID, &long));
        ranks.reach(&lab, "runs/a", 3);
        ranks.signal(3, Signal::STOP);
        let line = verdict(&ranks.end([0, 1, 2, 4, 5, 6, 7]));
        let silent = line.contains("silent") || line.contains("never entered");
        let place = line.contains("rank 3 (node") && line.contains("TP1 PP0 DP1");
        assert!(silent && place, "{line}");
    });
}

#[test]
fn a_missing_rank_is_named() {
    at_any_load(Duration::from_secs(3), |limit| {
        let lab = Lab::new();
        let limit = format!("comm.start_timeout_s={}", limit.as_secs());
        let (port, sets) = (free_port(), with(&GRID, &[&limit]));
        let there = [0, 1, 2, 4, 5, 6, 7];
        let start = |rank: &usize| lab.rank(*rank, 8, port, &sets).spawn().unwrap();
        let ended = Ranks { children: there.iter().map(start).collect() }.end(0..7);
        let said = ended
            .iter()
            .map(|done| done.err.as_str())
            .collect::<String>();
        let only = said.contains("rank 3 did not connect") && said.lines().count() == 1;
        assert!(only && ended.iter().all(|done| done.code == Some(3)), "{said}");
    });
}

#[test]
fn a_rank_with_another_manifest_is_named() {
    let lab = Lab::new();
    let port = free_port();
    let start = |rank: usize| {
        let sets = if rank == 2 { with(&GRID, &["lr.peak=1e-3"]) } else { GRID.to_vec() };
        lab.rank(rank, 8, port, &sets).spawn().unwrap()
    };
    let line = verdict(&Ranks { children: (0..8).map(start).collect() }.end(0..8));
    assert!(line.contains("rank 2") && line.contains("manifest"), "{line}");
    assert!(!lab.path("runs/a/metrics.jsonl").exists());
}

#[test]
fn a_port_that_is_taken_is_told() {
    let lab = Lab::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let sets = ["topology.data=2", "comm.start_timeout_s=2"];
    let start = |rank| lab.rank(rank, 2, port, &sets).spawn().unwrap();
    let ended = Ranks { children: (0..2).map(start).collect() }.end(0..2);
    let port = format!("cannot listen on port {port}");
    ended[0].expect(3, &["rank 0", &port, "GPTRAIN_RENDEZVOUS"]);
    ended[1].expect(3, &["rank 1", "did not connect to rank 0"]);
}

#[test]
fn two_jobs_on_one_port_do_not_mix() {
    at_any_load(Duration::from_secs(3), two_jobs_on_one_port);
}

fn two_jobs_on_one_port(limit: Duration) {
    let lab = Lab::new();
    let port = free_port();
    let start = |rank, sets: &[&str]| lab.rank(rank, 2, port, sets).spawn().unwrap();
    let one = ["topology.data=2", "train.steps=200000", "log.interval=1000"];
    let timeout = format!("comm.start_timeout_s={}", limit.as_secs());
    let other = with(&one, &["log.folder=runs/b", &timeout]);
    let first = Ranks { children: (0..2).map(|rank| start(rank, &one)).collect() };
    lab.wait_for_steps("runs/a", 1);
    let second = Ranks { children: (0..2).map(|rank| start(rank, &other)).collect() };
    let ended = second.end(0..2);
    ended[0].expect(3, &["cannot listen on port"]);
    ended[1].expect(3, &["did not connect to rank 0", "the peer is a rank of another job"]);
    let steps = lab.metrics("runs/a").len();
    lab.wait_for_steps("runs/a", steps + 3); // the first one does not mind
    drop(first);
}

#[test]
fn another_number_of_ranks_than_the_topology_makes_is_told() {
    let lab = Lab::new();
    let done = Done::of(lab.rank(0, 6, free_port(), &GRID).output().unwrap());
    done.expect(
        2,
        &["6 ranks were started", "tensor 2 × pipeline 2 × data 2 makes 8", "srun -n 8"],
    );
    let fits = Done::of(lab.rank(0, 12, free_port(), &GRID).output().unwrap());
    fits.expect(2, &["--set topology.data=3"]);
}

#[test]
fn a_loss_that_is_not_finite_names_the_rank() {
    let lab = Lab::new();
    let wild = ["lr={peak: 1000, decay: constant}", "optimizer.adamw.weight_decay=1"];
    let ended = lab.ranks(8, &with(&GRID, &wild)).end(0..8);
    ended[0].expect(1, &["step ", "not finite", " on rank ", "(TP", "weights are still those"]);
    for done in &ended[1..] {
        assert_eq!((done.code, done.err.as_str()), (Some(1), ""));
    }
}

#[test]
fn what_the_user_did_wrong_is_said_once() {
    let lab = Lab::new();
    let ended = lab
        .ranks(8, &with(&GRID, &["data.train=missing"]))
        .end(0..8);
    ended[0].expect(2, &["missing"]);
    assert!(
        ended[1..]
            .iter()
            .all(|done| (done.code, done.err.as_str()) == (Some(2), ""))
    );
    let threads = lab.run(&with(&GRID, &["data.train=missing"]));
    threads.expect(2, &["missing"]);
    assert_eq!(
        threads.err.matches("missing.idx").count(),
        ended[0].err.matches("missing.idx").count()
    );
}

#[test]
fn a_save_that_fails_on_one_rank_fails_on_all_and_older_ones_stay() {
    let lab = Lab::new();
    lab.run(&with(&GRID, &["train.steps=5"])).expect(0, &[]);
    let port = free_port();
    let start = |rank: usize| {
        let command = lab.rank(rank, 8, port, &GRID);
        match rank {
            6 => binary::limited(&command, 3_000).spawn().unwrap(),
            _ => { command }.spawn().unwrap(),
        }
    };
    let ended = Ranks { children: (0..8).map(start).collect() }.end(0..8);
    ended[6].expect(1, &["checkpoint of step 10 was not saved", "File too large"]);
    for done in ended[..6].iter().chain(&ended[7..]) {
        assert_eq!((done.code, done.err.as_str()), (Some(1), ""));
    }
    lab.gptrain(&["inspect-ckpt", "runs/a", "--deep"])
        .expect(0, &[]);
    lab.run(&GRID).expect(0, &[]);
    assert_eq!(lab.metrics("runs/a").len(), 12);
}

#[test]
fn sixty_four_ranks_of_a_tiny_model_finish() {
    let lab = Lab::new();
    let sets = ["topology.tensor=4", "topology.pipeline=4", "topology.data=4", "topology.zero=1"];
    let model = ["model.layers=4", "batch.micro=1", "batch.global=8", "train.steps=4"];
    let done = lab.run(&with(&sets, &model));
    done.expect(0, &[]);
    assert_eq!(lab.metrics("runs/a").len(), 4);
    lab.run(&with(&model, &["log.folder=runs/one"]))
        .expect(0, &[]);
    close(&lab, "runs/a", "runs/one");
}
