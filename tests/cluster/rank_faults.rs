//! Faults of a rank of a real `gptrain run`: killed in any phase, out of memory, slow, a flipped
//! bit of its memory, a cut cable, another dataset on its node. The others end by themselves with
//! one line for the job, or continue. The run resumes from its last checkpoint with the same bits.

use crate::common::binary::{Done, Lab, Ranks, free_port, run_args, until, verdict, within};
use crate::common::hosts::{Hosts, may_mount};
use gptrain::base::rng;
use gptrain::base::testing::at_any_load;
use gptrain::launch::sick_nodes;
use rustix::process::{Pid, Signal};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

const FOUR: [&str; 3] = ["topology.tensor=2", "topology.data=2", "topology.zero=1"];

/// To run until something happens.
const LONG: [&str; 2] = ["train.steps=1000000", "log.interval=100000"];

fn with<'a>(sets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [sets, more].concat()
}

/// Error output of a job, all ranks together.
fn said(ended: &[Done]) -> Vec<&str> {
    ended.iter().flat_map(|done| done.err.lines()).collect()
}

/// Established connections to a port of this machine.
fn connections(port: u16) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let is_established_to = |line: &&str| {
        // Number of the row, local address, remote address, state.
        let columns: Vec<&str> = line.split_whitespace().take(4).collect();
        columns[2].ends_with(&port) && columns[3] == "01"
    };
    table.lines().filter(is_established_to).count()
}

#[test]
fn rank_0_killed_while_the_ranks_meet() {
    at_any_load(Duration::from_secs(20), killed_while_they_meet);
}

fn killed_while_they_meet(limit: Duration) {
    let (lab, port) = (Lab::new(), free_port());
    let timeout = format!("comm.start_timeout_s={}", limit.as_secs());
    let sets = with(&FOUR, &[&timeout]);
    let start = |rank| lab.rank(rank, 4, port, &sets).spawn().unwrap();
    let ranks = Ranks { children: (0..3).map(start).collect() };
    until("two ranks have connected to rank 0, or its time is over", || {
        connections(port) == 2 || ranks.ended(0)
    });
    std::thread::sleep(limit / 60); // and were let in; else they look for it again
    ranks.signal(0, Signal::KILL);
    let ended = ranks.end([1, 2]);
    assert!(ended.iter().all(|done| done.code == Some(3)), "{:?}", said(&ended));
    for line in said(&ended) {
        let known = [
            "died: connection closed; the ranks were still connecting",
            "did not connect to rank 0",
        ];
        assert!(line.contains("rank 0") && known.iter().any(|k| line.contains(k)), "{line}");
    }
}

#[test]
fn rank_0_killed_while_it_saves() {
    let lab = Lab::new();
    let ranks = lab.ranks(4, &with(&FOUR, &with(&LONG, &["checkpoint.interval=1"])));
    let checkpoints = lab.path("runs/a/checkpoints");
    until("a save is in flight", || {
        let entries = fs::read_dir(&checkpoints)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        entries
            .into_iter()
            .any(|entry| entry.file_name().to_string_lossy().contains(".tmp-"))
    });
    ranks.signal(0, Signal::KILL);
    let line = verdict(&ranks.end(1..4));
    assert!(line.contains("rank 0 died: connection "), "{line}");
}

#[test]
fn rank_0_killed_as_the_run_ends() {
    let lab = Lab::new();
    let ranks = lab.ranks(4, &FOUR);
    lab.wait_for_steps("runs/a", 12);
    ranks.signal(0, Signal::KILL);
    let ended = ranks.end(1..4);
    // Some may have ended well before.
    let failed = ended.iter().filter(|done| done.code == Some(3)).count();
    assert!(ended.iter().all(|done| matches!(done.code, Some(0 | 3))));
    assert_eq!(said(&ended).len(), failed.min(1), "{:?}", said(&ended));
}

#[test]
fn a_rank_killed_at_any_instant_costs_at_most_what_was_not_saved() {
    at_any_load(Duration::from_secs(5), killed_at_any_instant);
}

fn killed_at_any_instant(limit: Duration) {
    let lab = Lab::new();
    let limit = format!("comm.start_timeout_s={}", limit.as_secs());
    let sets = ["train.steps=30", "checkpoint.interval=1", &limit];
    let sets = with(&FOUR, &sets);
    lab.run(&with(&sets, &["log.folder=runs/whole"]))
        .expect(0, &[]);
    for kill in 0..6 {
        let folder = format!("log.folder=runs/{kill}");
        let sets = with(&sets, &[&folder]);
        let (ranks, victim) = (lab.ranks(4, &sets), [0, 2][kill % 2]);
        let wait = rng::below(rng::key(5, "kills"), kill as u64, 1_200_000);
        std::thread::sleep(Duration::from_micros(wait));
        ranks.signal(victim, Signal::KILL);
        let ended = ranks.end((0..4).filter(|rank| *rank != victim));
        let lines = said(&ended);
        assert!(ended.iter().all(|done| matches!(done.code, Some(0 | 3))), "{lines:#?}");
        let before_they_met = lines
            .iter()
            .any(|line| line.contains("did not connect to rank 0"));
        assert!(before_they_met || lines.len() <= 1, "{lines:#?}");
        let named = |line: &&str| line.contains(&format!("rank {victim}"));
        assert!(lines.iter().all(named), "after {wait} µs: {lines:#?}");
        lab.run(&sets).expect(0, &[]);
        assert_eq!(lab.losses(&format!("runs/{kill}")), lab.losses("runs/whole"), "{wait} µs");
    }
}

#[test]
fn a_rank_that_crashes_is_named() {
    for signal in [Signal::SEGV, Signal::ABORT] {
        let lab = Lab::new();
        let ranks = lab.ranks(4, &with(&FOUR, &LONG));
        lab.wait_for_steps("runs/a", 3);
        // Rust's handler of faults lets the first SIGSEGV pass, as no address was at fault.
        until("the rank has crashed", || {
            ranks.signal(2, signal);
            ranks.ended(2)
        });
        let line = verdict(&ranks.end([0, 1, 3]));
        assert!(line.contains("rank 2 (node") && line.contains("died: connection "), "{line}");
    }
}

#[test]
fn a_rank_without_memory_is_named() {
    let lab = Lab::new();
    let ranks = lab.ranks(4, &with(&FOUR, &with(&LONG, &["train.eval_interval=1"])));
    lab.wait_for_steps("runs/a", 3);
    let pid = ranks.pid(2).as_raw_nonzero().to_string();
    let limited = Command::new("prlimit")
        .args(["--pid", &pid, "--as=1000000"])
        .status();
    assert!(limited.unwrap().success());
    let ended = ranks.end([0, 1, 3]);
    let lines = said(&ended);
    assert!(ended.iter().all(|done| matches!(done.code, Some(1 | 3))), "{lines:#?}");
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("rank 2 "), "{lines:#?}");
}

/// Stopped for longer than the limit in all, never at once.
#[test]
fn a_slow_rank_ends_nobody() {
    at_any_load(Duration::from_secs(4), slow_for_less_than);
}

fn slow_for_less_than(limit: Duration) {
    let lab = Lab::new();
    let timeout = format!("comm.timeout_s={}", limit.as_secs());
    let ranks = lab.ranks(4, &with(&FOUR, &with(&LONG, &[&timeout])));
    ranks.reach(&lab, "runs/a", 3);
    for _ in 0..10 {
        ranks.signal(3, Signal::STOP);
        std::thread::sleep(limit / 8);
        ranks.signal(3, Signal::CONT);
        ranks.reach(&lab, "runs/a", lab.metrics("runs/a").len() + 1);
    }
    ranks.signal(0, Signal::TERM);
    ranks.end(0..4).iter().for_each(Done::well);
}

/// A job that is suspended and resumed as a whole, for longer than every limit: its ranks continue, and
/// no node is blamed. Then one rank is left stopped, and is named.
#[test]
fn a_suspended_job_continues_and_a_rank_that_remains_stopped_is_named() {
    at_any_load(Duration::from_secs(4), suspended_for_longer_than);
}

fn suspended_for_longer_than(limit: Duration) {
    let lab = Lab::new();
    let timeout = format!("comm.timeout_s={}", limit.as_secs());
    let ranks = lab.ranks(4, &with(&FOUR, &with(&LONG, &[&timeout])));
    ranks.reach(&lab, "runs/a", 3);
    let suspend = |ranks: &Ranks| {
        (0..4).for_each(|rank| ranks.signal(rank, Signal::STOP));
        std::thread::sleep(2 * limit + Duration::from_secs(3));
    };
    for last in [0, 2] {
        suspend(&ranks);
        (0..4)
            .filter(|rank| *rank != last)
            .for_each(|rank| ranks.signal(rank, Signal::CONT));
        std::thread::sleep(Duration::from_secs(1)); // nodes are resumed one after the other
        ranks.signal(last, Signal::CONT);
        ranks.reach(&lab, "runs/a", lab.metrics("runs/a").len() + 5);
    }
    let folder = lab.path("runs/a");
    assert!(sick_nodes::read(&folder).unwrap().is_empty() && !folder.join("failures").exists());
    suspend(&ranks);
    [0, 1, 3]
        .iter()
        .for_each(|rank| ranks.signal(*rank, Signal::CONT));
    let line = verdict(&ranks.end([0, 1, 3]));
    assert!(line.contains("rank 2 (node") && line.contains("is silent for "), "{line}");
    assert_eq!(sick_nodes::read(&folder).unwrap().len(), 1);
}

/// The ranks that have come are suspended while they wait for the others.
#[test]
fn a_start_that_is_suspended_waits_as_long_as_any() {
    at_any_load(Duration::from_secs(6), suspended_while_they_meet);
}

fn suspended_while_they_meet(limit: Duration) {
    let (lab, port) = (Lab::new(), free_port());
    let timeout = format!("comm.start_timeout_s={}", limit.as_secs());
    let sets = with(&FOUR, &[&timeout]);
    let start = |rank| lab.rank(rank, 4, port, &sets).spawn().unwrap();
    let mut ranks = Ranks { children: (0..2).map(start).collect() };
    until("a rank has connected to rank 0, or its time is over", || {
        connections(port) == 1 || ranks.ended(0)
    });
    [0, 1]
        .iter()
        .for_each(|rank| ranks.signal(*rank, Signal::STOP));
    std::thread::sleep(2 * limit);
    [0, 1]
        .iter()
        .for_each(|rank| ranks.signal(*rank, Signal::CONT));
    ranks.children.extend((2..4).map(start));
    ranks.end(0..4).iter().for_each(Done::well);
}

/// The first row of the position embedding, of which each rank holds a copy.
fn position_row(lab: &Lab) -> Vec<u8> {
    lab.gptrain(&["export", "runs/a", "--hf", "hf"])
        .expect(0, &[]);
    let file = fs::read(lab.path("hf/model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let tensors = header.as_object().unwrap();
    let wpe = tensors
        .iter()
        .find(|(name, _)| name.ends_with("wpe.weight"))
        .unwrap()
        .1;
    let first = wpe["data_offsets"][0].as_u64().unwrap() as usize;
    data[first..first + 128].to_vec()
}

/// Flips the lowest bit of a row of numbers wherever a process has it, as a cosmic ray would.
fn flip_in_memory(pid: Pid, row: &[u8]) -> usize {
    let folder = format!("/proc/{}", pid.as_raw_nonzero());
    let maps = fs::read_to_string(format!("{folder}/maps")).unwrap();
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("{folder}/mem"))
        .unwrap();
    let of = |range: (u64, u64)| flip_between(&memory, range, row);
    maps.lines()
        .filter(|line| line.contains(" rw-p "))
        .map(|line| of(ends(line)))
        .sum()
}

/// "7f00-7fff rw-p …"
fn ends(line: &str) -> (u64, u64) {
    let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
    let number = |hex| u64::from_str_radix(hex, 16).unwrap();
    (number(from), number(to))
}

fn flip_between(memory: &File, (from, to): (u64, u64), row: &[u8]) -> usize {
    let mut bytes = vec![0; (to - from) as usize];
    if memory.read_exact_at(&mut bytes, from).is_err() {
        return 0; // a guard page
    }
    let at = (0..bytes.len().saturating_sub(row.len())).step_by(4);
    let found: Vec<usize> = at.filter(|at| bytes[*at..].starts_with(row)).collect();
    for at in &found {
        memory
            .write_all_at(&[row[0] ^ 1], from + *at as u64)
            .unwrap();
    }
    found.len()
}

#[test]
fn a_bit_that_flips_in_one_rank_ends_the_run_and_names_it() {
    for (grid, place) in [("topology.data=2", "TP0 PP0 DP1"), ("topology.tensor=2", "TP1 PP0 DP0")]
    {
        let lab = Lab::new();
        // A learning rate that leaves the weights as they are: they are found in memory by value.
        let still = ["lr={peak: 1e-30, decay: constant}", "train.audit_interval=2", grid];
        let ranks = lab.ranks(2, &with(&LONG, &still));
        until("there is a checkpoint", || lab.path("runs/a/checkpoints/latest").exists());
        let row = position_row(&lab);
        ranks.signal(1, Signal::STOP);
        assert!(flip_in_memory(ranks.pid(1), &row) > 0, "the weight is not found");
        ranks.signal(1, Signal::CONT);
        let ended = ranks.end(0..2);
        assert!(ended.iter().all(|done| done.code == Some(1)), "{:?}", said(&ended));
        let lines = said(&ended);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        let expected = format!("on rank 1 ({place}) is not the same as on rank 0 (TP0 PP0 DP0)");
        assert!(lines[0].contains("audit after step "), "{lines:#?}");
        assert!(lines[0].contains("position") && lines[0].contains(&expected), "{lines:#?}");
    }
}

#[test]
fn starts_that_lead_nowhere_come_to_an_end() {
    let lab = Lab::new();
    let sets = with(&LONG, &["checkpoint.interval=100000"]);
    let starts = lab.path("runs/a/starts.json");
    for start in 1..=8 {
        let mut child = lab.start(&sets);
        let counted = format!("\"starts\":{start},");
        until("the start is counted", || {
            fs::read_to_string(&starts)
                .unwrap_or_default()
                .contains(&counted)
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let words = ["runs/a", "8 starts from step 0", "starts.json", "checkpoint.interval"];
    lab.run(&sets).expect(2, &words);
    lab.run(&sets).expect(2, &words);
    fs::remove_file(&starts).unwrap();
    lab.run(&[]).expect(0, &[]);
    assert!(!starts.exists(), "a run that ended well");
}

#[test]
fn ranks_that_fit_alone_but_not_together_do_not_start() {
    // Limit of addresses: the machine's free memory changes while other tests run.
    const FREE_KIB: u64 = 8 << 20;
    // Activations take two thirds of it in each of two ranks. Weights would do so too, but a run with
    // large weights only starts where the disk has space for a checkpoint of them.
    let batch = "batch={micro: 2400, global: 4800}";
    let lab = Lab::new();
    let wide = ["model.hidden=1024", "model.layers=1", batch];
    let script = format!("ulimit -v {FREE_KIB} && exec \"$@\"");
    let sets = with(&wide, &["topology.data=2", "data.cache=order"]);
    let mut limited = within(&["sh", "-c", &script, "sh"], &lab.command(&run_args(&sets)));
    Done::of(limited.output().unwrap())
        .expect(2, &["its 2 ranks need", " between them, and ", " is free", "topology.zero"]);
}

#[test]
fn another_dataset_on_another_node_is_told() {
    if !may_mount() {
        return;
    }
    let (lab, other, port) = (Lab::new(), Lab::with_documents(39), free_port());
    let bind = |end: &str| {
        let (from, to) = (other.path(&format!("corpus.{end}")), lab.path(&format!("corpus.{end}")));
        format!("mount --bind {} {} && ", from.display(), to.display())
    };
    let script = format!("hostname n2 && {}{}exec \"$@\"", bind("idx"), bind("bin"));
    let start = |rank: usize| {
        let command = lab.rank(rank, 4, port, &FOUR);
        let outer = ["unshare", "--mount", "--uts", "sh", "-c", &script, "sh"];
        if rank >= 2 { within(&outer, &command) } else { command }
            .spawn()
            .unwrap()
    };
    let ended = Ranks { children: (0..4).map(start).collect() }.end(0..4);
    ended[0].expect(2, &["corpus", "rank 2 (node n2, TP0 PP0 DP1) has another dataset there"]);
    assert!(
        ended[1..]
            .iter()
            .all(|done| (done.code, done.err.as_str()) == (Some(2), ""))
    );
}

/// Four ranks, of which two are on the second host.
fn on_hosts(lab: &Lab, hosts: &Hosts, sets: &[&str]) -> Ranks {
    let start = |rank: usize| {
        let mut command = within(&hosts.on(rank / 2), &lab.rank(rank, 4, 23456, sets));
        command.env("MASTER_ADDR", Hosts::FIRST).spawn().unwrap()
    };
    Ranks { children: (0..4).map(start).collect() }
}

#[test]
fn a_cut_cable_ends_a_run_with_one_line() {
    let Some(hosts) = Hosts::new("run-cut") else { return };
    at_any_load(Duration::from_secs(3), |limit| cut(&hosts, limit));
}

fn cut(hosts: &Hosts, limit: Duration) {
    hosts.cable("up");
    let lab = Lab::new();
    let timeout = format!("comm.timeout_s={}", limit.as_secs());
    let ranks = on_hosts(&lab, hosts, &with(&FOUR, &with(&LONG, &[&timeout])));
    ranks.reach(&lab, "runs/a", 3);
    hosts.cable("down");
    let line = verdict(&ranks.end(0..4));
    assert!(line.contains("is silent for ") && line.contains("stopped, or cut off"), "{line}");
    assert!(line.contains("rank 2 (") || line.contains("rank 3 ("), "{line}");
}

#[test]
fn a_cable_that_heals_in_time_is_survived() {
    let Some(hosts) = Hosts::new("run-heal") else { return };
    let lab = Lab::new();
    let ranks = on_hosts(&lab, &hosts, &with(&FOUR, &with(&LONG, &["comm.timeout_s=300"])));
    lab.wait_for_steps("runs/a", 3);
    hosts.cable("down");
    std::thread::sleep(Duration::from_secs(1));
    let stood = lab.metrics("runs/a").len();
    hosts.cable("up");
    lab.wait_for_steps("runs/a", stood + 3);
    ranks.signal(3, Signal::TERM);
    ranks.end(0..4).iter().for_each(Done::well);
}
