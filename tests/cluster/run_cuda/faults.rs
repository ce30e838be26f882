//! Faults that a GPU reports during a run.

use super::run_on;
use crate::common::binary::Lab;
use crate::common::softgpu;
use gptrain::launch::sick_nodes::{self, Reason};

const RUN: [&str; 3] = ["train.steps=3", "train.eval_interval=0", "log.folder=a"];

#[test]
fn faults_of_a_gpu_are_told_and_those_of_hardware_noted() {
    let lab = Lab::new();
    let faults = "ecc=2,pending,xid=13,xid=79";
    let done = run_on(&lab, &softgpu::folder(), ("SOFTGPU_FAULTS", faults), &RUN);
    let said = &done.expect(0, &[]).out;
    for part in [
        "rank 0, GPU 0 (PCI ",
        "2 uncorrected ECC errors: reset the GPU",
        "rows of its memory wait to be remapped",
        "Xid 13, graphics engine exception, which a program causes",
        "Xid 79, the GPU has fallen off the bus: restart the node",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(said.matches("Xid 79").count(), 1, "told once: {said}");
    let noted = sick_nodes::read(&lab.path("a")).unwrap();
    let [node] = &noted[..] else { panic!("{noted:?}") };
    assert_eq!((node.reason, node.times, node.is_excluded(false)), (Reason::Gpu, 1, true));
    assert!(node.evidence.contains("Xid 79") && !node.evidence.contains("Xid 13"), "{node:?}");
    lab.gptrain(&["nodes", "a"]).expect(0, &[]);
    let listed = lab.gptrain(&["nodes", "a"]).out;
    assert!(listed.contains(": excluded for ") && listed.contains("uncorrected ECC"), "{listed}");
    let events = std::fs::read_to_string(lab.path("a/events.jsonl")).unwrap();
    assert!(events.contains("Xid 79") && events.contains("Xid 13"), "{events}");
}

/// Errors from before the run do not count, and a program's errors do not mark the node as sick.
#[test]
fn a_healthy_gpu_notes_nothing() {
    let lab = Lab::new();
    let done = run_on(&lab, &softgpu::folder(), ("SOFTGPU_FAULTS", "xid=31"), &RUN);
    let said = &done.expect(0, &[]).out;
    assert!(said.contains("Xid 31, memory page fault") && !said.contains("ECC"), "{said}");
    assert!(!lab.path("a").join(sick_nodes::NAME).exists());
}
