//! Ops of a step, each timed within the engine's own steps: a model of the manifest's shapes with one
//! or two layers on one rank. The plan takes an op's seconds from here instead of from its FLOPs and
//! bytes.

use super::bench_rank::BenchRank;
use anyhow::Result;
use base::Bytes;
use device::cpu::Cpu;
use device::{Backend, OpTimes};
use engine::{Engine, Groups};
use estimate::gptrain::dry_run;
use estimate::measured::{Op, Product, RankSpeeds};
use manifest::{Batch, Manifest, Model, Offload, Topology, Train};
use model::Inputs;
use plan::robust::median;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Layers of the measured model: enough that a block follows another.
const LAYERS: usize = 2;

/// Seconds of all steps, by the speed of the products; and what other ops add to them.
const SECONDS: f64 = 10.0;
const QUICK: f64 = 5.0;
const OTHERS: f64 = 2.0;

/// Steps, fewer where one is long: the first warms up, of the others each op's median counts.
const STEPS: RangeInclusive<usize> = 3..=6;

/// Times the ops of a step on this rank's processor. Empty on a GPU, and if even one sample of one
/// layer takes too long or does not fit into the memory.
pub fn measure(bench: &BenchRank, products: &[Product]) -> Result<Vec<Op>> {
    if bench.device.gpu().is_some() {
        return Ok(Vec::new());
    }
    let limit = bench.allow(SECONDS, QUICK);
    let room = bench
        .backend()
        .shared_memory()
        .map(|free| free.0 / 2 / bench.per_node() as u64);
    let rate = RankSpeeds::tflops(products) * 1e12;
    let steps = |m: Manifest| {
        let (memory, work) = dry_run::count_stage(&m, 0);
        let flops: f64 = work.micro.ops.values().map(|work| work.flops).sum();
        let steps = ((limit * rate / (OTHERS * flops)) as usize).min(*STEPS.end());
        let fits = STEPS.contains(&steps) && memory.total() <= Bytes(room.unwrap_or(u64::MAX));
        fits.then_some((m, steps))
    };
    let found = shrink_model(bench.m).into_iter().find_map(steps);
    // Ranks of a node share its processors: all of them compute, or none.
    let all = bench.rank.all_gather(&found.is_some())?;
    match found.filter(|_| all.iter().all(|found| *found)) {
        Some((m, steps)) => bench.rank.agree(ops(&m, steps)),
        None => Ok(Vec::new()),
    }
}

/// The manifest's model with few layers on one rank, then with fewer samples.
fn shrink_model(m: &Manifest) -> Vec<Manifest> {
    let sized = |layers: usize, micro: usize| {
        let model = Model { layers, ..m.model.clone() };
        let batch = Batch::constant(micro, micro);
        let topology = Topology { offload: Offload::NONE, ..m.topology.single_rank() };
        let train = Train { device_memory: None, ..m.train.clone() };
        Manifest { model, batch, topology, train, ..m.clone() }
    };
    let layers = m.model.layers.min(LAYERS);
    let halves = std::iter::successors(Some(m.batch.micro), |micro| Some(micro / 2));
    let mut all: Vec<Manifest> = halves
        .take_while(|micro| *micro > 0)
        .map(|micro| sized(layers, micro))
        .collect();
    all.push(sized(1, 1));
    all
}

/// Ops of one step, by what the dry engine counts and the real one takes in so many steps.
fn ops(m: &Manifest, steps: usize) -> Result<Vec<Op>> {
    // Its own memory, which ends with it.
    let cpu = Cpu::open(m.train.threads)?;
    let engine = Engine::new(&cpu, Groups::solo(), m, true)?;
    engine.init();
    let tokens = m.batch.micro * m.model.seq_len;
    let mut seen: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for step in 0..steps {
        cpu.time_ops();
        engine.step(
            &mut |inputs| {
                fill(&cpu, inputs, tokens, m.model.vocab);
                Ok(())
            },
            1,
            0.0,
        )?;
        for (name, seconds) in by_name(cpu.take_times()).into_iter().filter(|_| step > 0) {
            seen.entry(name).or_default().push(seconds);
        }
    }
    let work = dry_run::count_stage(m, 0).1;
    let mut counted = work.micro.ops;
    work.step
        .ops
        .into_iter()
        .for_each(|(name, more)| *counted.entry(name).or_default() += more);
    Ok(counted
        .into_iter()
        .filter_map(|(name, work)| {
            let seconds = median(seen.get(name)?.iter().copied());
            let calls = work.calls;
            let flops = work.flops;
            let bytes = work.bytes;
            Some(Op { name: name.to_string(), calls, flops, bytes, seconds })
        })
        .collect())
}

/// Seconds of each op of a step.
fn by_name(OpTimes { passes: mut all, once, .. }: OpTimes) -> BTreeMap<&'static str, f64> {
    once.into_iter()
        .for_each(|(name, more)| *all.entry(name).or_default() += more);
    all
}

/// Fills a micro-batch with different tokens, each of which counts in the loss.
fn fill(be: &dyn Backend, inputs: &Inputs, tokens: usize, vocab: usize) {
    let id = |i: usize| ((i.wrapping_mul(0x9e37_79b9) >> 8) % vocab) as i32;
    let bytes = |value: &dyn Fn(usize) -> [u8; 4]| (0..tokens).flat_map(value).collect::<Vec<u8>>();
    be.upload(&bytes(&|i| id(i).to_le_bytes()), inputs.tokens);
    be.upload(&bytes(&|i| id(i + 1).to_le_bytes()), inputs.targets);
    be.upload(&bytes(&|_| (1.0 / tokens as f32).to_le_bytes()), inputs.weights);
    let position = |i: usize| (i % inputs.seq) as i32;
    be.upload(&bytes(&|i| position(i).to_le_bytes()), inputs.positions);
    be.upload(&0i64.to_le_bytes(), inputs.first_sample);
}
