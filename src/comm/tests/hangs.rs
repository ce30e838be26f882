//! Ranks that hang: the line names the rank at fault, whichever rank waits.

use super::exercise::Numbers;
use super::on_threads;
use crate::{
    Collective, Dump, Event, FORWARD_MESSAGES, GroupCount, Message, Op, RankReport, Watchdog, World,
};
use crate::{catch, diagnose, threads};
use base::DType;
use base::testing::{at_any_load, run_to_end, until};
use std::time::Duration;

/// Runs a watched world of `size` ranks, and `check`s its failure line and its dump.
fn hang(size: usize, rank: fn(&World), check: fn(&str, Dump)) {
    at_any_load(Duration::from_millis(200), |limit| {
        let (line, dump) = run_to_end("every rank", move || hang_after(limit, size, rank));
        check(&line, dump);
    });
}

fn hang_after(limit: Duration, size: usize, rank: fn(&World)) -> (String, Dump) {
    let folder = tempfile::tempdir().unwrap();
    let dumps = folder.path().join("dump");
    let watchdog = Watchdog { dumps: Some(dumps.clone()), ..Watchdog::new(limit) };
    let ends = on_threads(threads::with_watchdog(size, &watchdog).unwrap(), |world| {
        catch(move || {
            world.recorder().set_coord(&format!("DP{}", world.rank()));
            rank(&world)
        })
    });
    let lines: Vec<String> = ends
        .into_iter()
        .filter_map(|end| Some(end.err()?.line))
        .collect();
    assert!(lines.iter().all(|line| *line == lines[0]), "{lines:?}");
    let dump = Dump::read(&dumps).unwrap();
    assert_eq!(dump.line.as_ref(), Some(&lines[0]));
    assert_eq!((dump.ranks.len(), dump.damaged.len()), (size, 0));
    (lines[0].clone(), dump)
}

fn starts_and_ends(line: &str, start: &str, end: &str) {
    assert!(line.starts_with(start) && line.contains(end), "{line}\nis not\n{start} … {end}");
}

/// Sleeps until the process group has failed, so that the rank neither waits nor ends.
fn busy(world: &World) {
    until("the group has failed", || world.failed().is_some());
}

#[test]
fn a_rank_that_reads_data_for_ever_is_named() {
    hang(
        4,
        |world: &World| {
            let group = world.group("dp", &[0, 1, 2, 3]);
            let x = Numbers::f32(vec![1.0; 10]);
            group.all_reduce(x.tensor());
            world.recorder().set_phase("reading data");
            if world.rank() == 2 {
                return busy(world);
            }
            world.recorder().set_phase("forward");
            group.all_reduce(x.tensor());
        },
        |line, dump| {
            let start = "rank 2 (DP2) never entered all_reduce #2 of group dp; last event: reading data; \
                         3 ranks waiting ";
            assert!(line.starts_with(start), "{line}");
            assert_eq!(dump.diagnose().as_deref(), Some(line), "the dump gives the same diagnosis");
            assert_eq!(dump.ranks[1].phase, "forward");
        },
    );
}

/// 0 waits for 1 in tp, 1 waits for 2 in dp, and 2 is at fault; 3 waits for 2 in tp.
#[test]
fn the_chain_of_waiting_is_followed_to_its_end() {
    hang(
        4,
        |world: &World| {
            let tp = if world.rank() < 2 { [0, 1] } else { [2, 3] };
            let tp = world.group("tp", &tp);
            let x = Numbers::f32(vec![1.0; 10]);
            match world.rank() {
                1 => world.group("dp", &[1, 2]).all_reduce(x.tensor()),
                2 => return busy(world),
                _ => tp.all_reduce(x.tensor()),
            }
            tp.all_reduce(x.tensor());
        },
        |line, _| {
            starts_and_ends(
                line,
                "rank 2 (DP2) never entered all_reduce #1 of group ",
                "3 ranks waiting",
            );
        },
    );
}

#[test]
fn ranks_that_wait_for_each_other_are_a_deadlock() {
    hang(
        2,
        |world: &World| {
            let a = world.group("a", &[0, 1]);
            let b = world.group("b", &[0, 1]);
            let x = Numbers::f32(vec![1.0; 10]);
            let (first, second) = if world.rank() == 0 { (a, b) } else { (b, a) };
            first.all_reduce(x.tensor());
            second.all_reduce(x.tensor());
        },
        |line, _| {
            let one = "rank 0 in all_reduce #1 of group a";
            let other = "rank 1 in all_reduce #1 of group b";
            assert!(line.starts_with("deadlock: "), "{line}");
            assert!(
                line.contains(one) && line.contains(other) && line.contains("waiting "),
                "{line}"
            );
        },
    );
}

#[test]
fn a_message_that_is_never_sent_names_its_sender() {
    hang(
        2,
        |world: &World| {
            let pipe = world.group("pp", &[0, 1]);
            let x = Numbers::f32(vec![1.0; 10]);
            match world.rank() {
                0 => pipe.recv(1, x.tensor()),
                _ => busy(world),
            }
        },
        |line, _| {
            let start =
                "rank 1 (DP1) never sent what recv #1 of group pp waits for; last event: starting";
            starts_and_ends(line, start, "1 rank waiting");
        },
    );
}

/// The message was started, and something else done meanwhile.
#[test]
fn a_begun_message_that_is_never_sent_names_its_sender() {
    hang(
        2,
        |world: &World| {
            let activations = world.group(FORWARD_MESSAGES, &[0, 1]);
            let all = world.group("all", &[0, 1]);
            let x = Numbers::f32(vec![1.0; 10]);
            let y = Numbers::f32(vec![1.0; 10]);
            let to = 1 - world.rank();
            let sent = activations.begin_message(Message::Send { to, x: y.tensor() });
            let first = activations.begin_message(Message::Recv { from: to, x: x.tensor() });
            all.all_reduce(y.tensor());
            activations.finish(first);
            activations.finish(sent);
            match world.rank() {
                0 => {
                    let never = activations.begin_message(Message::Recv { from: 1, x: x.tensor() });
                    activations.finish(never);
                }
                _ => busy(world),
            }
        },
        |line, _| {
            let start = "rank 1 (DP1) never sent what recv #2 of group pipeline_forward waits for";
            starts_and_ends(line, start, "1 rank waiting");
        },
    );
}

/// A GPU waits until a message is received.
#[test]
fn a_message_that_is_never_received_names_its_receiver() {
    let x = Numbers::f32(vec![1.0; 10]);
    let event = Event::new("pp", Op::Send, 3, x.tensor(), Some(1));
    let sent = |received: u64| {
        let one = GroupCount { sent: vec![0, 3], ..GroupCount::new("pp", &[0, 1]) };
        let other = GroupCount { received: vec![received, 0], ..one.clone() };
        let events = vec![Event { started: Some(1.0), ..event.clone() }];
        [
            RankReport { now: 9.0, groups: vec![one], events, ..RankReport::unknown(0) },
            RankReport { now: 9.0, groups: vec![other], ..RankReport::unknown(1) },
        ]
    };
    let line = diagnose(&sent(2), 5.0).unwrap();
    starts_and_ends(&line, "rank 1 never received send #3 of group pp", "1 rank waiting 8 s");
    let line = diagnose(&sent(3), 5.0).unwrap();
    assert!(line.starts_with("rank 0 waits for "), "both ranks have entered it: {line}");
}

/// Rank 1's queue is stuck in the first collective, so it never starts the second.
#[test]
fn a_stuck_queue_is_seen_through() {
    hang(
        3,
        |world: &World| {
            let x = Numbers::f32(vec![1.0; 10]);
            let y = Numbers::f32(vec![1.0; 10]);
            match world.rank() {
                0 => world.group("pair", &[0, 1]).all_reduce(x.tensor()),
                1 => {
                    let slow = world.group("slow", &[1, 2]);
                    let pair = world.group("pair", &[0, 1]);
                    let one = slow.begin(Collective::AllReduce(x.tensor()));
                    let two = pair.begin(Collective::AllReduce(y.tensor()));
                    slow.finish(one);
                    pair.finish(two);
                }
                _ => busy(world),
            }
        },
        |line, _| {
            starts_and_ends(
                line,
                "rank 2 (DP2) never entered all_reduce #1 of group slow",
                "2 ranks",
            );
        },
    );
}

#[test]
fn slow_is_not_stuck() {
    at_any_load(Duration::from_secs(1), |limit| {
        on_threads(threads::with_watchdog(2, &Watchdog::new(limit)).unwrap(), |world| {
            let group = world.group("dp", &[0, 1]);
            let x = Numbers::f32(vec![1.0; 10]);
            for _ in 0..3 {
                if world.rank() == 1 {
                    std::thread::sleep(limit.mul_f64(0.4));
                }
                group.all_reduce(x.tensor());
            }
        });
    });
}

/// Example of the issue, from synthetic reports.
#[test]
fn the_line_reads_as_asked_for() {
    let dp: Vec<usize> = (0..384).collect();
    let mut reports: Vec<RankReport> = (0..384)
        .map(|rank| {
            let entered = if rank == 37 { 12_344 } else { 12_345 };
            let event = Event {
                number: 0,
                group: "dp".into(),
                op: Op::AllReduce,
                sequence: 12_345,
                dtype: DType::F32,
                bytes: 4,
                peer: None,
                queued: false,
                enqueued: 59.0,
                started: Some(59.0),
                awaiting: Some(37),
                finished: None,
            };
            RankReport {
                node: format!("n{}", rank / 3),
                coord: "TP1 PP3 DP0".into(),
                phase: if rank == 37 { "reading data" } else { "backward" }.into(),
                now: 100.0,
                groups: vec![GroupCount { collectives: entered, ..GroupCount::new("dp", &dp) }],
                events: if rank == 37 { Vec::new() } else { vec![event] },
                ..RankReport::unknown(rank)
            }
        })
        .collect();
    let line = "rank 37 (node n12, TP1 PP3 DP0) never entered all_reduce #12345 of group dp; \
                last event: reading data; 383 ranks waiting 41 s";
    assert_eq!(diagnose(&reports, 41.0).as_deref(), Some(line));
    assert_eq!(diagnose(&reports, 42.0), None, "not yet");
    reports[37].silent = Some(44.0);
    let line = "rank 37 (node n12, TP1 PP3 DP0) is silent for 44 s: stopped, or cut off; \
                last event: reading data; 383 ranks waiting 41 s";
    assert_eq!(diagnose(&reports, 42.0).as_deref(), Some(line));
}
