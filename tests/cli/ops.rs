//! `gptrain run --ops`: the table of a step's ops.

use crate::common::binary::Lab;
use gptrain::device::{Dry, HEAD_PRODUCT, Op};
use gptrain::engine::{Engine, Groups};
use gptrain::manifest;
use std::collections::BTreeMap;
use std::fs;

/// Sums of FLOPs and bytes, and calls, by name.
type Sums = BTreeMap<String, [f64; 3]>;

fn add(sums: &mut Sums, name: &str, numbers: [f64; 3]) {
    let name = if name == HEAD_PRODUCT { "gemm" } else { name };
    let sum = sums.entry(name.to_string()).or_default();
    sum.iter_mut()
        .zip(numbers)
        .for_each(|(sum, number)| *sum += number);
}

/// FLOPs and bytes of every op are those that the planner counts for the same step.
#[test]
fn the_ops_of_a_step_are_those_of_its_plan() {
    let lab = Lab::new();
    let done = lab.gptrain(&["run", "run.yaml", "--set", "train.steps=6", "--ops", "ops.csv"]);
    done.expect(0, &[]);
    assert!(done.out.contains(" ops of step 3: ops.csv"), "{}", done.out);
    let text = fs::read_to_string(lab.path("ops.csv")).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let columns = ["op", "kind", "name", "reads", "writes", "flops", "bytes", "seconds"];
    assert_eq!(rows.next().unwrap(), columns);
    let mut ran = Sums::new();
    for (at, row) in rows.enumerate() {
        let [number, kind, name, _, writes, flops, bytes, seconds] = row[..] else {
            panic!("{row:?}")
        };
        assert_eq!(number, (at + 1).to_string());
        assert!(Op::KINDS.contains(&kind) && writes.contains('['), "{row:?}");
        assert!(seconds.parse::<f64>().unwrap() >= 0.0, "{row:?}");
        let [flops, bytes]: [f64; 2] = [flops, bytes].map(|number| number.parse().unwrap());
        if flops + bytes > 0.0 {
            add(&mut ran, name, [1.0, flops, bytes]);
        }
    }
    let loaded = manifest::load(&lab.path("run.yaml"), &["train.steps=6".to_string()]);
    let m = loaded.unwrap_or_else(|error| panic!("{error:#}")).manifest;
    let device = Dry::default();
    let engine = Engine::new(&device, Groups::solo(), &m, m.data.causal()).unwrap();
    device.take();
    engine
        .step(&mut |_: &_| Ok(()), m.batch.global / m.batch.micro, 0.0)
        .unwrap();
    let mut planned = Sums::new();
    for (name, work) in device.take() {
        add(&mut planned, name, [work.calls, work.flops, work.bytes]);
    }
    assert_eq!(ran, planned);
}

#[test]
fn only_the_first_rank_writes_and_an_error_does_not_end_the_run() {
    let lab = Lab::new();
    let args = ["run", "run.yaml", "--set", "train.steps=2", "--set", "topology.data=2"];
    let run = |file| lab.gptrain(&[&args[..], &["--ops", file]].concat());
    let done = run("ops.csv");
    done.expect(0, &[]);
    assert_eq!(done.out.matches("ops of step ").count(), 1, "{}", done.out);
    assert!(
        fs::read_to_string(lab.path("ops.csv"))
            .unwrap()
            .lines()
            .count()
            > 20
    );
    let args = ["run", "run.yaml", "--set", "log.folder=runs/b", "--ops", "none/ops.csv"];
    let done = lab.gptrain(&args);
    done.expect(0, &[]);
    assert!(done.out.contains("no ops of step 1 in none/ops.csv"), "{}", done.out);
}
