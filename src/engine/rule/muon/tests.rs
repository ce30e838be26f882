//! Gradients with equal bits give steps with equal bits on every grid.

use super::*;
use crate::arenas::Arenas;
use crate::groups::{Groups, model_shard};
use crate::params::{self, OffloadPlan};
use crate::rule::optimizer_rule;
use base::rng;
use comm::{World, threads};
use device::Backend;
use device::cpu::Cpu;
use manifest::Manifest;
use model::Layout;
use std::collections::BTreeMap;

/// Bits of weights and momenta, by name and index in the whole model.
type Bits = BTreeMap<(String, &'static str, usize), u32>;

/// Gradient of an element of the whole weight.
fn gradient(name: &str, at: usize, update: usize) -> f32 {
    let mut values = [0.0];
    rng::normals(rng::key(update as u64, name), at as u64, &mut values);
    values[0]
}

/// Bits after two updates on every rank, with gradients independent of the grid.
fn updated(sets: &[&str]) -> Bits {
    let text = "
model: {layers: 2, hidden: 24, heads: 4, kv_heads: 2, vocab: 60, seq_len: 8, family: llama}
data: {train: none}
batch: {micro: 1, global: 12}
lr: {peak: 1e-3}
train: {samples: 1200}
optimizer: muon
";
    let m = manifest::for_test(text, sets);
    let ranks: Vec<Bits> = std::thread::scope(|scope| {
        let ranks: Vec<_> = threads::world(m.topology.ranks())
            .into_iter()
            .map(|world| scope.spawn(|| rank(world, &m)))
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("a rank"))
            .collect()
    });
    let mut all = Bits::new();
    for (place, bits) in ranks.into_iter().flatten() {
        let before = all.insert(place.clone(), bits);
        assert!(before.is_none_or(|before| before == bits), "ranks differ in {place:?}");
    }
    all
}

fn rank(world: World, m: &Manifest) -> Bits {
    let cpu = Cpu::new(Some(1));
    let groups = Groups::new(&world, &m.topology);
    let layout = Layout::new(&m.model, model_shard(&groups, m));
    let rule = optimizer_rule(m);
    let dtype = crate::model_dtype(m.precision);
    let level = params::zero_level(&groups, m);
    let at = Place { groups: &groups, layout: &layout, sharded: level > 0 };
    let lay_out = |arenas: &Arenas| {
        let buckets = params::plan_buckets(
            level,
            groups.levels,
            &layout,
            dtype,
            OffloadPlan::default(),
            params::WindowCounts::by_block(false),
            arenas,
        );
        let (states, _) = params::plan_states(&layout, &buckets, &*rule, false, arenas);
        let scratch = arenas
            .saved
            .matrix(1, rule.scratch(&at, &states), DType::F32);
        let scalars = arenas.inputs.matrix(1, 3, DType::F32);
        (states, scratch, scalars, arenas.inputs.matrix(1, 1, DType::I64))
    };
    let measured = Arenas::measuring();
    lay_out(&measured);
    let (states, scratch, scalars, updates) = lay_out(&measured.reserve(&cpu).unwrap());
    let whole = |states: &ParamStates, element: usize| {
        let [row, col] = layout.tp_offset(&states.param);
        let down = element / states.param.cols;
        let right = element % states.param.cols;
        (row + down) * states.param.spec.cols + col + right
    };
    for update in 1..=2 {
        for states in &states {
            let grads: Vec<f32> = states
                .part
                .clone()
                .map(|element| gradient(&states.param.name, whole(states, element), update))
                .collect();
            cpu.upload(bytemuck::cast_slice(&grads), states.grad);
        }
        cpu.upload(bytemuck::bytes_of(&(update as i64)), updates);
        cpu.upload(bytemuck::bytes_of(&0.5f32), scalars.span(0, 1));
        let lr = 1e-2;
        let masters = None;
        let step = Step { be: &cpu, at, lr, scalars, updates, scratch, masters };
        rule.begin(&step);
        rule.update(&step, &states);
    }
    let mut bits = Bits::new();
    for states in states
        .iter()
        .filter(|states| states.param.spec.is_block_matrix())
    {
        for state in [MASTER, MOMENTUM] {
            let mut values = vec![0u32; states.part.len()];
            cpu.download(states.get(state), bytemuck::cast_slice_mut(&mut values));
            for (element, value) in states.part.clone().zip(values) {
                bits.insert((states.param.name.clone(), state, whole(states, element)), value);
            }
        }
    }
    bits
}

#[test]
fn every_grid_makes_the_steps_of_one_rank_to_the_last_bit() {
    for precision in ["precision=f32", "precision=bf16"] {
        let one = updated(&[precision]);
        assert!(one.values().any(|bits| *bits != 0));
        for topology in [
            "{tensor: 2}",
            "{pipeline: 2}",
            "{data: 2}",
            "{data: 3, zero: 1}",
            "{data: 4, zero: 3}",
            "{tensor: 2, data: 2}",
            "{tensor: 2, data: 3, zero: 2}",
            "{data: 4, zero: 1, shard: 2}",
            "{tensor: 2, data: 4, zero: 3, shard: 2}",
            "{tensor: 2, data: 4, zero: 2, shard: 2, states: shard}",
            "{tensor: 2, pipeline: 2, data: 2, zero: 1}",
        ] {
            let topology = format!("topology={topology}");
            let many = updated(&[precision, &topology]);
            assert!(many == one, "{precision}, {topology}");
        }
    }
}
