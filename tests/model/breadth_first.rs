//! Breadth-first pipelines: every micro-batch passes a chunk before the next chunk begins. With them ZeRO 3
//! works in a pipeline, and ZeRO 2 and 3 sum gradients once for several micro-batches. All equal one rank.

use crate::common;
use crate::grids::{
    ADAFACTOR, CAPPED, GLOBAL, LLAMAS, MUON, UNCLIPPED, check, check_families, check_overflows,
    close, serial, train,
};
use crate::order::dry_groups;
use gptrain::device::Dry;
use gptrain::engine::Engine;
use gptrain::model::Module;
use std::rc::Rc;

const ORDER: [&str; 2] = ["topology.pipeline=2", "topology.schedule=breadth_first"];
const ZERO_3: [&str; 6] = [
    "model.layers=6",
    "topology.pipeline=2",
    "topology.schedule=breadth_first",
    "topology.chunks=3",
    "topology.data=2",
    "topology.zero=3",
];

/// Settings, of which later ones count.
fn with(sets: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
    [sets, more].concat()
}

macro_rules! grid {
    ($name:ident: $base:ident, $($set:literal),*) => {
        #[test]
        fn $name() {
            check(&with(&$base, &[$($set),*]), &GLOBAL);
        }
    };
}

grid!(two_stages: ORDER,);
grid!(four_stages: ORDER, "model.layers=8", "topology.pipeline=4", "model.tied_head=false");
grid!(fewer_micro_batches_than_stages: ORDER, "model.layers=8", "topology.pipeline=4",
    "topology.data=2", "topology.recompute=selective");
grid!(without_layers: ORDER, "model.layers=6", "topology.layer_split=[0, 3, 3, 0]");
grid!(without_layers_untied: ORDER, "model.layers=2", "model.tied_head=false",
    "topology.layer_split=transformer_and_embedding", "topology.recompute=full");
grid!(uneven: ORDER, "model.layers=6", "topology.layer_split=[1, 2, 2, 1]");
grid!(tensor: ORDER, "topology.tensor=2");
// Five ranks do not divide what a stage sends.
grid!(tensor_5: ORDER, "topology.tensor=5", "model.heads=5", "model.head_dim=8",
    "model.ffn_hidden=40");
grid!(sequence: ORDER, "topology.tensor=2", "topology.sequence_parallel=true",
    "topology.recompute=full");
grid!(zero_1: ORDER, "topology.data=2", "topology.zero=1");
grid!(zero_2: ORDER, "topology.data=2", "topology.zero=2");
grid!(zero_2_every_2: ORDER, "topology.data=2", "topology.zero=2", "topology.zero_every=2");
grid!(zero_2_every_3: ORDER, "topology.data=2", "topology.zero=2", "topology.zero_every=3",
    "model.layers=8", "topology.recompute=full");
grid!(zero_2_once: ORDER, "topology.data=2", "topology.zero=2", "topology.zero_every=1000",
    "topology.chunks=3", "model.layers=8", "topology.layer_split=[1, 2, 1, 1, 2, 1]",
    "topology.tensor=2");
grid!(zero_3: ZERO_3,);
grid!(zero_3_untied: ZERO_3, "model.tied_head=false", "topology.recompute=selective");
grid!(zero_3_of_wide_chunks: ZERO_3, "model.layers=12", "topology.zero_every=2");
grid!(zero_3_uneven: ZERO_3, "model.layers=11", "topology.layer_split=[3, 1, 1, 2, 1, 3]",
    "topology.zero_every=1000");
grid!(zero_3_by_4: ZERO_3, "topology.data=4", "topology.recompute=full");
grid!(zero_3_of_4_stages: ZERO_3, "model.layers=12", "topology.pipeline=4");
grid!(zero_3_without_layers: ZERO_3, "topology.layer_split=[0, 2, 2, 1, 1, 0]");
grid!(zero_3_tensor: ZERO_3, "topology.tensor=2", "topology.zero_every=2");
grid!(zero_3_sequence: ZERO_3, "topology.tensor=2", "topology.sequence_parallel=true",
    "topology.neighbours=pipeline");
grid!(zero_3_shard: ZERO_3, "topology.data=4", "topology.shard=2", "topology.zero_every=2");
grid!(zero_3_equal_states: ZERO_3, "topology.data=4", "topology.shard=2", "topology.states=shard",
    "topology.zero_every=2");
grid!(zero_2_equal_states: ORDER, "topology.data=4", "topology.zero=2", "topology.shard=2",
    "topology.states=shard");

/// The batch grows and shrinks: 1 to 8 micro-batches of each replica.
#[test]
fn batches_of_any_size() {
    check(&ORDER, &[4, 12, 8, 16, 2, 16]);
    check(&with(&ZERO_3, &["topology.zero_every=2"]), &[4, 12, 8, 16, 4, 16]);
}

#[test]
fn models() {
    for grid in [with(&ZERO_3, &["topology.zero_every=2"]), ORDER.to_vec()] {
        check_families(&grid, &GLOBAL, &LLAMAS);
        check_families(&grid, &GLOBAL, &CAPPED);
    }
}

#[test]
fn optimizers() {
    let layers = ["model.layers=6"];
    let eighth = ["optimizer.adam8bit={clip: 0.3, block: 16}"];
    for rule in ADAFACTOR.into_iter().chain(MUON).chain([&eighth[..]]) {
        let one = serial(&[rule, &layers].concat(), &GLOBAL);
        for every in ["topology.zero_every=1", "topology.zero_every=2"] {
            let sets = [&ZERO_3[..], rule, &[every]].concat();
            let tolerance = if rule == eighth { 1e-5 } else { 1e-6 };
            close(&train(&sets, &GLOBAL), &one, (tolerance, tolerance), &sets);
        }
    }
}

/// Steps that overflow are skipped as by one rank.
#[test]
fn overflows() {
    let small = ["topology.pipeline=2", "topology.schedule=breadth_first", "topology.data=2"];
    check_overflows(&with(&small, &["topology.zero=2", "topology.zero_every=2"]));
    check_overflows(&ZERO_3);
}

/// Weights in place of shards, and another order of passes, change no bit of the losses.
#[test]
fn neither_schedule_nor_shards_change_a_bit() {
    for precision in ["precision=f32", "precision=bf16"] {
        let losses = |sets: &[&str]| -> Vec<u64> {
            let base = [UNCLIPPED, &["model.layers=6", "topology.data=2"], &[precision]].concat();
            let past = train(&[&base[..], sets].concat(), &GLOBAL);
            past.outcomes
                .iter()
                .map(|outcome| outcome.loss.to_bits())
                .collect()
        };
        let alone = losses(&["topology.zero=2"]);
        assert!(losses(&ZERO_3) == alone, "{precision}: ZeRO 3");
        assert!(losses(&with(&ZERO_3, &["topology.zero=2"])) == alone, "{precision}: ZeRO 2");
        let once = losses(&["topology.zero=1"]);
        // Eight micro-batches at most: all of them in one sum, as at ZeRO 1.
        let every = "topology.zero_every=8";
        assert!(losses(&with(&ZERO_3, &[every])) == once, "{precision}: {every}");
    }
}

/// States, weights and gradients on the host change no bit.
#[test]
fn offload() {
    for sets in [
        with(&ZERO_3, &["precision=bf16"]),
        with(&ZERO_3, &["topology.zero_every=2", "model.layers=12"]),
        with(&ORDER, &["topology.data=2", "topology.zero=2", "topology.zero_every=3"]),
        with(&ORDER, &["topology.data=2", "topology.zero=1"]),
    ] {
        let on_device = train(&sets, &GLOBAL);
        for what in ["optimizer", "full", "{what: full, gradients: host}"] {
            let offload = format!("topology.offload={what}");
            let on_host = train(&[&sets[..], &[&offload]].concat(), &GLOBAL);
            assert!(on_host == on_device, "{sets:?}, offload {what}");
        }
    }
}

/// Two chunks of weights are whole at a time, and with sums of several micro-batches the gradients of one.
#[test]
fn memory_is_by_formula() {
    // Bytes of weights and gradients of the first stage, and those of a block in f32.
    let bytes = |sets: &[&'static str]| -> [u64; 3] {
        let m = common::manifest(&with(&ZERO_3, &[&["model.layers=24"], sets].concat()));
        let groups = dry_groups(&m, 0, &Rc::default());
        let (plan, layout) = Engine::plan(&Dry::default(), &groups, &m, true);
        let block = layout.buckets.iter().find(|b| b.module == Module::Block);
        let row = |name: &str| {
            let row = plan.rows.iter().find(|(row, _)| *row == name);
            row.expect("a row of the plan").1.0
        };
        let block = 4 * block.expect("a block").range.len() as u64;
        [row("weights"), row("gradients"), block]
    };
    let [weights, gradients, block] = bytes(&[]);
    for (chunks, blocks) in [("topology.chunks=4", 3), ("topology.chunks=6", 2)] {
        let [fewer, same, _] = bytes(&[chunks]);
        assert_eq!(weights - fewer, 2 * (4 - blocks) * block, "{chunks}");
        assert_eq!(same, gradients, "{chunks}");
    }
    let [same, more, _] = bytes(&["topology.zero_every=2"]);
    assert_eq!((same, more - gradients), (weights, (4 - 2) * block));
    // Eight of the twelve blocks have windows, beside the shards of all: with two replicas that saves nothing.
    let [whole, ..] = bytes(&["topology.zero=2"]);
    let [sixth, ..] = bytes(&["topology.chunks=12"]);
    assert!(weights > whole && sixth < whole, "{weights}, {sixth}, {whole}");
}
