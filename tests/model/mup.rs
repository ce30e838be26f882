//! µP (`model.mup`): what a few steps change of activations is as large at every width, under every
//! optimizer, and grows with the width without it; every grid trains the same.

use crate::common;
use crate::grids::{GLOBAL, close, train};
use gptrain::base::DType;
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::device::{Arena, Backend, Tensor};
use gptrain::engine::{Engine, Groups, Sampler};
use gptrain::manifest::Manifest;
use gptrain::model::{Activations, Cx, Inputs, Stage, Tables, TensorParallel};

const WIDTHS: [usize; 3] = [32, 96, 192];
const SAMPLES: usize = 2;
const SEQ: usize = 24;
const STEPS: usize = 4;

fn manifest(width: usize, mup: bool, rule: &str) -> Manifest {
    let heads = width / 8;
    let model =
        format!("model={{layers: 2, hidden: {width}, heads: {heads}, vocab: 128, seq_len: 24}}");
    let mup = mup.then(|| "model.mup={base_hidden: 32}".to_string());
    let batch = "batch={micro: 2, global: 2}".to_string();
    let sets: Vec<String> = [model, rule.to_string(), batch]
        .into_iter()
        .chain(mup)
        .collect();
    common::manifest(&sets.iter().map(String::as_str).collect::<Vec<_>>())
}

fn tokens() -> Batch {
    let tokens = common::tokens(SAMPLES, SEQ, 128, 5);
    Batch::causal(&tokens, SAMPLES, 0, 1.0 / (SAMPLES * SEQ) as f32)
}

/// The residual stream after the blocks [N, H], and the logits [N, V].
fn activations(cpu: &Cpu, m: &Manifest, engine: &Engine) -> [Vec<f32>; 2] {
    let sampler = Sampler::new(cpu, m, SEQ).unwrap();
    let weights = common::weights(engine);
    for slice in sampler.weights.slices() {
        let (_, values) = weights
            .iter()
            .find(|(name, _)| *name == slice.param.name)
            .unwrap();
        sampler
            .weights
            .write(&slice, 0, bytemuck::cast_slice(values));
    }
    let groups = Groups::solo();
    let cx = Cx {
        be: cpu,
        tp: TensorParallel { group: &*groups.tensor, sequence: false },
        model: &m.model,
        dtype: DType::F32,
        recompute: m.topology.recompute,
        seed: 0,
        training: false,
        z_loss: None,
        fp8: None,
        cached_tokens: 0,
    };
    let chunk = &sampler.weights.layout().shard.chunks[0];
    let plan = |arena: &Arena| {
        let tables = Tables::plan(&cx, arena);
        let inputs = Inputs::plan(SAMPLES, SEQ, true, arena);
        Activations::plan(&cx, chunk, inputs, &tables, arena, arena)
    };
    let measuring = Arena::measuring();
    plan(&measuring);
    let words = measuring.peak().div_ceil(4);
    let acts =
        plan(&Arena::over(Tensor::at(cpu.reserve(4 * words).unwrap(), 1, words, DType::F32)));
    acts.inputs.upload(cpu, &tokens());
    let stage = Stage { cx, layout: sampler.weights.layout(), store: &sampler.weights };
    stage.forward(&acts);
    let read = |x: Tensor| {
        let mut host = vec![0.0f32; x.numel()];
        cpu.download(x, bytemuck::cast_slice_mut(&mut host));
        host
    };
    let stream = read(acts.y);
    [
        stream,
        (0..SAMPLES * SEQ)
            .flat_map(|row| read(stage.logits(&acts, row)))
            .collect(),
    ]
}

/// Root mean squares of what some steps change of the stream and of the logits.
fn changes(width: usize, mup: bool, rule: &str, lr: f64) -> [f64; 2] {
    let (cpu, m) = (Cpu::new(Some(1)), manifest(width, mup, rule));
    let engine = Engine::new(&cpu, Groups::solo(), &m, true).unwrap();
    engine.init();
    let before = activations(&cpu, &m, &engine);
    for _ in 0..STEPS {
        let mut load = |inputs: &Inputs| {
            inputs.upload(&cpu, &tokens());
            Ok(())
        };
        engine.step(&mut load, 1, lr).unwrap();
    }
    let after = activations(&cpu, &m, &engine);
    [0, 1].map(|which| {
        let pairs = before[which].iter().zip(&after[which]);
        let sum: f64 = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum();
        (sum / before[which].len() as f64).sqrt()
    })
}

/// The largest of some numbers over the smallest.
fn spread(numbers: &[f64]) -> f64 {
    let fold = |of: fn(f64, f64) -> f64| numbers.iter().copied().reduce(of).unwrap();
    fold(f64::max) / fold(f64::min)
}

/// The coordinate check of Yang et al. 2022, appendix D.1: six times the width.
fn check(rule: &str, lr: f64) {
    let [with, without] =
        [true, false].map(|mup| WIDTHS.map(|width| changes(width, mup, rule, lr)));
    for (which, what) in ["stream", "logits"].into_iter().enumerate() {
        let all = with.map(|both| both[which]);
        assert!(spread(&all) < 1.6, "{rule}, change of the {what} at {WIDTHS:?}: {all:.3?}");
    }
    let [[_, first], .., [_, last]] = without;
    assert!(last > 2.0 * first, "{rule}: without µP logits grow with the width: {without:.3?}");
}

#[test]
fn steps_of_adamw_change_as_much_at_every_width() {
    check("optimizer=adamw", 3e-3);
}

#[test]
fn steps_of_adafactor_change_as_much_at_every_width() {
    check("optimizer=adafactor", 3e-3);
}

#[test]
fn steps_of_muon_change_as_much_at_every_width() {
    check("optimizer=muon", 3e-3);
    check("optimizer={muon: {scale: original}}", 3e-2);
}

#[test]
fn every_grid_trains_as_one_rank() {
    let mup = "model.mup={base_hidden: 8, base_head_dim: 4, embedding_multiplier: 3, \
               output_multiplier: 1.5}";
    let llama = ["model.family=llama", "model.heads=8", "model.kv_heads=4", "model.ffn_hidden=40"];
    let rules: [&[&str]; 3] = [
        &[mup, "model.dropout=0.1"],
        &[mup, "optimizer.adafactor={clip: 0.3}", "model.tied_head=false"],
        &[&[mup, "optimizer.muon={clip: 0.3}"], &llama[..]].concat(),
    ];
    let grids: [&[&str]; 3] = [
        &["topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1"],
        &[
            "topology.tensor=2",
            "topology.sequence_parallel=true",
            "topology.data=2",
            "topology.zero=3",
        ],
        &["topology.recompute=full", "topology.offload=optimizer"],
    ];
    for rule in rules {
        let one = train(rule, &GLOBAL);
        for grid in grids {
            if grid[1] == "topology.offload=optimizer" && rule[1].contains("muon") {
                continue;
            }
            close(&train(&[rule, grid].concat(), &GLOBAL), &one, (1e-6, 1e-6), grid);
        }
    }
}

/// A base of the same width, and multipliers of 1, change no bit.
#[test]
fn a_model_that_is_its_own_base_trains_as_without() {
    let sets = ["model.mup={base_hidden: 32, base_head_dim: 8}"];
    assert!(train(&sets, &GLOBAL) == train(&[], &GLOBAL));
}
