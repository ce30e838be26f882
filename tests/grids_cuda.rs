//! Grids of GPUs equal one CPU: ranks are threads, each with its own software stand-in, joined by the
//! stand-in for NCCL; or all with one, joined through host memory, as a single real GPU can be tried
//! (`make test-gpu`).

mod common;
#[path = "common/softgpu.rs"]
mod softgpu;

use gptrain::comm::nccl::Nccl;
use gptrain::comm::staged::Staged;
use gptrain::comm::{Group, World, threads};
use gptrain::device::Backend;
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::Cuda;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::manifest::Manifest;
use gptrain::model::Inputs;

macro_rules! grid {
    ($name:ident, $how:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            check(&[$($set),+], How::$how);
        }
    };
}

grid!(nccl_tensor_2_sequence, Nccl: "topology.tensor=2", "topology.sequence_parallel=true");
grid!(nccl_data_2_zero_2, Nccl: "topology.data=2", "topology.zero=2");
grid!(nccl_data_2_zero_3, Nccl: "topology.data=2", "topology.zero=3");
grid!(nccl_pipeline_2, Nccl: "topology.pipeline=2");
grid!(nccl_all_three, Nccl: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1");
grid!(staged_tensor_data, Staged: "topology.tensor=2", "topology.data=2", "topology.zero=2");
grid!(staged_tensor_pipeline, Staged: "topology.tensor=2", "topology.pipeline=2",
    "topology.sequence_parallel=true");

#[derive(Clone, Copy)]
enum How {
    Nccl,
    Staged,
}

/// As one rank on the CPU but for the order of sums, and twice the same bits.
fn check(topology: &[&str], how: How) {
    for (precision, tolerance) in [("precision=f32", 1e-5), ("precision=bf16", 4e-3)] {
        let model = ["model.dropout=0.1", "batch.micro=2", "batch.global=8", precision];
        let manifest = common::manifest(&[&model[..], topology].concat());
        let ours = on_gpus(&manifest, how);
        let cpu = Cpu::new(Some(1));
        let one = train(&cpu, Groups::solo(), &common::manifest(&model));
        for (a, b) in ours.iter().zip(&one) {
            let off = |a: f64, b: f64| (a - b).abs() / b;
            assert!(off(a.loss, b.loss) <= tolerance, "{a:?}, one rank {b:?}");
            assert!(off(a.grad_norm, b.grad_norm) <= 10.0 * tolerance, "{a:?}, one rank {b:?}");
        }
        if precision == "precision=bf16" {
            assert_eq!(ours, on_gpus(&manifest, how), "the same grid twice");
        }
    }
}

fn on_gpus(manifest: &Manifest, how: How) -> Vec<Outcome> {
    let worlds = threads::world(manifest.topology.ranks());
    let all: Vec<Vec<Outcome>> = std::thread::scope(|scope| {
        let run = |world: World| {
            scope.spawn(move || {
                let options = softgpu::gpu(match how {
                    How::Nccl => world.rank(),
                    How::Staged => 0,
                });
                let cuda = Cuda::open(&options).unwrap_or_else(|problems| panic!("{problems}"));
                let nccl = Nccl::open(&cuda, &options);
                let make = |name: &str, ranks: &[usize]| -> Box<dyn Group> {
                    match how {
                        How::Nccl => nccl.as_ref().unwrap().group(&world, name, ranks),
                        How::Staged => Box::new(Staged::new(&cuda, world.group(name, ranks))),
                    }
                };
                let groups = Groups::of(world.rank(), &manifest.topology, make);
                train(&cuda, groups, manifest)
            })
        };
        let ranks: Vec<_> = worlds.into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    assert!(all.iter().all(|outcomes| *outcomes == all[0]), "ranks disagree: {all:?}");
    all.into_iter().next().unwrap()
}

fn train(be: &dyn Backend, groups: Groups, manifest: &Manifest) -> Vec<Outcome> {
    const GLOBAL: usize = 8;
    let (dp, replicas, micro) = (groups.data.rank(), groups.data.size(), manifest.batch.micro);
    let engine = Engine::new(be, groups, manifest, true).unwrap();
    engine.init();
    let step = |step: usize| {
        let mut next = step * GLOBAL + dp * micro;
        let mut load = |inputs: &Inputs| {
            inputs.upload(be, &batch(next, micro));
            next += replicas * micro;
            Ok(())
        };
        let micros = GLOBAL / micro / replicas;
        engine.step(&mut load, micros, 3e-3).unwrap()
    };
    (0..2).map(step).collect()
}

/// Samples `first ..` of a step of 8.
fn batch(first: usize, samples: usize) -> gptrain::data::Batch {
    let seq = 24;
    let tokens: Vec<i32> =
        (first..first + samples).flat_map(|s| common::tokens(1, seq, 128, s as u64)).collect();
    common::causal(&tokens, samples, first as u64, 1.0 / (8 * seq) as f32)
}
