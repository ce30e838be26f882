//! What is counted, against the formulas of the literature and among stages.

use super::*;
use crate::engine::volume::volume;
use crate::manifest;

fn planned(sets: &[&str]) -> Manifest {
    let text = "
model: {layers: 8, hidden: 16, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 32}
lr: {peak: 1e-3}
train: {samples: 800}
";
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let loaded = manifest::parse(text, "test", std::path::Path::new("."), &sets);
    loaded.unwrap_or_else(|problems| panic!("{problems}")).manifest
}

const GRIDS: [&[&str]; 12] = [
    &["topology.tensor=2"],
    &["topology.tensor=4", "topology.recompute=full", "precision=bf16"],
    &["topology.tensor=2", "topology.sequence_parallel=true", "topology.recompute=selective"],
    &["topology.data=4", "precision=bf16"],
    &["topology.data=4", "topology.zero=1", "precision=bf16"],
    &["topology.data=2", "topology.zero=2", "topology.tensor=2"],
    &["topology.data=2", "topology.zero=3"],
    &["topology.data=2", "topology.zero=3", "model.layers=1", "precision=bf16"],
    &["topology.pipeline=4", "model.tied_head=false"],
    &["topology.pipeline=2", "topology.schedule=gpipe", "precision=bf16"],
    &["topology.pipeline=2", "topology.schedule=interleaved", "topology.tensor=2"],
    &["topology={pipeline: 2, tensor: 2, data: 2, sequence_parallel: true, zero: 1}"],
];

/// Of a step with the manifest's batch, though fewer micro-batches were counted.
#[test]
fn bytes_sent_are_those_of_the_formulas() {
    for sets in GRIDS {
        let m = planned(sets);
        let micros = m.batch.global / (m.batch.micro * m.topology.data);
        for (stage, counted) in stages(&m).iter().enumerate() {
            let groups = groups(&m, stage, &Messages::default());
            let v = volume(&device::Dry::default(), &groups, &m, m.batch.global);
            let expected = [v.tensor + v.tp_async, v.pipeline, v.data, v.embedding];
            for (counted, expected) in counted.sends(micros).into_iter().zip(expected) {
                let what = format!("{counted} counted, not {expected}: stage {stage}, {sets:?}");
                assert!((counted - expected).abs() < 0.5, "{what}");
            }
        }
    }
}

/// The short cut of a search: one stage of each kind.
#[test]
fn stages_that_are_alike_have_the_same_work_and_no_more_memory() {
    let split = "topology={pipeline: 4, layer_split: [1, 2, 2, 3]}";
    let pipelines = [&["topology.pipeline=8"][..], &["topology.pipeline=4"], &[split]];
    for sets in pipelines.into_iter().chain(GRIDS) {
        let m = planned(sets);
        let all = stages(&m);
        let (at, most) = peak(&all);
        assert!(fits(&m, most) && !fits(&m, Bytes(most.0 - 1)), "{sets:?}");
        let quick = stages_within(&m, most).expect("it fits");
        assert_eq!(peak(&quick), (at, most), "{sets:?}");
        for (stage, (quick, exact)) in quick.iter().zip(&all).enumerate() {
            let work = work_of(&m, stage);
            assert_eq!(quick.work.micro.ops, work.micro.ops, "stage {stage} of {sets:?}");
            assert_eq!(quick.work.step.messages, work.step.messages, "stage {stage} of {sets:?}");
            assert!(
                quick.memory_plan.total().0 >= exact.memory_plan.total().0,
                "stage {stage} of {sets:?}"
            );
        }
    }
}
