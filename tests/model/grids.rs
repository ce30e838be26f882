//! Any grid equals one rank: losses and gradients of several steps, with a ramp-up among them.

use crate::common;
use gptrain::comm::{World, threads};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, Outcome};
use gptrain::manifest::Manifest;
use gptrain::model::{Inputs, Param, TpSplit};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Samples of each step: the batch grows on the way.
pub const GLOBAL: [usize; 5] = [8, 8, 16, 16, 16];

macro_rules! grid {
    ($name:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            check(&[$($set),+], &GLOBAL);
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
grid!(zero_2_of_one_layer: "model.layers=1", "topology.data=2", "topology.zero=2");
grid!(zero_3: "topology.data=2", "topology.zero=3");
grid!(zero_3_by_4_recompute: "topology.data=4", "topology.zero=3", "topology.recompute=full");
grid!(pipeline_2: "topology.pipeline=2");
grid!(pipeline_of_one_layer_stages: "topology.pipeline=4");
grid!(pipeline_4_gpipe: "topology.pipeline=4", "topology.schedule=gpipe");
grid!(pipeline_uneven: "topology.pipeline=2", "topology.layer_split=[3, 1]");
grid!(pipeline_balanced: "model.layers=5", "topology.pipeline=2", "topology.layer_split=balanced");
grid!(pipeline_3_with_ends: "topology.pipeline=3",
    "topology.layer_split=transformer_and_embedding");
grid!(pipeline_of_stages_without_layers: "model.layers=2", "topology.pipeline=4",
    "topology.layer_split=transformer_and_embedding");
grid!(pipeline_of_the_embedding_alone: "topology.pipeline=3", "topology.layer_split=[0, 2, 2]",
    "topology.schedule=gpipe", "model.tied_head=false", "topology.recompute=full");
grid!(pipeline_of_the_head_alone: "topology.pipeline=2", "topology.layer_split=[4, 0]",
    "topology.data=2", "topology.zero=1", "topology.tensor=2", "topology.sequence_parallel=true");
grid!(interleaved_without_layers: "model.layers=6", "topology.pipeline=2",
    "topology.schedule=interleaved", "topology.layer_split=[0, 3, 3, 0]");
grid!(interleaved_without_layers_untied: "model.layers=2", "topology.pipeline=2",
    "topology.schedule=interleaved", "topology.layer_split=transformer_and_embedding",
    "topology.overlap_p2p=true", "model.tied_head=false");
grid!(pipeline_untied: "topology.pipeline=2", "model.tied_head=false");
grid!(interleaved_2: "topology.pipeline=2", "topology.schedule=interleaved");
grid!(interleaved_4_by_2: "model.layers=8", "topology.pipeline=4",
    "topology.schedule=interleaved", "topology.overlap_p2p=true");
grid!(interleaved_2_by_3: "model.layers=6", "topology.pipeline=2",
    "topology.schedule=interleaved", "topology.chunks=3");
grid!(interleaved_untied: "topology.pipeline=2", "topology.schedule=interleaved",
    "model.tied_head=false");
grid!(interleaved_uneven: "model.layers=6", "topology.pipeline=2",
    "topology.schedule=interleaved", "topology.layer_split=[1, 2, 2, 1]");
grid!(interleaved_balanced_recompute: "model.layers=7", "topology.pipeline=2",
    "topology.schedule=interleaved", "topology.layer_split=balanced", "topology.recompute=full");
grid!(tensor_pipeline: "topology.tensor=2", "topology.pipeline=2");
// Five ranks do not divide what a stage sends.
grid!(tensor_5_pipeline: "topology.tensor=5", "topology.pipeline=2", "model.heads=5",
    "model.head_dim=8", "model.ffn_hidden=40");
grid!(pipeline_zero_1: "topology.pipeline=2", "topology.data=2", "topology.zero=1");
grid!(interleaved_data: "topology.pipeline=2", "topology.data=2",
    "topology.schedule=interleaved", "topology.overlap_p2p=true");
grid!(interleaved_zero_1: "topology.pipeline=2", "topology.data=2", "topology.zero=1",
    "topology.schedule=interleaved");
grid!(all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2", "topology.zero=1");
grid!(all_three_gpipe: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.schedule=gpipe", "topology.sequence_parallel=true");
grid!(all_three_sequence: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.sequence_parallel=true", "topology.neighbours=pipeline");
grid!(all_three_interleaved: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.sequence_parallel=true", "topology.schedule=interleaved", "topology.overlap_p2p=true",
    "topology.recompute=selective");
grid!(tensor_zero_1: "topology.tensor=2", "topology.data=2", "topology.zero=1",
    "topology.sequence_parallel=true");
grid!(tensor_zero_2: "topology.tensor=2", "topology.data=2", "topology.zero=2");
grid!(sequence_zero_2: "topology.tensor=2", "topology.data=2", "topology.zero=2",
    "topology.sequence_parallel=true");
grid!(tensor_zero_3: "topology.tensor=2", "topology.data=2", "topology.zero=3",
    "topology.sequence_parallel=true");

/// Steps of Adafactor: by the learning rate; and scaled by each weight's size, where that counts.
pub const ADAFACTOR: [&[&str]; 3] = [
    &["optimizer.adafactor={clip: 0.3, weight_decay: 0.1}", "model.dropout=0.1"],
    &["optimizer.adafactor={clip: 0.3, scale_parameter: true}", "model.init.std=0.2"],
    &["optimizer.adafactor={clip_threshold: 0.5}", "model.tied_head=false"],
];

macro_rules! adafactor {
    ($name:ident: $($set:literal),*) => {
        #[test]
        fn $name() {
            for rule in ADAFACTOR {
                let one = serial(rule, &GLOBAL);
                close(&train(&[rule, &[$($set),*]].concat(), &GLOBAL), &one, (1e-6, 1e-6), rule);
            }
            let bf16 = [ADAFACTOR[0], &["precision=bf16", $($set),*]].concat();
            let first = train(&bf16, &GLOBAL);
            let one = serial(&[ADAFACTOR[0], &["precision=bf16"]].concat(), &GLOBAL);
            close(&first, &one, (2e-3, 2e-2), &bf16);
            assert!(first == train(&bf16, &GLOBAL), "the same grid twice");
        }
    };
}

adafactor!(adafactor_data_2: "topology.data=2");
adafactor!(adafactor_zero_1: "topology.data=2", "topology.zero=1");
adafactor!(adafactor_zero_2: "topology.data=4", "topology.zero=2");
adafactor!(adafactor_zero_3: "topology.data=2", "topology.zero=3");
adafactor!(adafactor_tensor_2: "topology.tensor=2");
adafactor!(adafactor_sequence_2: "topology.tensor=2", "topology.sequence_parallel=true");
adafactor!(adafactor_tensor_zero_3: "topology.tensor=2", "topology.data=2", "topology.zero=3",
    "topology.sequence_parallel=true");
adafactor!(adafactor_pipeline_2: "topology.pipeline=2");
adafactor!(adafactor_all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.schedule=interleaved");

/// A cap of the logits, and the second loss, over a vocabulary that is not the ranks' multiple.
pub const CAPPED: [&[&str]; 2] = [
    &["model.logit_softcap=0.3", "train.z_loss=0.1", "model.vocab=101"],
    &["train.z_loss=0.01", "model.tied_head=false"],
];

macro_rules! capped {
    ($name:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            check_families(&[$($set),+], &GLOBAL, &CAPPED);
            assert!(serial(CAPPED[0], &GLOBAL).outcomes[0].z_loss > 0.1);
        }
    };
}

capped!(capped_tensor_4: "topology.tensor=4", "topology.recompute=full");
capped!(capped_pipeline_zero_1: "topology.pipeline=2", "topology.data=2", "topology.zero=1");
capped!(capped_all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.sequence_parallel=true", "topology.schedule=interleaved");

/// Gates and values are matrices of their own.
#[test]
fn adafactor_llama() {
    let rule = [&["optimizer.adafactor={clip: 0.3, weight_decay: 0.1}"], LLAMAS[0]].concat();
    let one = serial(&rule, &GLOBAL);
    let grid = ["topology.tensor=2", "topology.data=2", "topology.zero=2"];
    close(&train(&[&rule[..], &grid].concat(), &GLOBAL), &one, (1e-6, 1e-6), &rule);
}

/// Eight micro-batches of two samples, or two of eight. (The evaluations are of other samples.)
#[test]
fn adafactor_accumulates() {
    for rule in ADAFACTOR {
        let past = |sets: &[&str]| {
            let mut past = train(&[rule, sets].concat(), &GLOBAL);
            past.outcomes.pop();
            past
        };
        close(&past(&["batch.micro=8"]), &past(&[]), (1e-6, 1e-6), rule);
    }
}

/// Steps of Muon: queries, keys, values, gates apart; an odd width; each scaling.
pub const MUON: [&[&str]; 3] = [
    &["optimizer.muon={clip: 0.3}", "model.dropout=0.1"],
    &["optimizer.muon={scale: original, nesterov: false}", "model.tied_head=false"],
    &[
        "optimizer.muon={clip: 0.3, adamw: {lr_scale: 0.5}}",
        "model.family=llama",
        "model.heads=8",
        "model.kv_heads=4",
        "model.ffn_hidden=40",
    ],
];

macro_rules! muon {
    ($name:ident: $($set:literal),*) => {
        #[test]
        fn $name() {
            for rule in MUON {
                let one = serial(rule, &GLOBAL);
                close(&train(&[rule, &[$($set),*]].concat(), &GLOBAL), &one, (1e-6, 1e-6), rule);
            }
            let bf16 = [MUON[0], &["precision=bf16", $($set),*]].concat();
            let first = train(&bf16, &GLOBAL);
            let one = serial(&[MUON[0], &["precision=bf16"]].concat(), &GLOBAL);
            close(&first, &one, (2e-3, 2e-2), &bf16);
            assert!(first == train(&bf16, &GLOBAL), "the same grid twice");
        }
    };
}

muon!(muon_data_2: "topology.data=2");
muon!(muon_zero_1: "topology.data=4", "topology.zero=1");
muon!(muon_zero_2: "topology.data=2", "topology.zero=2");
muon!(muon_sequence_4: "topology.tensor=4", "topology.sequence_parallel=true");
muon!(muon_tensor_zero_3: "topology.tensor=2", "topology.data=2", "topology.zero=3");
muon!(muon_all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.schedule=interleaved");

macro_rules! llama {
    ($name:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            check_families(&[$($set),+], &GLOBAL, &LLAMAS);
        }
    };
}

llama!(llama_tensor_2: "topology.tensor=2");
llama!(llama_tensor_4_recompute: "topology.tensor=4", "topology.recompute=full");
llama!(llama_sequence_2_selective: "topology.tensor=2", "topology.sequence_parallel=true",
    "topology.recompute=selective");
llama!(llama_pipeline_2: "topology.pipeline=2");
llama!(llama_interleaved_tied: "topology.pipeline=2", "topology.schedule=interleaved",
    "model.tied_head=true");
llama!(llama_zero_1: "topology.data=2", "topology.zero=1");
llama!(llama_tensor_zero_2: "topology.tensor=2", "topology.data=2", "topology.zero=2");
llama!(llama_sequence_zero_3: "topology.tensor=2", "topology.data=2", "topology.zero=3",
    "topology.sequence_parallel=true");
llama!(llama_all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1", "topology.sequence_parallel=true");

macro_rules! fp16 {
    ($name:ident: $($set:literal),+) => {
        #[test]
        fn $name() {
            check_overflows(&[$($set),+]);
        }
    };
}

fp16!(fp16_tensor_2: "topology.tensor=2");
fp16!(fp16_sequence_2: "topology.tensor=2", "topology.sequence_parallel=true");
fp16!(fp16_pipeline_2: "topology.pipeline=2");
fp16!(fp16_data_2: "topology.data=2");
fp16!(fp16_zero_1: "topology.data=2", "topology.zero=1");
fp16!(fp16_zero_3: "topology.data=2", "topology.zero=3");
fp16!(fp16_all_three: "topology.tensor=2", "topology.pipeline=2", "topology.data=2",
    "topology.zero=1");
fp16!(fp16_muon: "optimizer=muon", "topology.tensor=2", "topology.data=2", "topology.zero=1");
fp16!(fp16_adafactor: "optimizer=adafactor", "topology.tensor=2", "topology.pipeline=2",
    "topology.data=2", "topology.zero=1");

/// A scale under which the first two steps overflow: every rank skips them as one rank does.
pub fn check_overflows(sets: &[&str]) {
    let (topology, rule): (Vec<&str>, Vec<&str>) = sets
        .iter()
        .copied()
        .partition(|set| set.starts_with("topology."));
    let scale = ["precision=fp16", "loss_scale={initial: 16777216, hysteresis: 1, window: 3}"];
    let fp16 = [&scale[..], &rule].concat();
    let first = train(&[&fp16[..], &topology].concat(), &GLOBAL);
    let one = serial(&fp16, &GLOBAL);
    let fate = |past: &Past| -> Vec<_> {
        past.outcomes
            .iter()
            .map(|outcome| (outcome.skipped, outcome.loss_scale))
            .collect()
    };
    assert_eq!(fate(&first), fate(&one));
    let skipped: Vec<bool> = one.outcomes.iter().map(|outcome| outcome.skipped).collect();
    assert_eq!(skipped, [true, true, false, false, false, false]);
    close(&first, &one, (1e-3, 0.0), &fp16);
    assert!(first == train(&[&fp16[..], &topology].concat(), &GLOBAL), "the same grid twice");
}

/// Steps of every size in any order run in what was reserved for the largest.
#[test]
fn the_batch_may_change_at_every_step() {
    let interleaved = ["topology.pipeline=2", "topology.schedule=interleaved"];
    let globals = [4, 12, 8, 16, 4, 16];
    check(&interleaved, &globals);
    check(
        &[&interleaved[..], &["topology.data=2", "topology.zero=1"]].concat(),
        &[8, 16, 8, 16, 16],
    );
    check(&["topology.pipeline=4"], &globals);
    check(&["topology.pipeline=2", "topology.schedule=gpipe"], &globals);
}

/// Recomputed values are bit-identical.
#[test]
fn recompute_changes_no_bit() {
    let grids: [&[&str]; 3] = [
        &[],
        &["topology.tensor=2", "topology.sequence_parallel=true"],
        &["topology.pipeline=2", "topology.schedule=interleaved", "precision=bf16"],
    ];
    for grid in grids {
        for family in FAMILIES.into_iter().chain(LLAMAS) {
            let at = |level| train(&[family, grid, &[level]].concat(), &GLOBAL);
            let none = at("topology.recompute=none");
            assert!(none == at("topology.recompute=selective"), "{grid:?} {family:?}");
            assert!(none == at("topology.recompute=full"), "{grid:?} {family:?}");
        }
    }
}

/// A stage receives exactly what the previous one had, whichever rank sent which share of it.
#[test]
fn stages_change_no_bit() {
    let tensors: [&[&str]; 3] = [
        &["topology.tensor=2"],
        &["topology.tensor=4", "precision=bf16"],
        &["topology.tensor=2", "topology.sequence_parallel=true"],
    ];
    let pipelines: [&[&str]; 3] = [
        &["topology.pipeline=2"],
        &["topology.pipeline=2", "topology.schedule=interleaved"],
        &["topology.pipeline=4", "topology.schedule=gpipe"],
    ];
    for tensor in tensors {
        let of =
            |pipeline: &[&str]| values(&train(&[UNCLIPPED, tensor, pipeline].concat(), &GLOBAL));
        let alone = of(&[]);
        for pipeline in pipelines {
            assert!(of(pipeline) == alone, "{tensor:?} {pipeline:?}");
        }
    }
}

/// Neither the gradient's norm nor the copy of a tied embedding, which stages add up in another
/// order, decides how weights change.
pub const UNCLIPPED: &[&str] =
    &["optimizer.adamw.clip=0", "model.tied_head=false", "model.dropout=0.1"];

/// Losses, and the gradients of every weight, to the last bit.
fn values(past: &Past) -> (Vec<u64>, Vec<Gradient>) {
    let mut gradients = past.gradients.clone();
    gradients.sort_by(|a, b| (&a.name, a.row, a.col).cmp(&(&b.name, b.row, b.col)));
    (
        past.outcomes
            .iter()
            .map(|outcome| outcome.loss.to_bits())
            .collect(),
        gradients,
    )
}

/// Both model families, dropout on and off.
const FAMILIES: [&[&str]; 3] = [
    &[],
    &["model.dropout=0.1", "model.gelu=exact"],
    &["model.position=alibi", "model.embedding_layernorm=true", "model.dropout=0.1"],
];

/// Groups of query heads; norms of heads that are wider than hidden / heads, and layers of three kinds;
/// and parts of both worlds.
pub const LLAMAS: [&[&str]; 3] = [
    &["model.family=llama", "model.heads=8", "model.kv_heads=4", "model.ffn_hidden=40"],
    &[
        "model.family=qwen3",
        "model.heads=8",
        "model.kv_heads=4",
        "model.ffn_hidden=40",
        "model.head_dim=6",
        "model.window=9",
        "model.pattern=[window, full, {attention: window, rope: {theta: 50}}]",
        "model.dropout=0.1",
    ],
    &[
        "model.ffn=swiglu",
        "model.norm=rms",
        "model.bias=qkv",
        "model.position=alibi",
        "model.qk_norm=true",
        "model.embedding_layernorm=true",
    ],
];

/// For both model families and precisions, dropout on and off: as one rank, and twice the same bits.
pub fn check(topology: &[&str], globals: &[usize]) {
    check_families(topology, globals, &FAMILIES);
}

pub fn check_families(topology: &[&str], globals: &[usize], families: &[&[&str]]) {
    let alone: Vec<&str> = topology
        .iter()
        .copied()
        .filter(|set| !set.starts_with("topology."))
        .collect();
    for family in families {
        let one = serial(&[*family, &alone].concat(), globals);
        close(&train(&[*family, topology].concat(), globals), &one, (1e-6, 1e-6), family);
    }
    let bf16 = [&["precision=bf16"], families[0]].concat();
    let bf16 = &bf16[..];
    let first = train(&[bf16, topology].concat(), globals);
    close(&first, &serial(&[bf16, &alone].concat(), globals), (2e-3, 2e-2), bf16);
    assert!(first == train(&[bf16, topology].concat(), globals), "the same grid twice");
}

/// Results of training: each step, then an evaluation; and the first step's gradients on all ranks,
/// if those have them whole.
#[derive(Clone, Debug, Default)]
pub struct Past {
    pub outcomes: Vec<Outcome>,
    gradients: Vec<Gradient>,
}

impl PartialEq for Past {
    fn eq(&self, other: &Past) -> bool {
        shown(&self.outcomes) == shown(&other.outcomes) && self.gradients == other.gradients
    }
}

/// To the last bit, where a NaN is a NaN.
fn shown(outcomes: &[Outcome]) -> String {
    format!("{outcomes:?}")
}

/// A rank's share of a weight's gradient, and where in the whole weight it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradient {
    name: String,
    row: usize,
    col: usize,
    cols: usize,
    values: Vec<f32>,
}

/// One rank's, computed once for all tests that compare with it.
pub fn serial(sets: &[&str], globals: &[usize]) -> Arc<Past> {
    static KNOWN: Mutex<Option<HashMap<String, Arc<Past>>>> = Mutex::new(None);
    let key = format!("{sets:?} {globals:?}");
    let known = KNOWN
        .lock()
        .unwrap()
        .get_or_insert_default()
        .get(&key)
        .cloned();
    known.unwrap_or_else(|| {
        let past = Arc::new(train(sets, globals));
        KNOWN
            .lock()
            .unwrap()
            .get_or_insert_default()
            .insert(key, past.clone());
        past
    })
}

/// Steps, then an evaluation, on every rank of a manifest's grid; all ranks must agree.
pub fn train(sets: &[&str], globals: &[usize]) -> Past {
    let small = ["model.layers=4", "batch.micro=2", "batch.global=16", "optimizer.adamw.clip=0.3"];
    let manifest = common::manifest(&[&small[..], sets].concat());
    let worlds = threads::world(manifest.topology.ranks());
    let all: Vec<Past> = std::thread::scope(|scope| {
        let run = |world: World| scope.spawn(|| rank(world, &manifest, globals));
        let ranks: Vec<_> = worlds.into_iter().map(run).collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .collect()
    });
    let outcomes = all[0].outcomes.clone();
    for past in &all {
        assert!(
            shown(&past.outcomes) == shown(&outcomes),
            "ranks disagree: {:?}, {outcomes:?}",
            past.outcomes
        );
    }
    let gradients = all.into_iter().flat_map(|past| past.gradients).collect();
    Past { outcomes, gradients }
}

fn rank(world: World, manifest: &Manifest, globals: &[usize]) -> Past {
    let cpu = Cpu::new(Some(1));
    let groups = Groups::new(&world, &manifest.topology);
    let (dp, replicas) = (groups.grad_sum.rank(), groups.grad_sum.size());
    let share = groups.tensor.rank();
    let engine = Engine::new(&cpu, groups, manifest, true).unwrap();
    engine.init();
    let micro = manifest.batch.micro;
    let mut consumed = 0;
    let mut past = Past::default();
    for (step, global) in globals.iter().enumerate() {
        let mut next = consumed + dp * micro;
        let mut load = |inputs: &Inputs| {
            inputs.upload(&cpu, &batch(next, micro, *global));
            next += replicas * micro;
            Ok(())
        };
        let micros = global / micro / replicas;
        past.outcomes
            .push(engine.step(&mut load, micros, 3e-3).unwrap());
        consumed += global;
        if step == 0 && manifest.topology.zero == 0 && !past.outcomes[0].skipped {
            past.gradients = engine
                .params()
                .map(|param| gradient(&engine, param, share))
                .collect();
        }
    }
    let mut first = dp;
    let mut eval = |inputs: &Inputs| {
        inputs.upload(&cpu, &batch(first * micro, micro, 16));
        first += replicas;
        Ok(())
    };
    let loss = engine.evaluate(&mut eval, 8 / replicas as u64).unwrap();
    past.outcomes
        .push(Outcome { loss, grad_norm: 1.0, ..past.outcomes[0] });
    let last = past.outcomes.last_mut().expect("an evaluation");
    (last.skipped, last.loss_scale) = (false, 1.0);
    assert_eq!(engine.check_replicas(), Ok(()));
    past
}

/// Unclipped gradient of the last step. This rank must own the weight whole.
pub fn read_grad(engine: &Engine, param: &Param) -> Vec<f32> {
    let mut values = vec![0.0; param.numel()];
    engine.store().finish_copies();
    engine
        .backend()
        .download(engine.store().grad(param), bytemuck::cast_slice_mut(&mut values));
    values
}

/// This rank's share of a weight's gradient.
fn gradient(engine: &Engine, param: &Param, share: usize) -> Gradient {
    let values = read_grad(engine, param);
    let (row, col) = match param.spec.split {
        TpSplit::Rows => (share * param.rows, 0),
        TpSplit::Cols => (0, share * param.cols),
        TpSplit::Whole => (0, 0),
    };
    Gradient { name: param.name.clone(), row, col, cols: param.cols, values }
}

/// Samples `first ..`, each counting 1 / `of` in the loss.
fn batch(first: usize, samples: usize, of: usize) -> Batch {
    let seq = 24;
    let tokens: Vec<i32> = (first..first + samples)
        .flat_map(|s| common::tokens(1, seq, 128, s as u64))
        .collect();
    Batch::causal(&tokens, samples, first as u64, 1.0 / (of * seq) as f32)
}

/// `tolerance` relative: of losses and norms, and of each weight's gradient.
pub fn close(ours: &Past, serial: &Past, tolerance: (f64, f64), what: &[&str]) {
    for (step, (a, b)) in ours.outcomes.iter().zip(&serial.outcomes).enumerate() {
        let off = |a: f64, b: f64| {
            if a.is_finite() || b.is_finite() { (a - b).abs() / b } else { 0.0 }
        };
        let (loss, norm) = (off(a.loss, b.loss), off(a.grad_norm, b.grad_norm));
        let place = format!("step {step} of {what:?}: {a:?}, one rank {b:?}");
        let z = if a.z_loss == b.z_loss { 0.0 } else { off(a.z_loss, b.z_loss) };
        assert!(z <= tolerance.0, "{place}: second loss off by {z:.1e}");
        assert!(loss <= tolerance.0, "{place}: loss off by {loss:.1e}");
        // Rounding in the gradients goes through AdamW's quotient into the next step's weights.
        let grown = if step == 0 { 1.0 } else { 20.0 };
        assert!(norm <= grown * tolerance.0, "{place}: norm off by {norm:.1e}");
    }
    for gradient in &ours.gradients {
        let off = gradient.off(serial);
        let place = format!("{} of {what:?}", gradient.name);
        assert!(off <= tolerance.1, "gradient of {place} off by {off:.1e}");
    }
    let [first, .., last, _] = &serial.outcomes[..] else { panic!("steps") };
    assert!(last.loss < first.loss, "it learns: {serial:?}");
}

impl Gradient {
    /// ‖ours − theirs‖ / ‖theirs‖ of the whole weight's gradient, in this share of it. Rows that
    /// one rank does not have only pad the vocabulary.
    fn off(&self, serial: &Past) -> f64 {
        let theirs = serial
            .gradients
            .iter()
            .find(|other| other.name == self.name)
            .unwrap();
        let rows = theirs.values.len() / theirs.cols;
        let mut difference = 0.0;
        for (i, ours) in self.values.iter().enumerate() {
            let (row, col) = (self.row + i / self.cols, self.col + i % self.cols);
            let theirs = if row < rows { theirs.values[row * theirs.cols + col] } else { 0.0 };
            difference += (*ours as f64 - theirs as f64).powi(2);
        }
        let norm: f64 = theirs.values.iter().map(|v| (*v as f64).powi(2)).sum();
        (difference / norm).sqrt()
    }
}
