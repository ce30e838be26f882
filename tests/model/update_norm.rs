//! The norm of an update is that of what it changes of the master weights, whatever the optimizer and
//! wherever they lie; taking it changes no bit. That it is the same on every grid, CPU and GPU, is
//! compared where grids are (`grids`, `grids_cuda`).

use crate::common;
use gptrain::data::Batch;
use gptrain::device::StepLimits;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::manifest::Manifest;
use gptrain::model::Inputs;

/// Four steps, each with the weights after it; the second has no norm taken, the third is skipped.
fn train(m: &Manifest, takes: bool, threads: usize) -> Vec<(Outcome, Vec<f32>)> {
    let cpu = Cpu::new(Some(threads));
    let engine = Engine::new(&cpu, Groups::solo(), m, true).unwrap();
    engine.init();
    let weights = || common::weights(&engine).into_iter().flat_map(|(_, values)| values).collect();
    let mut past = vec![(engine_at_rest(), weights())];
    for step in 0..4 {
        engine.take_update_norm(takes && step != 1);
        engine.set_limits((step == 2).then_some(StepLimits { loss: 0.0, norm: 0.0 }));
        let load = &mut |inputs: &Inputs| {
            let tokens = common::tokens(4, 24, 128, step);
            inputs.upload(&cpu, &Batch::causal(&tokens, 4, 0, 1.0 / (4.0 * 24.0)));
            Ok(())
        };
        past.push((engine.step(load, 1, 3e-3).unwrap(), weights()));
    }
    past
}

/// Before a step.
fn engine_at_rest() -> Outcome {
    Outcome {
        loss: 0.0,
        z_loss: 0.0,
        grad_norm: 0.0,
        update_norm: 0.0,
        skipped: false,
        spiked: false,
        stuck: false,
        loss_scale: 1.0,
    }
}

#[test]
fn it_is_that_of_the_weights_and_changes_none() {
    let rules = ["adamw", "adam8bit", "adafactor", "{adafactor: {scale_parameter: true}}", "muon"];
    let places = ["none", "optimizer", "full", "{what: optimizer, gradients: host}"];
    let cases = rules.iter().flat_map(|rule| places.map(|place| (rule, place)));
    let on_host = |rule: &str| !rule.contains("muon");
    let gradients = |rule: &str| !rule.contains("adafactor");
    for (rule, place) in cases.filter(|(rule, place)| {
        *place == "none" || (on_host(rule) && (gradients(rule) || !place.contains("host")))
    }) {
        for precision in ["f32", "bf16"] {
            let sets = [
                format!("optimizer={rule}"),
                format!("topology.offload={place}"),
                format!("precision={precision}"),
            ];
            let m = common::manifest(&sets.each_ref().map(String::as_str));
            let (taken, plain) = (train(&m, true, 1), train(&m, false, 1));
            let bits = |past: &[(Outcome, Vec<f32>)]| -> Vec<Vec<u32>> {
                past.iter().map(|(_, w)| w.iter().map(|x| x.to_bits()).collect()).collect()
            };
            assert!(bits(&taken) == bits(&plain), "{sets:?}: other weights");
            assert!(plain.iter().all(|(outcome, _)| outcome.update_norm == 0.0), "{sets:?}");
            let norms = |past: &[(Outcome, Vec<f32>)]| -> Vec<f64> {
                past.iter().map(|(outcome, _)| outcome.update_norm).collect()
            };
            let mut changes = taken.windows(2).map(|two| {
                let squares = two[0].1.iter().zip(&two[1].1);
                squares.map(|(a, b)| (f64::from(*b) - f64::from(*a)).powi(2)).sum::<f64>().sqrt()
            });
            let mut expected: Vec<f64> = std::iter::once(0.0).chain(&mut changes).collect();
            expected[2] = expected[1]; // not taken: the last one
            assert!(expected[1] > 0.01 && expected[3] == 0.0 && expected[4] > 0.01, "{expected:?}");
            for (norm, expected) in norms(&taken).iter().zip(&expected) {
                assert!((norm - expected).abs() <= 1e-6 * expected, "{sets:?}: {norm}, {expected}");
            }
            assert_eq!(norms(&train(&m, true, 2)), norms(&taken), "two threads");
        }
    }
}
