//! Any grid equals one rank: losses and gradient norms of several steps, with a ramp-up among them.

mod common;

use gptrain::comm::{World, threads};
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::manifest::Manifest;
use gptrain::model::Inputs;

/// Samples of each step: the batch grows on the way.
const GLOBAL: [usize; 5] = [8, 8, 16, 16, 16];

macro_rules! grid {
    ($name:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            check(&[$($set),+]);
        }
    };
}

grid!(tensor_2: "topology.tensor=2");
grid!(tensor_4_recompute: "topology.tensor=4", "topology.recompute=full");
grid!(sequence_2: "topology.tensor=2", "topology.sequence_parallel=true");
grid!(sequence_4_selective: "topology.tensor=4", "topology.sequence_parallel=true",
    "topology.recompute=selective");
grid!(data_2: "topology.data=2");
grid!(data_4: "topology.data=4");
grid!(zero_1: "topology.data=2", "topology.zero=1");
grid!(zero_1_by_4: "topology.data=4", "topology.zero=1");
grid!(zero_2: "topology.data=2", "topology.zero=2");
grid!(zero_2_by_4: "topology.data=4", "topology.zero=2");
grid!(zero_3: "topology.data=2", "topology.zero=3");
grid!(zero_3_by_4_recompute: "topology.data=4", "topology.zero=3", "topology.recompute=full");
grid!(pipeline_2: "topology.pipeline=2");
grid!(pipeline_4: "topology.pipeline=4");
grid!(pipeline_4_gpipe: "topology.pipeline=4", "topology.schedule=gpipe");
grid!(interleaved_2: "topology.pipeline=2", "topology.schedule=interleaved");
grid!(interleaved_4_by_2: "model.layers=8", "topology.pipeline=4",
    "topology.schedule=interleaved");
grid!(interleaved_2_by_3: "model.layers=6", "topology.pipeline=2",
    "topology.schedule=interleaved", "topology.chunks=3");
grid!(interleaved_untied: "topology.pipeline=2", "topology.schedule=interleaved",
    "model.tied_head=false");
grid!(interleaved_uneven: "model.layers=6", "topology.pipeline=2",
    "topology.schedule=interleaved", "topology.layer_split=[1, 2, 2, 1]");
grid!(all_three_interleaved: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.sequence_parallel=true", "topology.schedule=interleaved",
    "topology.recompute=selective");
grid!(pipeline_balanced: "model.layers=5", "topology.pipeline=2", "topology.layer_split=balanced");
grid!(pipeline_3_with_ends: "topology.pipeline=3",
    "topology.layer_split=transformer_and_embedding");
grid!(pipeline_uneven: "topology.pipeline=2", "topology.layer_split=[3, 1]");
grid!(pipeline_untied: "topology.pipeline=2", "model.tied_head=false");
grid!(tensor_pipeline: "topology.tensor=2", "topology.pipeline=2");
grid!(all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1");
grid!(all_three_sequence: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.sequence_parallel=true", "topology.neighbours=pipeline");
grid!(tensor_zero_3: "topology.tensor=2", "topology.data=2", "topology.zero=3",
    "topology.sequence_parallel=true");
grid!(tensor_zero_2: "topology.tensor=2", "topology.data=2", "topology.zero=2");

/// For both model families and precisions, dropout on and off: as one rank, and twice the same bits.
fn check(topology: &[&str]) {
    let families: [&[&str]; 3] = [
        &[],
        &["model.dropout=0.1", "model.gelu=exact"],
        &["model.position=alibi", "model.embedding_layernorm=true", "model.dropout=0.1"],
    ];
    let serial: Vec<&str> =
        topology.iter().copied().filter(|set| !set.starts_with("topology.")).collect();
    for family in families {
        let one = train(&[family, &serial].concat());
        close(&train(&[family, topology].concat()), &one, 1e-6, family);
    }
    let bf16: &[&str] = &["precision=bf16"];
    let first = train(&[bf16, topology].concat());
    close(&first, &train(&[bf16, &serial].concat()), 2e-3, bf16);
    assert_eq!(first, train(&[bf16, topology].concat()), "the same grid twice");
}

/// Steps, then an evaluation, on every rank of a manifest's grid; all ranks must agree.
fn train(sets: &[&str]) -> Vec<Outcome> {
    let small = ["model.layers=4", "batch.micro=2", "batch.global=16", "optimizer.adamw.clip=0.3"];
    let manifest = common::manifest(&[&small[..], sets].concat());
    let worlds = threads::world(manifest.topology.ranks());
    let all: Vec<Vec<Outcome>> = std::thread::scope(|scope| {
        let run = |world: World| scope.spawn(|| rank(world, &manifest));
        let ranks: Vec<_> = worlds.into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    assert!(all.iter().all(|outcomes| *outcomes == all[0]), "ranks disagree: {all:?}");
    all.into_iter().next().unwrap()
}

fn rank(world: World, manifest: &Manifest) -> Vec<Outcome> {
    let cpu = Cpu::new(Some(1));
    let groups = Groups::new(&world, &manifest.topology);
    let (dp, replicas) = (groups.data.rank(), groups.data.size());
    let engine = Engine::new(&cpu, groups, manifest, true).unwrap();
    engine.init();
    let micro = manifest.batch.micro;
    let mut consumed = 0;
    let mut outcomes = Vec::new();
    for (step, global) in GLOBAL.iter().enumerate() {
        let mut next = consumed + dp * micro;
        let mut load = |inputs: &Inputs| {
            inputs.upload(&cpu, &batch(next, micro, *global));
            next += replicas * micro;
            Ok(())
        };
        let micros = global / micro / replicas;
        outcomes.push(engine.step(&mut load, micros, 3e-3, step as u64 + 1).unwrap());
        consumed += global;
    }
    let mut first = dp;
    let mut eval = |inputs: &Inputs| {
        inputs.upload(&cpu, &batch(first * micro, micro, 8));
        first += replicas;
        Ok(())
    };
    let loss = engine.evaluate(&mut eval, 4 / replicas as u64).unwrap();
    outcomes.push(Outcome { loss, grad_norm: 1.0 });
    outcomes
}

/// Samples `first ..`, each counting 1 / `of` in the loss.
fn batch(first: usize, samples: usize, of: usize) -> gptrain::data::Batch {
    let seq = 24;
    let tokens: Vec<i32> =
        (first..first + samples).flat_map(|s| common::tokens(1, seq, 128, s as u64)).collect();
    common::causal(&tokens, samples, first as u64, 1.0 / (of * seq) as f32)
}

fn close(ours: &[Outcome], serial: &[Outcome], tolerance: f64, what: &[&str]) {
    for (step, (a, b)) in ours.iter().zip(serial).enumerate() {
        let off = |a: f64, b: f64| (a - b).abs() / b;
        let (loss, norm) = (off(a.loss, b.loss), off(a.grad_norm, b.grad_norm));
        let place = format!("step {step} of {what:?}: {a:?}, one rank {b:?}");
        assert!(loss <= tolerance, "{place}: loss off by {loss:.1e}");
        assert!(norm <= 20.0 * tolerance, "{place}: norm off by {norm:.1e}");
    }
    assert!(serial[4].loss < serial[0].loss, "it learns: {serial:?}");
}
