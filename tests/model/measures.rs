//! Zeros of the gradients (`log.zeros`) and norm of the weights (`log.params_norm`): those that one
//! rank's tensors hold, and the same on every grid, with offload, for every rule, and on GPUs.

use crate::common;
use crate::grids::{GLOBAL, read_grad, train};
use crate::grids_cuda::{self, How};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::model::Inputs;

/// A vocabulary of which half is unused and which tensor ranks pad. Without biases: the gradient of
/// a key's bias is a sum that cancels, so that its zeros depend on rounding.
const ASKED: [&str; 6] = [
    "log.zeros=true",
    "log.params_norm=true",
    "model.family=llama",
    "model.vocab=131",
    "model.ffn_hidden=64",
    "precision=f32",
];

const UNTIED: &str = "model.tied_head=false";

fn measured(sets: &[&str]) -> Vec<Outcome> {
    train(&[&ASKED, sets].concat(), &GLOBAL[..2]).outcomes
}

#[track_caller]
fn equal(ours: &[Outcome], one: &[Outcome], tolerance: f64, what: &[&str]) {
    for (step, (a, b)) in ours.iter().zip(one).enumerate() {
        let off = (a.params_norm - b.params_norm).abs() / b.params_norm;
        assert_eq!(a.zeros, b.zeros, "step {step} of {what:?}");
        assert!(off <= tolerance, "step {step} of {what:?}: {a:?}, one rank {b:?}");
    }
}

/// Both numbers of one rank, against its tensors.
#[test]
fn one_rank_counts_what_its_tensors_hold() {
    for tied in ["model.tied_head=true", UNTIED] {
        let small = ["batch.micro=2", "batch.global=8", tied];
        let manifest = common::manifest(&[&ASKED[..], &small].concat());
        let cpu = Cpu::new(Some(1));
        let engine = Engine::new(&cpu, Groups::solo(), &manifest, true).unwrap();
        engine.init();
        let mut next = 0;
        let mut load = |inputs: &Inputs| {
            inputs.upload(&cpu, &grids_cuda::batch(next, 2, 8, manifest.model.seq_len));
            next += 2;
            Ok(())
        };
        let outcome = engine.step(&mut load, 4, 3e-3).unwrap();
        let zeros = |param| -> usize {
            let grad = read_grad(&engine, param);
            let rows = if param.spec.vocab { manifest.model.vocab } else { param.rows };
            let values = &grad[..rows * param.cols];
            values.iter().filter(|value| **value == 0.0).count()
        };
        let zeros: usize = engine.params().map(zeros).sum();
        assert_eq!(outcome.zeros, zeros as u64, "{tied}");
        assert_eq!(zeros > 60 * 32, tied == UNTIED, "unused rows: {zeros} zeros");
        let weights = common::weights(&engine);
        let squares = weights.iter().flat_map(|(_, values)| values);
        let norm = squares.map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        assert!((outcome.params_norm / norm - 1.0).abs() < 1e-6, "{outcome:?}, by hand {norm}");
    }
}

macro_rules! measures {
    ($name:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            for head in ["model.tied_head=true", UNTIED] {
                let sets = [head, $($set),+];
                equal(&measured(&sets), &measured(&[head]), 1e-6, &sets);
            }
        }
    };
}

measures!(tensor_2: "topology.tensor=2", "topology.sequence_parallel=true");
measures!(data_2: "topology.data=2");
measures!(zero_1: "topology.data=2", "topology.zero=1");
measures!(zero_2: "topology.data=4", "topology.zero=2");
measures!(zero_3: "topology.data=2", "topology.zero=3");
measures!(pipeline_2: "topology.pipeline=2");
measures!(all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.schedule=interleaved");
measures!(pipeline_zero_2: "topology.pipeline=2", "topology.data=2", "topology.zero=2");
measures!(states_on_the_host: "topology.data=2", "topology.zero=1", "topology.offload=optimizer");
measures!(gradients_on_the_host: "topology.data=2", "topology.zero=2", "topology.tensor=2",
    "topology.offload={what: full, gradients: host}");

/// Adafactor updates on the device, from master weights that are on the host.
#[test]
fn every_rule_has_master_weights() {
    for (rule, place) in [
        ("optimizer=adafactor", "topology.offload=full"),
        ("optimizer=adam8bit", "topology.offload=optimizer"),
        ("optimizer=muon", "topology.data=2"),
    ] {
        let sets = [UNTIED, rule, place];
        equal(&measured(&sets), &measured(&sets[..2]), 1e-6, &sets);
    }
}

/// GPUs count as CPUs do.
#[test]
fn on_gpus() {
    for sets in [
        &["precision=f32", "topology.tensor=2", "topology.pipeline=2"][..],
        &["precision=bf16", "topology.data=2", "topology.zero=1", "topology.offload=optimizer"],
    ] {
        let model = [&ASKED[..], &["batch.micro=2", "batch.global=8", UNTIED]].concat();
        let manifest = common::manifest(&[&model[..], sets].concat());
        let one = [&model[..], &sets[..1]].concat();
        let cpu = Cpu::new(Some(1));
        let one = grids_cuda::train(&cpu, Groups::solo(), &common::manifest(&one), 2, |_| ());
        // In bf16 the order of sums shows in the gradients, and so in AdamW's first steps.
        let tolerance = if sets[0] == "precision=f32" { 1e-5 } else { 3e-4 };
        equal(&grids_cuda::outcomes(&manifest, How::Nccl), &one, tolerance, sets);
    }
}
