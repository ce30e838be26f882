//! A run's plan beside what was measured, part by part: in its record, its status, its report, and in the
//! plan that learns from it.

use crate::common::binary::{Done, Lab};
use gptrain::estimate::parts::{Part, PartTable};
use serde_json::Value;
use std::fs;

#[test]
fn every_run_keeps_a_table_of_planned_and_measured_parts() {
    let lab = Lab::new();
    lab.run(&["train.steps=4", "log.folder=runs/short"])
        .expect(0, &[]);
    assert!(lab.part_tables("runs/short").is_empty(), "it ends before its fifth step");
    let done = lab.run(&["train.steps=8", "topology.data=2"]);
    done.expect(0, &[]);
    assert!(done.out.contains("a step took "), "{}", done.out);
    let [table] = &lab.part_tables("runs/a")[..] else { panic!("one table") };
    assert!((3..=5).contains(&table.step), "{table:?}");
    for part in [Part::Products, Part::Attention, Part::Elements, Part::Head, Part::Optimizer] {
        let (planned, measured) = table.row(part);
        assert!(planned > 0.0 && measured > 0.0, "{}: {table:?}", part.name());
    }
    let (planned, measured) = table.row(Part::Data);
    assert!(planned > 0.0 && measured > 0.0, "two replicas: {table:?}");
    assert!(table.row(Part::Input).1 > 0.0, "{table:?}");
    for part in [Part::Tensor, Part::Pipeline] {
        assert_eq!(table.row(part), (0.0, 0.0), "{}: {table:?}", part.name());
    }
    // The parts are those of one step: their sum is its time, as far as the clocks overlap.
    let steps = lab.metrics("runs/a");
    let step = &steps[table.step as usize - 1]["sec"];
    let ratio = table.total().measured / step.as_f64().unwrap();
    assert!((0.99..1.5).contains(&ratio), "{ratio} of {step}: {table:?}");

    let status = lab
        .gptrain(&["status", "runs/a"])
        .expect(0, &[])
        .out
        .clone();
    assert!(status.contains("matrix products") && status.contains("a step takes "), "{status}");
    let status: Value =
        serde_json::from_str(&lab.gptrain(&["status", "runs/a", "--json"]).out).unwrap();
    let shown: PartTable = serde_json::from_value(status["parts"].clone()).unwrap();
    assert_eq!(shown.row(Part::Products), table.row(Part::Products));
    assert!(shown.row(Part::Save).1 > 0.0, "the last save: {shown:?}");
    lab.gptrain(&["report", "runs/a", "--overwrite"])
        .expect(0, &[]);
    let page = fs::read_to_string(lab.path("runs/a/report.html")).unwrap();
    assert!(page.contains("plan and step") && page.contains("head and loss"), "{page}");
}

/// On a grid the waits of rank 0 are those of every axis, planned and measured. A plan of another topology
/// learns from the grid's run by the grid's own plan.
#[test]
fn a_grid_has_its_waits_by_axis() {
    let lab = Lab::new();
    let grid = ["topology.tensor=2", "topology.pipeline=2", "topology.data=2", "train.steps=6"];
    lab.run(&grid).expect(0, &[]);
    let [table] = &lab.part_tables("runs/a")[..] else { panic!("one table") };
    for part in [Part::Products, Part::Attention, Part::Tensor, Part::Pipeline, Part::Data] {
        let (planned, measured) = table.row(part);
        assert!(planned > 0.0 && measured > 0.0, "{}: {table:?}", part.name());
    }
    assert_eq!(table.row(Part::Head), (0.0, 0.0), "the last stage's: {table:?}");
    let status = lab
        .gptrain(&["status", "runs/a"])
        .expect(0, &[])
        .out
        .clone();
    for part in ["tensor collectives", "pipeline bubble and messages", "data collectives"] {
        assert!(status.contains(part), "{status}");
    }
    let args = ["estimate", "run.yaml", "--calibrate", "runs/a", "--json"];
    let done = lab.gptrain(&args);
    done.expect(0, &["learned from"]);
    let seconds = |done: &Done| -> f64 {
        let plan: Value = serde_json::from_str(&done.out).unwrap();
        plan["time"]["seconds"].as_f64().unwrap()
    };
    let of_grid = lab.gptrain(&[&args[..], &grid.map(|set| ["--set", set]).concat()].concat());
    let steps: Vec<f64> = lab
        .metrics("runs/a")
        .iter()
        .skip(1)
        .map(|step| step["sec"].as_f64().unwrap())
        .collect();
    let within = |x: f64| steps.iter().any(|s| *s <= x) && steps.iter().any(|s| *s >= x);
    let planned = seconds(&of_grid);
    assert!(
        within(planned * (1.0 - 1e-9)) || within(planned * (1.0 + 1e-9)),
        "{planned}: {steps:?}"
    );
    let ratio = seconds(&done) / seconds(&of_grid);
    assert!((ratio - 1.0).abs() > 1e-6, "one rank takes as long as the grid");
    let other = lab.gptrain(&[&args[..], &["--set", "precision=bf16"]].concat());
    other.expect(2, &["runs/a: was run in f32, and the plan is in bf16"]);
}

#[test]
fn a_plan_learns_each_part_from_a_run() {
    let lab = Lab::new();
    lab.run(&["train.steps=8"]).expect(0, &[]);
    let [table] = &lab.part_tables("runs/a")[..] else { panic!("one table") };
    let args = ["estimate", "run.yaml", "--calibrate", "runs/a", "--json"];
    let done = lab.gptrain(&args);
    done.expect(0, &["learned from", "matrix products"]);
    let learned: Value = serde_json::from_str(&done.out).unwrap();
    let part = |name: &str| learned["time"]["parts"][name].as_f64().unwrap();
    // The same proportions as measured, whatever the pace of all steps.
    let ratio = part("attention") / part("matrix products");
    let measured = table.row(Part::Attention).1 / table.row(Part::Products).1;
    assert!((ratio / measured - 1.0).abs() < 1e-6, "{ratio}, measured {measured}");
}
