//! A run's plan beside what was measured, part by part: in its record, its status, its report, and in the
//! plan that learns from it.

use crate::common::binary::Lab;
use gptrain::estimate::parts::{Part, PartTable};
use serde_json::Value;
use std::fs;

/// The table of parts in a run's record.
fn tables(lab: &Lab, run: &str) -> Vec<PartTable> {
    let text = fs::read_to_string(lab.path(run).join("metrics.jsonl")).unwrap();
    let with_parts = text.lines().filter(|line| line.contains("\"parts\""));
    with_parts.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_run_keeps_a_table_of_planned_and_measured_parts() {
    let lab = Lab::new();
    lab.run(&["train.steps=4", "log.folder=runs/short"]).expect(0, &[]);
    assert!(tables(&lab, "runs/short").is_empty(), "it ends before its fifth step");
    let done = lab.run(&["train.steps=8", "topology.data=2"]);
    done.expect(0, &[]);
    assert!(done.out.contains("a step took "), "{}", done.out);
    let [table] = &tables(&lab, "runs/a")[..] else { panic!("one table") };
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

    let status = lab.gptrain(&["status", "runs/a"]).expect(0, &[]).out.clone();
    assert!(status.contains("matrix products") && status.contains("a step takes "), "{status}");
    let status: Value =
        serde_json::from_str(&lab.gptrain(&["status", "runs/a", "--json"]).out).unwrap();
    let shown: PartTable = serde_json::from_value(status["parts"].clone()).unwrap();
    assert_eq!(shown.row(Part::Products), table.row(Part::Products));
    assert!(shown.row(Part::Save).1 > 0.0, "the last save: {shown:?}");
    lab.gptrain(&["report", "runs/a", "--overwrite"]).expect(0, &[]);
    let page = fs::read_to_string(lab.path("runs/a/report.html")).unwrap();
    assert!(page.contains("plan and step") && page.contains("head and loss"), "{page}");
}

#[test]
fn a_plan_learns_each_part_from_a_run() {
    let lab = Lab::new();
    lab.run(&["train.steps=8"]).expect(0, &[]);
    let [table] = &tables(&lab, "runs/a")[..] else { panic!("one table") };
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
