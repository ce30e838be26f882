//! PowerSGD in training: the same among replicas of every kind, exact where the rank suffices, lossy
//! where it does not, and untouched by steps that are skipped.

use crate::common;
use crate::grids::{GLOBAL, close, train};
use crate::grids_cuda;
use gptrain::comm::{World, threads};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::manifest::Manifest;
use gptrain::model::Inputs;

/// After one step that sends all.
const LOSSY: [&str; 2] =
    ["topology.data=2", "topology.compression={powersgd: {rank: 2, start_step: 1, min_rate: 1}}"];

/// A grid gives what two plain replicas give, and twice the same bits.
fn as_replicas(grid: &[&str], replicas: &[&str]) {
    let on = |sets: &[&str]| train(&[&LOSSY[..], sets].concat(), &GLOBAL);
    let (ours, theirs) = (on(grid), on(replicas));
    close(&ours, &theirs, (1e-6, 1e-6), grid);
    assert!(ours == on(grid), "{grid:?} twice");
}

#[test]
fn zero_1_gives_what_plain_replicas_give() {
    as_replicas(&["topology.zero=1"], &[]);
}

#[test]
fn a_pipeline_gives_what_plain_replicas_give() {
    as_replicas(&["topology.pipeline=2"], &[]);
    as_replicas(&["topology.pipeline=2", "topology.schedule=interleaved", "topology.zero=1"], &[]);
}

/// Muon orthogonalises what the factors leave of the gradients.
#[test]
fn muon_takes_compressed_gradients() {
    as_replicas(&["optimizer=muon", "topology.zero=1"], &["optimizer=muon"]);
}

/// Tensor-parallel ranks compress their shares, so they are compared with each other.
#[test]
fn a_sequence_that_is_shared_changes_nothing() {
    let tensor = "topology.tensor=2";
    as_replicas(&[tensor, "topology.sequence_parallel=true", "topology.zero=1"], &[tensor]);
}

/// The first step sends all, the later ones do not.
#[test]
fn what_is_left_out_is_seen_from_the_start_step_on() {
    let [compressed, plain] = [&LOSSY[..], &LOSSY[..1]].map(|sets| train(sets, &GLOBAL).outcomes);
    assert_eq!(compressed[0], plain[0]);
    assert_eq!(compressed[1].loss, plain[1].loss);
    let norms = compressed.iter().zip(&plain).skip(1).take(GLOBAL.len() - 1);
    for (compressed, plain) in norms {
        assert_ne!(compressed.grad_norm, plain.grad_norm);
    }
}

/// Every rank on a CPU with one thread; the first one's outcomes.
fn on_cpus(sets: &[&str]) -> Vec<Outcome> {
    let m = common::manifest(sets);
    let rank = |world: World| {
        let cpu = Cpu::new(Some(1));
        grids_cuda::train(&cpu, Groups::new(&world, &m.topology), &m, 6, |_| ())
    };
    let ranks = threads::world(m.topology.ranks());
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ranks
            .into_iter()
            .map(|world| scope.spawn(|| rank(world)))
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .next_back()
            .unwrap()
    })
}

/// The gradient of a matrix is a sum over eight tokens, so factors of rank 16 hold all of it: every
/// grid trains as one rank that sends nothing.
#[test]
fn factors_of_the_gradients_rank_lose_nothing() {
    let few = ["model.hidden=64", "model.seq_len=4", "batch.micro=1", "batch.global=2"];
    let all = "topology.compression={powersgd: {rank: 16, start_step: 0, min_rate: 1}}";
    let grids: [&[&str]; 5] = [
        &[],
        &["topology.zero=1", "topology.pipeline=2"],
        &["topology.tensor=2"],
        &["topology.tensor=2", "topology.sequence_parallel=true", "topology.zero=1"],
        &["topology.tensor=2", "topology.pipeline=2"],
    ];
    let fp16 = ["precision=fp16", "loss_scale=1024"];
    for (precision, tolerance) in [(&["precision=f32"][..], 1e-5), (&fp16, 2e-3)] {
        let one = on_cpus(&[&few[..], precision].concat());
        for grid in grids {
            let sets = [&few[..], &["topology.data=2", all], precision, grid].concat();
            for (step, (ours, one)) in on_cpus(&sets).iter().zip(&one).enumerate() {
                let off = |a: f64, b: f64| (a - b).abs() / b;
                let worst = off(ours.loss, one.loss).max(off(ours.grad_norm, one.grad_norm) / 20.0);
                assert!(worst < tolerance, "step {step} of {grid:?}: {ours:?}, one rank {one:?}");
            }
        }
    }
}

/// In fp16: bits of errors and Q before and after each step.
#[test]
fn a_skipped_step_changes_neither_error_nor_q() {
    let scale = "loss_scale={initial: 16777216, hysteresis: 1, window: 3}";
    let compression = "topology.compression={powersgd: {rank: 2, start_step: 0, min_rate: 1}}";
    for grid in [&["topology.data=2"][..], &["topology.data=2", "topology.tensor=2"]] {
        let m = common::manifest(&[&["precision=fp16", scale, compression], grid].concat());
        let fates: Vec<Vec<bool>> = std::thread::scope(|scope| {
            let ranks = threads::world(m.topology.ranks()).into_iter();
            let ranks: Vec<_> = ranks
                .map(|world| scope.spawn(|| skips(world, &m)))
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().expect("a rank"))
                .collect()
        });
        assert!(fates.iter().all(|fate| *fate == fates[0]), "{fates:?}");
        assert!(fates[0].starts_with(&[true]) && fates[0].ends_with(&[false]), "{fates:?}");
    }
}

/// Which steps of a rank were skipped.
fn skips(world: World, m: &Manifest) -> Vec<bool> {
    let cpu = Cpu::new(Some(1));
    let groups = Groups::new(&world, &m.topology);
    let (first, replicas) = (groups.grad_sum.rank(), groups.grad_sum.size());
    let engine = Engine::new(&cpu, groups, m, true).unwrap();
    engine.init();
    let kept = || -> Vec<(String, Vec<u32>)> {
        let states = common::states(&engine).into_iter();
        let own = states.filter(|((_, state), _)| state.starts_with("powersgd"));
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
        own.map(|((param, state), values)| (format!("{param} {state}"), bits(values)))
            .collect()
    };
    let mut before = kept();
    assert_eq!(before.len(), 2 * 4 * m.model.layers, "error and Q of each matrix");
    let mut fates = Vec::new();
    for _ in 0..8 {
        let mut next = first;
        let mut load = |inputs: &Inputs| {
            let tokens = common::tokens(4, 24, 128, next as u64);
            inputs.upload(&cpu, &Batch::causal(&tokens, 4, 4 * next as u64, 1.0 / (8.0 * 24.0)));
            next += replicas;
            Ok(())
        };
        let outcome = engine.step(&mut load, 1, 3e-3).unwrap();
        let now = kept();
        for (before, now) in before.iter().zip(&now) {
            assert_eq!(before == now, outcome.skipped, "{}: {outcome:?}", now.0);
        }
        before = now;
        fates.push(outcome.skipped);
    }
    fates
}
