//! `gptrain run --trace`: the file of a grid of threads, of processes, of a run that stops or
//! fails, and what is rejected.

use crate::common::binary::{Done, Lab, Ranks, free_port, run_args, until};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;

/// Four ranks: tensor 2, pipeline 2.
const GRID: [&str; 2] = ["topology.tensor=2", "topology.pipeline=2"];

const TRACE: [&str; 4] = ["--trace", "trace.json", "--trace-steps", "3..4"];

/// A complete event: times in µs.
#[derive(Clone, Debug)]
struct Span {
    rank: u64,
    track: String,
    name: String,
    start: f64,
    end: f64,
    args: Value,
}

/// Contents of a file.
struct Trace {
    about: Value,
    spans: Vec<Span>,
    ranks: Vec<String>,
}

fn read(lab: &Lab, file: &str) -> Trace {
    let text = std::fs::read_to_string(lab.path(file)).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let named = |kind: &str| {
        let of_kind = events
            .iter()
            .filter(move |e| e["ph"] == "M" && e["name"] == kind);
        let key = |e: &Value| (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
        let name = |e: &Value| e["args"]["name"].as_str().unwrap().to_string();
        of_kind
            .map(|e| (key(e), name(e)))
            .collect::<BTreeMap<_, _>>()
    };
    let (ranks, tracks) = (named("process_name"), named("thread_name"));
    let span = |e: &Value| {
        let rank = e["pid"].as_u64().unwrap();
        let (start, duration) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        Span {
            rank,
            track: tracks[&(rank, e["tid"].as_u64().unwrap())].clone(),
            name: e["name"].as_str().unwrap().to_string(),
            start,
            end: start + duration,
            args: e["args"].clone(),
        }
    };
    let spans = events.iter().filter(|e| e["ph"] == "X").map(span).collect();
    Trace { about: json["otherData"].clone(), spans, ranks: ranks.into_values().collect() }
}

impl Trace {
    fn of(&self, rank: u64, name: &str) -> Vec<&Span> {
        self.spans
            .iter()
            .filter(|span| span.rank == rank && span.name == name)
            .collect()
    }

    /// Spans of one track nest or are apart.
    fn nests(&self) {
        let mut tracks: BTreeMap<(u64, &str), Vec<&Span>> = BTreeMap::new();
        for span in &self.spans {
            tracks
                .entry((span.rank, &span.track))
                .or_default()
                .push(span);
        }
        for ((rank, track), mut spans) in tracks {
            spans.sort_by(|a, b| (a.start, b.end).partial_cmp(&(b.start, a.end)).unwrap());
            let mut open: Vec<&Span> = Vec::new();
            for span in spans {
                while open.last().is_some_and(|outer| outer.end <= span.start) {
                    open.pop();
                }
                let fits = open.last().is_none_or(|outer| span.end <= outer.end + 1e-3);
                assert!(fits, "{track} of rank {rank}: {span:?} crosses {:?}", open.last());
                open.push(span);
            }
        }
    }

    /// (track, op, sequence) and bytes of every collective of a group of several ranks, by rank.
    fn collectives(&self, rank: u64) -> BTreeMap<(String, String, u64), u64> {
        let of_rank = self.spans.iter().filter(|span| span.rank == rank);
        let collective = of_rank.filter(|span| {
            ["all_reduce", "all_gather", "reduce_scatter"].contains(&span.name.as_str())
        });
        let number = |span: &Span, key: &str| span.args[key].as_u64().unwrap();
        collective
            .map(|span| {
                let key = (span.track.clone(), span.name.clone(), number(span, "sequence"));
                (key, number(span, "bytes"))
            })
            .collect()
    }
}

fn traced<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    [&run_args(sets)[..], &TRACE].concat()
}

/// The trace of steps 3 and 4, of two micro-batches each, on four ranks.
fn check(trace: &Trace) {
    assert_eq!(trace.about["steps"], "3..4");
    assert_eq!(trace.about["missing"], Value::Null);
    trace.nests();
    for rank in 0..4 {
        let label = &trace.ranks[rank as usize];
        assert!(label.starts_with(&format!("rank {rank} (")) && label.contains("PP"), "{label}");
        let steps = trace.of(rank, "step");
        assert_eq!(
            steps
                .iter()
                .map(|s| s.args["step"].as_u64())
                .collect::<Vec<_>>(),
            [Some(3), Some(4)]
        );
        for step in steps {
            let inside = |span: &&&Span| step.start <= span.start && span.end <= step.end;
            for name in ["forward", "backward"] {
                let passes = trace.of(rank, name);
                let micros: Vec<_> = passes
                    .iter()
                    .filter(inside)
                    .map(|s| s.args["micro"].as_u64())
                    .collect();
                assert_eq!(micros, [Some(0), Some(1)], "{name} of rank {rank}");
            }
            let optimizer = trace.of(rank, "optimizer");
            assert_eq!(optimizer.iter().filter(inside).count(), 1);
        }
        // The first stage reads both micro-batches of both steps.
        let reads = trace.of(rank, "read data").len();
        assert_eq!(reads, 4, "rank {rank}");
    }
    // Both tensor-parallel ranks of a stage enter the same collectives.
    for (a, b) in [(0, 1), (2, 3)] {
        let tensor = |rank: u64| {
            let mut all = trace.collectives(rank);
            all.retain(|(track, ..), _| track.starts_with("comm tensor"));
            all
        };
        assert!(!tensor(a).is_empty());
        assert_eq!(tensor(a), tensor(b));
    }
    // What one stage sends, the other receives.
    let messages = |rank, name| {
        trace
            .of(rank, name)
            .iter()
            .filter(|span| span.track == "comm pipeline")
            .count()
    };
    assert_eq!(messages(0, "send"), messages(2, "recv"));
    assert!(messages(0, "send") >= 4 && messages(2, "send") >= 4);
}

#[test]
fn a_grid_of_threads_is_traced_and_computes_the_same_bits() {
    let lab = Lab::new();
    lab.run(&[&GRID[..], &["log.folder=runs/plain"]].concat())
        .well();
    let done = lab.gptrain(&traced(&GRID));
    done.well();
    assert!(done.out.contains("spans of 4 ranks in trace.json"), "{}", done.out);
    assert_eq!(lab.losses("runs/a"), lab.losses("runs/plain"));
    let trace = read(&lab, "trace.json");
    check(&trace);
    assert_eq!(trace.about["clock error, ns"], 0, "threads share a clock");
}

#[test]
fn processes_write_one_trace() {
    let lab = Lab::new();
    let port = free_port();
    let start = |rank| lab.rank(rank, 4, port, &GRID).args(TRACE).spawn().unwrap();
    let ended = Ranks { children: (0..4).map(start).collect() }.end(0..4);
    ended.iter().for_each(Done::well);
    assert!(ended[1..].iter().all(|done| done.out.is_empty()), "one rank prints");
    check(&read(&lab, "trace.json"));
}

#[test]
fn a_checkpoint_and_an_evaluation_are_spans() {
    let lab = Lab::new();
    let sets = ["checkpoint.in_flight=0"];
    let args = [&run_args(&sets)[..], &["--trace", "t.json", "--trace-steps", "5..6"]].concat();
    lab.gptrain(&args).well();
    let trace = read(&lab, "t.json");
    trace.nests();
    for name in ["save", "evaluate"] {
        assert_eq!(trace.of(0, name).len(), 1, "{name}");
    }
    // After step 5 the run is compared with its estimate, whose dry engine is not traced.
    assert_eq!(trace.of(0, "optimizer").len(), 2);
    assert!(
        trace
            .spans
            .iter()
            .any(|s| s.track == "save (writer)" && s.name == "write checkpoint")
    );
}

/// A signal ends the run within the traced steps: the file holds the steps up to there.
#[test]
fn a_run_that_stops_leaves_the_trace_so_far() {
    let lab = Lab::new();
    let sets = ["train.steps=100000", "checkpoint.interval=100000", "topology.data=2"];
    let args = [&run_args(&sets)[..], &["--trace", "t.json", "--trace-steps", "2..90000"]].concat();
    let ranks = Ranks { children: vec![lab.command(&args).spawn().unwrap()] };
    until("there is an empty trace", || lab.path("t.json").exists());
    assert!(read(&lab, "t.json").spans.is_empty());
    lab.wait_for_steps("runs/a", 4);
    ranks.signal(0, Signal::INT);
    ranks.end([0]).iter().for_each(Done::well);
    let trace = read(&lab, "t.json");
    trace.nests();
    for rank in 0..2 {
        assert!(trace.of(rank, "step").len() >= 2);
    }
}

/// Rank 1 is killed: the file of rank 0 says that the others are missing from it.
#[test]
fn ranks_that_fail_are_named_as_missing() {
    let lab = Lab::new();
    let sets = [&GRID[..], &["train.steps=100000", "checkpoint.interval=100000"]].concat();
    let port = free_port();
    let trace = ["--trace", "t.json", "--trace-steps", "1..90000"];
    let start = |rank| lab.rank(rank, 4, port, &sets).args(trace).spawn().unwrap();
    let ranks = Ranks { children: (0..4).map(start).collect() };
    lab.wait_for_steps("runs/a", 3);
    ranks.signal(1, Signal::KILL);
    let ended = ranks.end([0, 2, 3]);
    assert!(ended.iter().all(|done| done.code == Some(3)));
    assert!(ended[0].out.contains("without ranks 1, 2, 3"), "{}", ended[0].out);
    let trace = read(&lab, "t.json");
    assert_eq!(trace.about["missing"], "without ranks 1, 2, 3");
    assert!(trace.of(0, "step").len() >= 2 && trace.of(1, "step").is_empty());
    assert!(read(&lab, "t.json.rank-2").of(2, "step").len() >= 2, "a part of its own");
}

#[test]
fn steps_and_files_that_cannot_be_traced_are_rejected_before_training() {
    let lab = Lab::new();
    let run = |file: &str, steps: &str| {
        let trace = ["--trace", file, "--trace-steps", steps];
        lab.gptrain(&[&run_args(&GRID)[..], &trace].concat())
    };
    run("t.json", "5").expect(2, &["not A..B"]);
    run("t.json", "5..3").expect(2, &["step 3 is before step 5"]);
    run("t.json", "0..3").expect(2, &["steps count from 1"]);
    run("t.json", "3..500").expect(2, &["--trace-steps 3..500: the run ends after step 12"]);
    run("none/t.json", "3..4")
        .expect(2, &["--trace none/t.json: cannot create none/t.json.partial: No such file"]);
    let alone = [&run_args(&[])[..], &["--trace", "t.json"]].concat();
    lab.gptrain(&alone).expect(2, &["--trace-steps"]);
    assert!(lab.metrics("runs/a").is_empty() && !lab.path("t.json").exists());
    lab.run(&["train.steps=12"]).well();
    let resumed = ["train.steps=20", "topology.data=2"];
    let trace = ["--trace", "t.json", "--trace-steps", "12..14"];
    let done = lab.gptrain(&[&run_args(&resumed)[..], &trace].concat());
    done.expect(2, &["the run resumes after step 12", "trace steps from 13 on"]);
}
