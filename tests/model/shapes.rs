//! Micro-batches of several shapes share the memory of the largest: a step has the bits of an engine that
//! was laid out for its shape alone.

use crate::common::{self, softgpu};
use gptrain::data::Batch;
use gptrain::device::Backend;
use gptrain::device::cpu::Cpu;
use gptrain::device::cuda::Cuda;
use gptrain::engine::{Engine, Groups};
use gptrain::model::Inputs;
use gptrain::plan::segments::MicroShape;

/// Loss and gradient norm of a step of so many micro-batches.
fn step(engine: &Engine, be: &dyn Backend, micro: MicroShape, micros: usize) -> [f64; 2] {
    let MicroShape { samples, tokens } = micro;
    let mut number = 0;
    let load = &mut |inputs: &Inputs| {
        let ids = common::tokens(samples, tokens, 128, 5 + number);
        let weight = 1.0 / (micros * samples * tokens) as f32;
        number += 1;
        inputs.upload(be, &Batch::causal(&ids, samples, number * samples as u64, weight));
        Ok(())
    };
    let outcome = engine.step(load, micros, 3e-3).unwrap();
    [outcome.loss, outcome.grad_norm]
}

/// Trains on a device that `open` opens, in steps of two shapes.
fn check<B: Backend>(open: impl Fn() -> B, kinds: &[[&str; 2]]) {
    let long = MicroShape { samples: 4, tokens: 24 };
    let short = MicroShape { samples: 2, tokens: 12 };
    for kind in kinds {
        let [first, second] = *kind;
        let batch = "batch={micro: 2, global: 8, ramp_up: 4 4 100, length_ramp_up: 12 12 1000}";
        let stages = "batch.micro_stages=[{from_global: 8, micro: 4}]";
        let grown = common::manifest(&[batch, stages, first, second]);
        let alone = ["batch={micro: 2, global: 4}", "model.seq_len=12", first, second];
        let alone = common::manifest(&alone);
        let (device, other) = (open(), open());
        let engine = Engine::new(&device, Groups::solo(), &grown, true).unwrap();
        let reference = Engine::new(&other, Groups::solo(), &alone, true).unwrap();
        engine.init();
        reference.init();
        for _ in 0..3 {
            engine.set_micro(short).unwrap();
            let ours = step(&engine, &device, short, 2);
            let theirs = step(&reference, &other, short, 2);
            assert_eq!(ours.map(f64::to_bits), theirs.map(f64::to_bits), "{kind:?}");
        }
        assert!(common::states(&engine) == common::states(&reference), "{kind:?}");
        // Whole samples after it: buffers overlap, and the step has an effect.
        engine.set_micro(long).unwrap();
        let whole = step(&engine, &device, long, 2);
        assert!(whole.iter().all(|value| value.is_finite()), "{whole:?}");
        assert!(common::states(&engine) != common::states(&reference), "{kind:?}");
    }
}

#[test]
fn a_step_of_another_shape_has_the_bits_of_an_engine_of_that_shape() {
    let kinds = [
        ["model.positions=24", "model.dropout=0.1"],
        ["model.family=llama", "topology.recompute=full"],
        ["model.position=alibi", "optimizer=muon"],
    ];
    check(|| Cpu::new(Some(1)), &kinds);
}

/// Graphs are captured again for other addresses.
#[test]
fn so_it_has_on_a_gpu() {
    let open = || Cuda::open(&softgpu::gpu(0)).unwrap_or_else(|problems| panic!("{problems}"));
    check(open, &[["model.positions=24", "model.dropout=0.1"]]);
}
