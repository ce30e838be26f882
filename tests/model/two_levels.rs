//! Replicas at two levels (`topology.shard`): shard groups of neighbours, and copies. Any division equals
//! one rank; one group of all replicas is one level, bit for bit.

use crate::grids::{
    ADAFACTOR, CAPPED, GLOBAL, LLAMAS, MUON, check, check_families, check_overflows, close, serial,
    train,
};

/// Batches that eight replicas can divide.
const WIDE: [usize; 5] = [16, 16, 32, 16, 32];

macro_rules! grid {
    ($name:ident: $($set:literal),*) => {
        #[test]
        fn $name() {
            check(&["topology.data=4", "topology.shard=2", $($set),*], &GLOBAL);
        }
    };
}

grid!(zero_0:);
grid!(zero_1: "topology.zero=1");
grid!(zero_2: "topology.zero=2");
grid!(zero_3: "topology.zero=3", "topology.recompute=full");
grid!(zero_3_of_one_layer: "model.layers=1", "topology.zero=3");
grid!(tensor_zero_0: "topology.tensor=2", "topology.sequence_parallel=true");
grid!(tensor_zero_2: "topology.tensor=2", "topology.zero=2");
grid!(tensor_zero_3: "topology.tensor=2", "topology.zero=3", "topology.sequence_parallel=true");
grid!(pipeline_zero_0: "topology.pipeline=2");
grid!(pipeline_zero_1: "topology.pipeline=2", "topology.zero=1", "topology.neighbours=pipeline");
grid!(pipeline_zero_2: "topology.pipeline=2", "topology.zero=2");
grid!(gpipe_zero_2_untied: "topology.pipeline=2", "topology.zero=2", "topology.schedule=gpipe",
    "model.tied_head=false");

grid!(states_zero_1: "topology.zero=1", "topology.states=shard");
grid!(states_zero_2: "topology.zero=2", "topology.states=shard", "topology.tensor=2");
grid!(states_zero_3: "topology.zero=3", "topology.states=shard", "topology.recompute=full");
grid!(states_tensor_zero_3: "topology.zero=3", "topology.states=shard", "topology.tensor=2",
    "topology.sequence_parallel=true");
grid!(states_pipeline_zero_1: "topology.zero=1", "topology.states=shard", "topology.pipeline=2",
    "topology.neighbours=pipeline");
grid!(states_gpipe_zero_2: "topology.zero=2", "topology.states=shard", "topology.pipeline=2",
    "topology.schedule=gpipe", "model.tied_head=false");

macro_rules! wide {
    ($name:ident: $($set:literal),*) => {
        #[test]
        fn $name() {
            check(&["topology.data=8", "batch.global=32", $($set),*], &WIDE);
        }
    };
}

wide!(four_copies_of_2_zero_1: "topology.shard=2", "topology.zero=1");
wide!(four_copies_of_2_zero_3: "topology.shard=2", "topology.zero=3");
wide!(four_copies_of_2_states_zero_3: "topology.shard=2", "topology.zero=3", "topology.states=shard");
wide!(two_copies_of_4_states_interleaved: "topology.shard=4", "topology.zero=2", "topology.states=shard",
    "topology.pipeline=2", "topology.schedule=interleaved", "batch.micro=1");
wide!(two_copies_of_4_zero_0: "topology.shard=4");
wide!(two_copies_of_4_zero_2: "topology.shard=4", "topology.zero=2");
wide!(two_copies_of_4_interleaved: "topology.shard=4", "topology.zero=2", "topology.pipeline=2",
    "topology.schedule=interleaved", "batch.micro=1");

#[test]
fn models() {
    for zero in ["topology.zero=0", "topology.zero=2", "topology.zero=3"] {
        let grid = ["topology.data=4", "topology.shard=2", zero];
        check_families(&grid, &GLOBAL, &LLAMAS);
        check_families(&grid, &GLOBAL, &CAPPED);
    }
}

#[test]
fn optimizers() {
    let eighth = ["optimizer.adam8bit={clip: 0.3, block: 16}"];
    for rule in ADAFACTOR.into_iter().chain(MUON).chain([&eighth[..]]) {
        let one = serial(rule, &GLOBAL);
        for (zero, states) in
            [("1", "all"), ("2", "all"), ("3", "all"), ("1", "shard"), ("3", "shard")]
        {
            let levels = format!("topology={{data: 4, shard: 2, zero: {zero}, states: {states}}}");
            let grid = [levels.as_str()];
            let tolerance = if rule == eighth { 1e-5 } else { 1e-6 };
            let ours = train(&[rule, &grid].concat(), &GLOBAL);
            close(&ours, &one, (tolerance, tolerance), &[rule, &grid].concat());
        }
    }
}

/// Steps that overflow are skipped as by one rank.
#[test]
fn overflows() {
    for zero in ["topology.zero=0", "topology.zero=3"] {
        check_overflows(&["topology.data=4", "topology.shard=2", zero]);
    }
    let states = ["topology.zero=2", "topology.states=shard"];
    check_overflows(&[&["topology.data=4", "topology.shard=2"][..], &states].concat());
}

/// States on the host change no bit.
#[test]
fn offload() {
    for (zero, states) in
        [(0, "all"), (1, "all"), (2, "all"), (3, "all"), (1, "shard"), (2, "shard"), (3, "shard")]
    {
        let levels = format!("topology={{data: 4, shard: 2, zero: {zero}, states: {states}}}");
        let grid = ["precision=bf16", &levels];
        let on_device = train(&grid, &GLOBAL);
        for what in ["optimizer", "full", "{what: full, gradients: host}"] {
            let offload = format!("topology.offload={what}");
            let on_host = train(&[&grid[..], &[&offload]].concat(), &GLOBAL);
            // Gradients on the host are summed over the copies after each micro-batch.
            if what.contains("host") && zero >= 2 {
                close(&on_host, &on_device, (2e-3, 2e-2), &[what, &levels]);
            } else {
                assert!(on_host == on_device, "{levels}, offload {what}");
            }
        }
    }
}

#[test]
fn a_group_of_all_replicas_is_one_level() {
    for zero in ["topology.zero=0", "topology.zero=1", "topology.zero=2", "topology.zero=3"] {
        let grid = ["topology.data=4", "precision=bf16", zero];
        let one_level = train(&grid, &GLOBAL);
        for shard in ["topology.shard=4", "topology.shard=node"] {
            assert!(train(&[&grid[..], &[shard]].concat(), &GLOBAL) == one_level, "{zero} {shard}");
        }
        if zero != "topology.zero=0" {
            let states = ["topology.shard=4", "topology.states=shard"];
            assert!(train(&[&grid[..], &states].concat(), &GLOBAL) == one_level, "{zero}, states");
        }
    }
}
