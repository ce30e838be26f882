//! Bytes that a rank sends in a step: those counted among groups of threads, and those of the
//! planner's dry run, equal the formulas of the literature.

mod formulas;
mod volume;

use crate::common::grids::{GRIDS, MANIFEST};
use crate::order::dry_groups;
use formulas::Volume;
use gptrain::base::div_exact;
use gptrain::comm::{
    BACKWARD_MESSAGES, FORWARD_MESSAGES, GRAD_SUM, SHARD, SHARD_COPIES, Traffic, World, threads,
};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups};
use gptrain::estimate::gptrain::dry_run::stages;
use gptrain::manifest::{self, Manifest};
use gptrain::model::Inputs;
use std::collections::BTreeMap;
use std::rc::Rc;
use volume::volume;

/// Counts the bytes that every rank sends in one step and compares them with the formulas. Totals
/// must agree to the byte. Each rank must agree too, except for sums of single numbers and tensors
/// that ranks cannot divide evenly.
fn check(sets: &[&str]) {
    let text = "
model: {layers: 4, hidden: 16, heads: 4, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 2, global: 16}
lr: {peak: 1e-3}
train: {samples: 800}
";
    let m = manifest::for_test(text, sets);
    let ranks: Vec<(Traffic, Volume)> = std::thread::scope(|scope| {
        let run = |world: World| scope.spawn(|| count(world, &m));
        let ranks: Vec<_> = threads::world(m.topology.ranks())
            .into_iter()
            .map(run)
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .collect()
    });
    let spare = if m.model.hidden.is_multiple_of(m.topology.tensor) { 64.0 } else { 256.0 };
    for (groups, of) in GROUPS {
        let sent = |traffic: &Traffic| -> u64 {
            let kept = traffic
                .iter()
                .filter(|((name, _), _)| groups.contains(&&**name));
            kept.map(|(_, bytes)| bytes).sum()
        };
        let counted: u64 = ranks.iter().map(|(traffic, _)| sent(traffic)).sum();
        let expected: f64 = ranks.iter().map(|(_, volume)| of(volume)).sum();
        let what = format!("groups {groups:?} of {sets:?}: {counted} sent, not {expected}");
        assert!((counted as f64 - expected).abs() < 0.5, "{what}");
        for (rank, (traffic, volume)) in ranks.iter().enumerate() {
            let off = (sent(traffic) as f64 - of(volume)).abs();
            assert!(off <= spare, "rank {rank} is off by {off}: {what}");
        }
    }
}

/// Names of groups, and their part of a volume.
type Part = (&'static [&'static str], fn(&Volume) -> f64);

const GROUPS: [Part; 7] = [
    (&["tensor"], |volume| volume.tensor),
    (&["tp_async"], |volume| volume.tp_async),
    (&["pipeline", FORWARD_MESSAGES, BACKWARD_MESSAGES], |volume| volume.pipeline),
    (&[GRAD_SUM], |volume| volume.data),
    (&[SHARD], |volume| volume.shard),
    (&[SHARD_COPIES], |volume| volume.copies),
    (&["embedding"], |volume| volume.embedding),
];

/// Traffic of a rank's second step, and the volume of the formulas.
fn count(world: World, m: &Manifest) -> (Traffic, Volume) {
    let cpu = Cpu::new(Some(1));
    let groups = Groups::new(&world, &m.topology);
    let volume = volume(&groups, m, m.batch.global);
    let engine = Engine::new(&cpu, groups, m, true).unwrap();
    engine.init();
    let mut load = |inputs: &Inputs| {
        inputs.upload(&cpu, &batch(m));
        Ok(())
    };
    let micros = div_exact(m.batch.global, m.batch.micro * m.topology.data);
    let mut totals = Vec::new();
    for _ in 1..3 {
        engine.step(&mut load, micros, 1e-3).unwrap();
        engine.store().wait_gathers();
        totals.push(world.traffic());
    }
    let before: BTreeMap<_, _> = totals.remove(0);
    let step = totals.remove(0).into_iter().map(|(key, bytes)| {
        let start = before.get(&key).copied().unwrap_or(0);
        (key, bytes - start)
    });
    (step.collect(), volume)
}

fn batch(m: &Manifest) -> Batch {
    let (samples, seq) = (m.batch.micro, m.model.seq_len);
    let tokens: Vec<i32> = (0..(samples * (seq + 1)) as i32).collect();
    Batch::causal(&tokens, samples, 0, 1e-2)
}

#[test]
fn tensor_parallel_traffic_is_the_textbooks() {
    for recompute in ["none", "selective", "full"] {
        let recompute = format!("topology.recompute={recompute}");
        for sets in [
            &["topology.tensor=2"][..],
            &["topology.tensor=4", "precision=bf16"],
            &["topology.tensor=2", "topology.sequence_parallel=true", "precision=bf16"],
            &["topology.tensor=4", "topology.sequence_parallel=true"],
        ] {
            check(&[sets, &[recompute.as_str()]].concat());
        }
    }
}

#[test]
fn replicas_traffic_is_the_textbooks() {
    for zero in ["0", "1", "2", "3"] {
        let zero = format!("topology.zero={zero}");
        for sets in [
            &["topology.data=2"][..],
            &["topology.data=4", "precision=bf16"],
            &["topology.data=2", "topology.tensor=2", "topology.sequence_parallel=true"],
            &["topology.data=2", "model.layers=1"],
        ] {
            check(&[sets, &[zero.as_str()]].concat());
        }
    }
}

/// The copies send 1 / shard of the bytes, once per step.
#[test]
fn traffic_at_two_levels_is_by_formula() {
    for zero in ["0", "1", "2", "3"] {
        let zero = format!("topology.zero={zero}");
        for sets in [
            &["topology.data=4", "topology.shard=2"][..],
            &["topology.data=8", "topology.shard=4", "precision=bf16"],
            &["topology.data=8", "topology.shard=2", "optimizer=adafactor"],
            &["topology.data=4", "topology.shard=2", "topology.tensor=2"],
        ] {
            check(&[sets, &[zero.as_str()]].concat());
        }
    }
    let piped = ["topology.data=4", "topology.shard=2", "topology.pipeline=2"];
    check(&piped);
    check(&[&piped[..], &["topology.zero=2", "model.tied_head=false"]].concat());
    for zero in ["1", "2", "3"] {
        let zero = format!("topology.zero={zero}");
        for sets in [
            &["topology.data=4", "topology.shard=2", "optimizer=adafactor"][..],
            &["topology.data=8", "topology.shard=2", "precision=bf16"],
        ] {
            check(&[sets, &[&zero, "topology.states=shard"]].concat());
        }
    }
}

/// Maxima of quantized operands that ranks share.
#[test]
fn maxima_of_8_bit_floats() {
    for recompute in ["none", "selective", "full"] {
        let recompute = format!("topology.recompute={recompute}");
        let sets = ["precision=fp8", "model.hidden=32", "topology.tensor=2", &recompute];
        check(&sets);
        // With one micro-batch per step no codes are kept.
        check(&[&sets[..], &["batch.global=2"]].concat());
    }
}

#[test]
fn a_pipelines_traffic_is_the_textbooks() {
    let interleaved = "topology.schedule=interleaved";
    check(&["topology.pipeline=4"]);
    check(&["topology.pipeline=2", "topology.schedule=gpipe", "precision=bf16"]);
    check(&["topology.pipeline=2", interleaved]);
    check(&["topology.pipeline=2", interleaved, "topology.tensor=2", "model.tied_head=false"]);
    check(&["topology.pipeline=2", "topology.tensor=2", "topology.sequence_parallel=true"]);
    check(&["topology.pipeline=2", "topology.data=2", "topology.tensor=2", "topology.zero=1"]);
    check(&["topology.pipeline=2", "topology.tensor=4", "precision=bf16"]);
    let scattered = ["topology.pipeline=2", "topology.data=2", "topology.zero=2"];
    check(&scattered);
    check(&[&scattered[..], &["topology.schedule=gpipe", "precision=bf16"]].concat());
    check(&[&scattered[..], &[interleaved, "topology.tensor=2", "model.tied_head=false"]].concat());
    let sequence = ["topology.tensor=2", "topology.sequence_parallel=true"];
    check(&[&scattered[..], &sequence].concat());
    // Three ranks do not divide 2 × 8 tokens of 16.
    let by_three = ["model.heads=3", "model.head_dim=4", "model.ffn_hidden=48"];
    check(&[&by_three[..], &["topology.pipeline=2", "topology.tensor=3"]].concat());
}

/// Breadth first, a step gathers each block once and those of the chunks that are no longer whole twice,
/// and sums gradients once for `zero_every` micro-batches: 4 here, of which the last sum may have fewer.
#[test]
fn breadth_first_traffic_is_by_formula() {
    let first = ["topology.pipeline=2", "topology.schedule=breadth_first", "model.layers=8"];
    check(&first);
    check(&[&first[..], &["topology.tensor=2", "model.tied_head=false"]].concat());
    let data = [&first[..], &["topology.data=2", "topology.chunks=4"]].concat();
    for zero in ["1", "2", "3"] {
        let zero = format!("topology.zero={zero}");
        check(&[&data[..], &[&zero]].concat());
        check(&[&data[..], &[&zero, "batch.global=4", "precision=bf16"]].concat());
    }
    for zero in ["2", "3"] {
        for every in ["2", "3", "4", "100"] {
            let sets = [format!("topology.zero={zero}"), format!("topology.zero_every={every}")];
            let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
            check(&[&data[..], &sets].concat());
            check(&[&data[..], &["topology.tensor=2"], &sets].concat());
            let shard = ["topology.data=4", "topology.shard=2", "batch.global=32"];
            check(&[&data[..], &shard, &sets].concat());
        }
    }
    let uneven = "topology.layer_split=[3, 1, 1, 2, 1, 1, 2, 1]";
    let wide = ["topology.zero=3", "model.layers=12", uneven];
    check(&[&data[..], &wide].concat());
}

#[test]
fn compressed_traffic_is_that_of_the_factors() {
    let compression = "topology.compression={powersgd: {rank: 1, start_step: 0, min_rate: 1.5}}";
    for sets in [
        &["topology.data=2"][..],
        &["topology.data=4", "topology.zero=1", "precision=bf16"],
        &["topology.data=2", "topology.tensor=2", "topology.sequence_parallel=true"],
        &["topology.data=2", "topology.pipeline=2", "topology.zero=1"],
    ] {
        check(&[sets, &[compression]].concat());
    }
}

#[test]
fn adafactors_sums_are_two_small_rounds() {
    let rules = ["optimizer=adafactor", "optimizer.adafactor.scale_parameter=true"];
    for rule in rules {
        for sets in [
            &["topology.data=2"][..],
            &["topology.data=4", "topology.zero=1", "precision=bf16"],
            &["topology.data=2", "topology.zero=3", "topology.tensor=2"],
            &["topology.tensor=4", "topology.sequence_parallel=true"],
            &["topology.pipeline=2", "topology.tensor=2", "topology.data=2", "topology.zero=1"],
            &["topology.pipeline=2", "model.family=llama", "topology.tensor=2"],
        ] {
            check(&[sets, &[rule]].concat());
        }
    }
}

/// The dry run counts fewer micro-batches than the manifest's batch has.
#[test]
fn bytes_of_the_dry_run_are_those_of_the_formulas() {
    for sets in GRIDS {
        let m = manifest::for_test(MANIFEST, sets);
        let micros = m.batch.global / (m.batch.micro * m.topology.data);
        for (stage, counted) in stages(&m).iter().enumerate() {
            let v = volume(&dry_groups(&m, stage, &Rc::default()), &m, m.batch.global);
            let expected =
                [v.tensor + v.tp_async, v.pipeline, v.data, v.embedding, v.shard, v.copies];
            for (counted, expected) in counted.sends(micros).into_iter().zip(expected) {
                let what = format!("{counted} counted, not {expected}: stage {stage}, {sets:?}");
                assert!((counted - expected).abs() < 0.5, "{what}");
            }
        }
    }
}
