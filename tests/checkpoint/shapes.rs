//! Micro-batches by stage of the ramp-up, and the warm-up of the samples' length, by the real binary: the
//! same losses on every grid and after every resume, with the tokens counted.

use crate::common::binary::{Done, Lab};
use serde_json::Value;

/// Batches of 4, then of 8 samples; micro-batches of 1, then of 2; lengths 4, 8, 12, 16.
const GROWS: [&str; 7] = [
    "batch={micro: 1, global: 8, ramp_up: 4 4 16}",
    "batch.micro_stages=[{from_global: 8, micro: 2}]",
    "batch.length_ramp_up=4 4 40",
    "train.samples=68",
    "model.dropout=0.1",
    "checkpoint={interval: 3, keep_last: 20}",
    "train.eval_interval=4",
];

fn run(lab: &Lab, folder: &str, flags: &[&str], sets: &[&str]) -> Done {
    let folder = format!("log.folder=runs/{folder}");
    let sets = [&GROWS[..], &[&folder], sets].concat();
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    lab.gptrain(&[&["run", "run.yaml"], flags, &sets].concat())
}

fn numbers(rows: &[Value], key: &str) -> Vec<u64> {
    rows.iter().map(|row| row[key].as_u64().unwrap()).collect()
}

/// Losses and gradient norms of two runs, up to the order of sums.
fn close(lab: &Lab, one: &str, other: &str) {
    let [one_rows, other_rows] = [one, other].map(|run| lab.losses(run));
    assert_eq!(one_rows.len(), other_rows.len());
    for (a, b) in one_rows.iter().zip(other_rows) {
        let [a, b] = [f64::from_bits(a[1]), f64::from_bits(b[1])];
        assert!((a - b).abs() <= 4e-6 * a, "{other}: {a} and {b}");
    }
}

#[test]
fn growing_shapes_are_the_same_on_every_grid_and_after_a_resume() {
    let lab = Lab::new();
    let whole = run(&lab, "whole", &[], &[]);
    whole.expect(0, &[]);
    let rows = lab.metrics("runs/whole");
    // DeepSpeed's rule on the samples after each step: 4 + 12 · n / 40, rounded down to a multiple of 4.
    assert_eq!(numbers(&rows, "seq_len"), [4, 4, 4, 8, 8, 12, 16, 16, 16, 16]);
    assert_eq!(numbers(&rows, "global_batch"), [4, 4, 4, 4, 8, 8, 8, 8, 8, 8]);
    let mut tokens = 0;
    for row in &rows {
        tokens += row["global_batch"].as_u64().unwrap() * row["seq_len"].as_u64().unwrap();
        assert_eq!(row["tokens"], tokens);
    }
    // Continued before the shape changes, and between two changes.
    for step in ["step-00000003", "step-00000006"] {
        run(&lab, "a", &[], &[]).expect(0, &[]);
        let resumed = run(&lab, "a", &["--resume-from", step], &[]);
        resumed.expect(0, &[]);
        assert!(resumed.out.contains("resuming from"), "{}", resumed.out);
        assert_eq!(lab.losses("runs/a"), lab.losses("runs/whole"), "from {step}");
    }
    let verified = run(&lab, "whole", &["--verify-resume", "3"], &[]);
    verified.expect(0, &[]);
    assert!(verified.out.contains("verified: steps"), "{}", verified.out);
    for (folder, sets) in [
        ("tensor", "topology={tensor: 2, sequence_parallel: true}"),
        ("pipeline", "topology={pipeline: 2, data: 2, zero: 1}"),
        ("all", "topology={tensor: 2, pipeline: 2, data: 2, recompute: full}"),
        ("zero", "topology={data: 4, zero: 3}"),
    ] {
        run(&lab, folder, &[], &[sets]).expect(0, &[]);
        close(&lab, "runs/whole", &format!("runs/{folder}"));
    }
    // The same batches in micro-batches of one sample.
    run(&lab, "constant", &[], &["batch.micro_stages=[]"]).expect(0, &[]);
    close(&lab, "runs/whole", "runs/constant");
    assert_ne!(lab.losses("runs/whole"), lab.losses("runs/constant"), "sums in the same order");
}

/// A probe measures the stage, a plan has it, and what cannot work is refused with what does.
#[test]
fn stages_are_probed_and_planned_and_wrong_ones_refused() {
    let lab = Lab::new();
    let sets: Vec<&str> = GROWS.iter().flat_map(|set| ["--set", set]).collect();
    for (at, length, global) in [("0", 4, 4), ("44", 16, 8)] {
        let flags = ["--probe", "1", "--at-samples", at, "--json"];
        let done = lab.gptrain(&[&["run", "run.yaml"], &flags[..], &sets].concat());
        done.expect(0, &[]);
        let probe: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!([&probe["seq_len"], &probe["global_batch"]], [length, global], "at {at}");
    }
    let plan = lab.gptrain(&[&["estimate", "run.yaml", "--json"], &sets[..]].concat());
    plan.expect(0, &[]);
    let plan: Value = serde_json::from_str(&plan.out).unwrap();
    let text = plan.to_string();
    assert!(text.contains("\"seq_len\":4") && text.contains("\"micro\":2"), "{text}");
    let refused = |sets: &[&str], says: &[&str]| {
        let sets = [&GROWS[..], sets].concat();
        let done = lab.run(&sets);
        done.expect(2, says);
    };
    refused(
        &["batch.length_ramp_up=5 4 40"],
        &["11 is not a multiple of the increment 4", "divides"],
    );
    refused(&["batch.length_ramp_up=32 4 40"], &["above model.seq_len 16", "start at 16 or less"]);
    refused(
        &["batch.length_ramp_up=4 x 40"],
        &["is not START INCREMENT SAMPLES", "64 8 4_000_000"],
    );
    let odd = ["batch.length_ramp_up=4 6 40", "topology={tensor: 4, sequence_parallel: true}"];
    refused(&odd, &["topology.tensor 4", "multiples of 4", "topology.sequence_parallel"]);
    let beyond = ["batch.micro_stages=[{from_global: 16, micro: 2}]"];
    refused(&beyond, &["does not reach", "begin at 8 or less"]);
    let twice = ["batch.micro_stages=[{from_global: 8, micro: 2}, {from_global: 8, micro: 4}]"];
    refused(&twice, &["batch.micro_stages.1", "in the order"]);
    let three = ["batch.micro_stages=[{from_global: 8, micro: 3}]"];
    refused(&three, &["batch.global 8 is not a multiple of"]);
}
