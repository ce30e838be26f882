//! Ranks as processes over loopback: killed, stopped, out of step, busy. Every one of them ends by
//! itself within seconds, with one line that names the rank at fault.

use crate::common::binary::{has_ended, until};
use crate::common::hosts::Hosts;
use gptrain::base::DType;
use gptrain::base::testing::at_any_load;
use gptrain::comm::tcp::{self, Join};
use gptrain::comm::{Dump, Failed, Group, Watchdog, World, catch, threads};
use gptrain::device::Tensor;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Stdio, exit};
use std::time::Duration;
use tempfile::TempDir;

/// A rank that waits longer is held up, where a test is about that; on a busy machine it is longer.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// And where it is not.
const LONG: Duration = Duration::from_secs(600);

/// Rank processes of a test.
struct Ranks {
    children: Vec<Child>,
    folder: TempDir,
}

impl Ranks {
    /// Starts them on this machine; returns when each has taken some steps.
    fn start(world: usize, scenario: &str) -> Ranks {
        Ranks::within(LONG, world, scenario)
    }

    /// With a limit of their waits.
    fn within(limit: Duration, world: usize, scenario: &str) -> Ranks {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let this_program = std::env::current_exe().unwrap();
        let address = address.to_string();
        Ranks::spread(limit, world, scenario, &address, |_| Command::new(&this_program))
    }

    /// Starts them as `place` has it, with rank 0 at `address`.
    fn spread(
        limit: Duration,
        world: usize,
        scenario: &str,
        address: &str,
        place: impl Fn(usize) -> Command,
    ) -> Ranks {
        let folder = tempfile::tempdir().unwrap();
        let child = |rank: usize| {
            let mut command = place(rank);
            command.args(["--exact", "comm_faults::one_rank", "--ignored", "--nocapture"]);
            command
                .env("TEST_RANK", rank.to_string())
                .env("TEST_WORLD", world.to_string());
            command
                .env("TEST_SCENARIO", scenario)
                .env("TEST_ADDRESS", address);
            command.env("TEST_LIMIT_MS", limit.as_millis().to_string());
            command
                .env("TEST_DUMPS", folder.path())
                .env_remove("RUST_BACKTRACE");
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let mut ranks = Ranks { children: (0..world).map(child).collect(), folder };
        for child in &mut ranks.children {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let running = lines.any(|line| line.unwrap().contains("takes steps"));
            assert!(running, "a rank does not start");
        }
        ranks
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.children[rank]), signal).unwrap();
    }

    /// Exit code (None: killed) of each of these ranks, and all that they printed as errors.
    fn ends(&mut self, ranks: &[usize]) -> (Vec<Option<i32>>, Vec<String>) {
        let (mut codes, mut lines) = (Vec::new(), Vec::new());
        for rank in ranks {
            let child = &mut self.children[*rank];
            until(&format!("rank {rank} has ended"), || has_ended(child));
            codes.push(child.wait().unwrap().code());
            lines.extend(read(child.stderr.take().unwrap()));
        }
        (codes, lines)
    }

    /// These ranks end as failed; the one line they print between them.
    fn line(&mut self, ranks: &[usize]) -> String {
        let (codes, lines) = self.ends(ranks);
        assert_eq!(codes, vec![Some(Failed::EXIT_CODE as i32); ranks.len()], "{lines:?}");
        assert_eq!(lines.len(), 1, "{lines:#?}");
        lines[0].clone()
    }
}

fn read(mut from: ChildStderr) -> Vec<String> {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text.lines().map(str::to_string).collect()
}

/// Output of `gptrain diagnose` for the ranks' dump.
fn diagnose(ranks: &Ranks) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gptrain"));
    let output = command
        .arg("diagnose")
        .arg(ranks.folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The process of one rank, started by the tests below.
#[test]
#[ignore = "is a rank of the other tests"]
fn one_rank() {
    let text = |name: &str| std::env::var(name).unwrap();
    let limit = Duration::from_millis(text("TEST_LIMIT_MS").parse().unwrap());
    if text("TEST_SCENARIO") == "threads" {
        return threads_of_one_process(limit);
    }
    let rank = text("TEST_RANK").parse().unwrap();
    let dumps = Some(std::path::PathBuf::from(text("TEST_DUMPS")));
    let grace = Duration::from_secs(1);
    let join = Join {
        rank,
        world: text("TEST_WORLD").parse().unwrap(),
        node: format!("n{rank}"),
        address: text("TEST_ADDRESS"),
        job: "test".into(),
        secret: b"secret".to_vec(),
        binary: tcp::hash_of_this_program().unwrap(),
        manifest: 0,
        start_timeout: LONG,
        watchdog: Watchdog { dumps, grace, ..Watchdog::new(limit) },
        send_limit: None,
    };
    let world = tcp::join(&join).unwrap_or_else(|failed| end(&failed));
    let done = catch(move || act(&world, &text("TEST_SCENARIO")));
    done.unwrap_or_else(|failed| end(&failed));
    exit(0);
}

/// Three ranks, of which one computes for ever.
fn threads_of_one_process(limit: Duration) {
    let watchdog = Watchdog { grace: Duration::from_millis(300), ..Watchdog::new(limit) };
    let started: Vec<_> = threads::with_watchdog(3, &watchdog)
        .unwrap()
        .into_iter()
        .map(|world| std::thread::spawn(move || catch(move || act(&world, "busy"))))
        .collect();
    started.into_iter().for_each(|thread| drop(thread.join()));
    unreachable!("rank 1 does not end");
}

/// As a launcher does.
fn end(failed: &Failed) -> ! {
    if failed.print {
        eprintln!("{failed}");
    }
    exit(Failed::EXIT_CODE.into())
}

fn act(world: &World, scenario: &str) {
    let ranks: Vec<usize> = (0..world.size()).collect();
    let group = world.group("dp", &ranks);
    // Those that a test ends do not end before it, however late it does so.
    let steps = if scenario == "endless" { u64::MAX } else { 200 };
    for step in 1..=steps {
        world.recorder().set_phase("forward");
        std::thread::sleep(Duration::from_millis(10));
        if step == 10 {
            // In a world of threads, only the first one is reported.
            let _ = writeln!(std::io::stdout(), "takes steps");
            if world.rank() == 1 {
                misbehave(world, &*group, scenario);
            }
        }
        reduce(&*group, 1000);
        gather(&*group);
    }
}

fn misbehave(world: &World, group: &dyn Group, scenario: &str) {
    match scenario {
        "steady" | "endless" => {}
        "other order" => {
            gather(group);
            reduce(group, 1000);
        }
        "other size" => reduce(group, 1001),
        "busy" => {
            world.recorder().set_phase("reading data");
            loop {
                std::thread::park();
            }
        }
        "gives up" => drop(world.fail("corpus.bin: no such file")),
        "leaves" => exit(0),
        other => panic!("{other}"),
    }
}

fn reduce(group: &dyn Group, numel: usize) {
    let x = vec![1.0f32; numel];
    group.all_reduce(Tensor::at(x.as_ptr() as usize, 1, numel, DType::F32));
}

fn gather(group: &dyn Group) {
    let (part, whole) = (vec![1.0f32; 8], vec![0.0f32; 8 * group.size()]);
    let tensor = |x: &Vec<f32>| Tensor::at(x.as_ptr() as usize, 1, x.len(), DType::F32);
    group.all_gather(tensor(&part), tensor(&whole));
}

#[test]
fn ranks_that_fare_well_end_well() {
    let mut ranks = Ranks::start(4, "steady");
    assert_eq!(ranks.ends(&[0, 1, 2, 3]), (vec![Some(0); 4], vec![]));
}

#[test]
fn a_killed_rank_is_named() {
    at_any_load(TIMEOUT, |limit| {
        let mut ranks = Ranks::within(limit, 4, "endless");
        std::thread::sleep(limit / 4); // a heartbeat
        ranks.signal(2, Signal::KILL);
        let line = ranks.line(&[0, 1, 3]);
        assert!(line.starts_with("rank 2 (node n2) died: connection "), "{line}");
        assert!(line.ends_with("; last event: forward"), "{line}");
        let dump = Dump::read(ranks.folder.path()).unwrap();
        assert_eq!((dump.line.as_deref(), dump.ranks.len()), (Some(line.as_str()), 4));
        let diagnosed = diagnose(&ranks);
        assert!(diagnosed.starts_with(&line), "{diagnosed}");
        let of_the_dead = diagnosed
            .lines()
            .find(|line| line.starts_with("rank 2 (node n2): forward"));
        assert!(
            of_the_dead.is_some_and(|line| line.contains("; it died: connection ")),
            "{diagnosed}"
        );
        assert!(dump.damaged.is_empty() && dump.ranks.iter().all(|rank| !rank.events.is_empty()));
    });
}

#[test]
fn rank_0_killed_is_named_by_the_others() {
    let mut ranks = Ranks::start(3, "endless");
    ranks.signal(0, Signal::KILL);
    let line = ranks.line(&[1, 2]);
    assert!(line.starts_with("rank 0 died: connection "), "{line}");
    assert_eq!(Dump::read(ranks.folder.path()).unwrap().line, Some(line));
}

#[test]
fn a_stopped_rank_is_named_and_ends_when_it_goes_on() {
    at_any_load(TIMEOUT, |limit| {
        let mut ranks = Ranks::within(limit, 3, "endless");
        ranks.signal(1, Signal::STOP);
        let line = ranks.line(&[0, 2]);
        assert!(line.starts_with("rank 1 (node n1) is silent for "), "{line}");
        assert!(line.contains(" s: stopped, or cut off; last event: "), "{line}");
        assert!(line.contains("; 2 ranks waiting "), "{line}");
        ranks.signal(1, Signal::CONT);
        assert_eq!(ranks.ends(&[1]), (vec![Some(3)], vec![]));
    });
}

#[test]
fn rank_0_stopped_is_named() {
    at_any_load(TIMEOUT, |limit| {
        let mut ranks = Ranks::within(limit, 3, "endless");
        ranks.signal(0, Signal::STOP);
        let line = ranks.line(&[1, 2]);
        assert!(line.starts_with("rank 0 is silent for "), "{line}");
        ranks.signal(0, Signal::CONT);
        assert_eq!(ranks.ends(&[0]), (vec![Some(3)], vec![]), "it has been said");
    });
}

#[test]
fn a_rank_stopped_for_less_than_the_limit_goes_on() {
    at_any_load(TIMEOUT, |limit| {
        let mut ranks = Ranks::within(limit, 3, "steady");
        ranks.signal(1, Signal::STOP);
        std::thread::sleep(limit / 3);
        ranks.signal(1, Signal::CONT);
        assert_eq!(ranks.ends(&[0, 1, 2]), (vec![Some(0); 3], vec![]));
    });
}

#[test]
fn a_rank_that_never_comes_is_named_and_ended() {
    at_any_load(TIMEOUT, |limit| {
        let mut ranks = Ranks::within(limit, 4, "busy");
        let line = ranks.line(&[0, 1, 2, 3]);
        let start = "rank 1 (node n1) never entered all_reduce #19 of group dp; \
                     last event: reading data; 3 ranks waiting ";
        assert!(line.starts_with(start), "{line}");
        let diagnosed = diagnose(&ranks);
        assert!(diagnosed.contains("\nrank 1 (node n1): reading data for "), "{diagnosed}");
        assert!(diagnosed.contains("in all_reduce #19 of group dp for "), "{diagnosed}");
    });
}

#[test]
fn ranks_out_of_step_are_told_so() {
    let mut ranks = Ranks::start(3, "other order");
    let line = ranks.line(&[0, 1, 2]);
    assert!(line.starts_with("#19 of group dp is "), "{line}");
    assert!(line.contains("all_reduce of 1000 f32 on rank "), "{line}");
    assert!(line.contains("all_gather of 24 f32 on rank 1"), "{line}");
}

#[test]
fn another_size_is_told() {
    let mut ranks = Ranks::start(3, "other size");
    let line = ranks.line(&[0, 1, 2]);
    assert!(line.contains("all_reduce of 1001 f32 on rank 1"), "{line}");
}

#[test]
fn a_rank_that_gives_up_is_believed() {
    let mut ranks = Ranks::start(3, "gives up");
    let line = ranks.line(&[0, 1, 2]);
    assert!(line.starts_with("rank 1"), "{line}");
    assert!(line.ends_with(" failed: corpus.bin: no such file"), "{line}");
}

/// Without a word, but with exit code 0.
#[test]
fn a_rank_that_just_leaves_is_named() {
    let mut ranks = Ranks::start(3, "leaves");
    let line = ranks.line(&[0, 2]);
    assert!(line.starts_with("rank 1 (node n1) died: connection "), "{line}");
}

#[test]
fn a_thread_that_does_not_unwind_ends_with_its_process() {
    at_any_load(TIMEOUT, |limit| {
        let mut ranks = Ranks::within(limit, 1, "threads");
        let line = ranks.line(&[0]);
        let start =
            "gptrain: rank 1 never entered all_reduce #19 of group dp; last event: reading data";
        assert!(line.starts_with(start), "{line}");
    });
}

/// Rank 2 is on the second host.
fn start(limit: Duration, hosts: &Hosts, scenario: &str) -> Ranks {
    Ranks::spread(limit, 3, scenario, &format!("{}:23456", Hosts::FIRST), |rank| {
        let outer = hosts.on((rank == 2) as usize);
        let mut command = Command::new(outer[0]);
        command
            .args(&outer[1..])
            .arg(std::env::current_exe().unwrap());
        command
    })
}

#[test]
fn a_cut_cable_is_told_and_both_ends_end() {
    let Some(hosts) = Hosts::new("cut") else { return };
    at_any_load(TIMEOUT, |limit| {
        hosts.cable("up");
        let mut ranks = start(limit, &hosts, "endless");
        hosts.cable("down");
        let line = ranks.line(&[0, 1]);
        assert!(line.starts_with("rank 2 (node n2) is silent for "), "{line}");
        // Both write to one disk, where it has been said.
        assert_eq!(ranks.ends(&[2]), (vec![Some(3)], vec![]));
    });
}

#[test]
fn a_cable_cut_for_less_than_the_limit_is_survived() {
    let Some(hosts) = Hosts::new("heal") else { return };
    at_any_load(TIMEOUT, |limit| {
        hosts.cable("up");
        let mut ranks = start(limit, &hosts, "steady");
        hosts.cable("down");
        std::thread::sleep(limit / 5);
        hosts.cable("up");
        assert_eq!(ranks.ends(&[0, 1, 2]), (vec![Some(0); 3], vec![]));
    });
}
