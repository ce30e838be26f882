//! ZeRO 2 in a pipeline: a block's gradients are reduced after every micro-batch, whose reductions share
//! windows with those of other blocks, chunks and micro-batches. Any schedule equals one rank.

use crate::grids::{
    ADAFACTOR, CAPPED, GLOBAL, LLAMAS, MUON, UNCLIPPED, check, check_families, check_overflows,
    close, serial, train,
};

const ZERO_2: [&str; 3] = ["topology.pipeline=2", "topology.data=2", "topology.zero=2"];

/// `ZERO_2` with more settings, of which later ones count.
fn with(sets: &[&'static str]) -> Vec<&'static str> {
    [&ZERO_2, sets].concat()
}

macro_rules! grid {
    ($name:ident: $($set:literal),*) => {
        #[test]
        fn $name() {
            check(&with(&[$($set),*]), &GLOBAL);
        }
    };
}

grid!(one_block_per_window:);
// Three and two blocks: the first and the last of three share a window.
grid!(uneven: "model.layers=5", "topology.layer_split=[3, 2]", "topology.recompute=selective");
grid!(one_micro_batch: "topology.data=4", "topology.recompute=full");
grid!(gpipe_of_4: "topology.pipeline=4", "topology.schedule=gpipe", "model.tied_head=false");
grid!(gpipe_uneven: "model.layers=5", "topology.layer_split=[3, 2]", "topology.schedule=gpipe");
grid!(stages_without_layers: "model.layers=2", "topology.pipeline=4",
    "topology.layer_split=transformer_and_embedding");
grid!(interleaved: "topology.schedule=interleaved");
grid!(interleaved_by_3: "model.layers=8", "topology.schedule=interleaved", "topology.chunks=3",
    "topology.layer_split=[1, 2, 1, 1, 2, 1]", "topology.overlap_p2p=true",
    "model.tied_head=false");
grid!(sequence: "topology.tensor=2", "topology.sequence_parallel=true");
grid!(tensor_interleaved: "topology.tensor=2", "topology.schedule=interleaved",
    "topology.neighbours=pipeline", "topology.recompute=full");

/// The batch grows and shrinks: 1 to 4 micro-batches of each replica.
#[test]
fn batches_of_any_size() {
    check(&ZERO_2, &[4, 12, 8, 16, 4, 16]);
    check(&with(&["topology.schedule=interleaved"]), &[8, 16, 8, 16, 16]);
}

#[test]
fn models() {
    check_families(&ZERO_2, &GLOBAL, &LLAMAS);
    check_families(&with(&["topology.schedule=interleaved"]), &GLOBAL, &LLAMAS[..1]);
    check_families(&ZERO_2, &GLOBAL, &CAPPED);
}

#[test]
fn optimizers() {
    let interleaved = with(&["topology.schedule=interleaved"]);
    for rule in ADAFACTOR.into_iter().chain(MUON) {
        let one = serial(rule, &GLOBAL);
        for grid in [&ZERO_2[..], &interleaved[..]] {
            close(&train(&[rule, grid].concat(), &GLOBAL), &one, (1e-6, 1e-6), rule);
        }
    }
}

/// Steps that overflow are skipped as by one rank.
#[test]
fn overflows() {
    check_overflows(&ZERO_2);
    check_overflows(&with(&["topology.schedule=interleaved", "optimizer=adafactor"]));
}

/// A stage adds a block's shards in the order of micro-batches, as without a pipeline.
#[test]
fn stages_change_no_bit() {
    for precision in ["precision=f32", "precision=bf16"] {
        let losses = |pipeline: &[&str]| -> Vec<u64> {
            let shards = [precision, "topology.data=2", "topology.zero=2"];
            let past = train(&[UNCLIPPED, &shards, pipeline].concat(), &GLOBAL);
            past.outcomes
                .iter()
                .map(|outcome| outcome.loss.to_bits())
                .collect()
        };
        let alone = losses(&[]);
        let pipelines: [&[&str]; 3] = [
            &["topology.pipeline=2"],
            &["topology.pipeline=4", "topology.schedule=gpipe"],
            &["topology.pipeline=2", "topology.schedule=interleaved"],
        ];
        for pipeline in pipelines {
            assert!(losses(pipeline) == alone, "{precision} {pipeline:?}");
        }
    }
}
