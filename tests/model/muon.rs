//! Muon: its steps are those of a reference in float64 and of PyTorch's, it skips in fp16, the device
//! changes nothing, and the planner counts what it does.

use crate::common;
use crate::grids::read_grad;
use crate::grids_cuda::{How, outcomes, train as train_on};
use crate::pytorch::follow;
use gptrain::base::DType;
use gptrain::comm::{GRAD_SUM, Op, World, threads};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups};
use gptrain::estimate::gptrain::dry_run;
use gptrain::manifest::{Manifest, Model};
use gptrain::model::{Inputs, Param};
use std::collections::BTreeMap;

/// The reference is Newton–Schulz of numpy in float64.
#[test]
fn steps_follow_newton_schulz_in_float64() {
    let within = [1e-5, 1e-4, 1e-4];
    follow("muon", "muon", &["optimizer.muon={clip: 0}", "lr.peak=2e-3"], 1, within);
    let original = "optimizer.muon={scale: original, weight_decay: 0.05, clip: 0.3}";
    follow("muon-original", "muon-original", &[original, "lr.peak=1e-2"], 2, within);
}

/// PyTorch multiplies in bf16, which the singular vectors of small singular values feel.
#[test]
fn steps_follow_pytorch_within_the_error_of_bf16() {
    let sets = ["optimizer.muon={clip: 0}", "lr.peak=2e-3"];
    follow("muon-torch", "muon-torch", &sets, 1, [1e-4, 1e-3, 2e-2]);
}

type Matrix = Vec<Vec<f64>>;

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let of = |row: &Vec<f64>| {
        let mut sums = vec![0.0; b[0].len()];
        for (x, other) in row.iter().zip(b) {
            sums.iter_mut()
                .zip(other)
                .for_each(|(sum, y)| *sum += x * y);
        }
        sums
    };
    a.iter().map(of).collect()
}

fn transposed(x: &Matrix) -> Matrix {
    (0..x[0].len())
        .map(|col| x.iter().map(|row| row[col]).collect())
        .collect()
}

fn newton_schulz(x: &Matrix) -> Matrix {
    if x.len() > x[0].len() {
        return transposed(&newton_schulz(&transposed(x)));
    }
    let norm = x
        .iter()
        .flatten()
        .map(|x| x * x)
        .sum::<f64>()
        .sqrt()
        .max(1e-7);
    let mut x: Matrix = x
        .iter()
        .map(|row| row.iter().map(|x| x / norm).collect())
        .collect();
    for _ in 0..5 {
        let gram = product(&x, &transposed(&x));
        let square = product(&gram, &gram);
        let factor = gram.iter().zip(square).map(|(g, s)| {
            g.iter()
                .zip(s)
                .map(|(g, s)| -4.775 * g + 2.0315 * s)
                .collect::<Vec<f64>>()
        });
        let more = product(&factor.collect(), &x);
        x.iter_mut()
            .flatten()
            .zip(more.iter().flatten())
            .for_each(|(x, m)| *x = 3.4445 * *x + m);
    }
    x
}

/// The matrices that a weight counts as, each by its rows.
fn apart(param: &Param, m: &Model) -> Vec<Vec<usize>> {
    let rows: Vec<usize> = (0..param.rows).collect();
    let heads = m.heads();
    let group = (heads.query / heads.kv + 2) * heads.dim;
    let of = |test: &dyn Fn(usize) -> bool| rows.iter().copied().filter(|r| test(*r)).collect();
    match param.spec.name {
        "attn.qkv.weight" => {
            let (keys, values) = (group - 2 * heads.dim, group - heads.dim);
            let q = of(&|row| row % group < keys);
            let k = of(&|row| (keys..values).contains(&(row % group)));
            vec![q, k, of(&|row| row % group >= values)]
        }
        "mlp.fc1.weight" if m.ffn_rows() > m.ffn_hidden => {
            vec![of(&|row| row % 2 == 0), of(&|row| row % 2 == 1)]
        }
        _ => vec![rows],
    }
}

/// Weight after updates by its gradients, in f64.
#[derive(Default)]
struct Known {
    weight: Vec<f64>,
    mean: Vec<f64>,
    square: Vec<f64>,
}

impl Known {
    fn muon(&mut self, param: &Param, m: &Model, grad: &[f64], lr: f64) {
        self.mean.resize(grad.len(), 0.0);
        self.mean
            .iter_mut()
            .zip(grad)
            .for_each(|(mean, g)| *mean += 0.05 * (g - *mean));
        let ahead: Vec<f64> = self
            .mean
            .iter()
            .zip(grad)
            .map(|(mean, g)| g + 0.95 * (mean - g))
            .collect();
        for rows in apart(param, m) {
            let row = |row: &usize| ahead[row * param.cols..(row + 1) * param.cols].to_vec();
            let step = newton_schulz(&rows.iter().map(row).collect());
            let scale = 0.2 * (rows.len().max(param.cols) as f64).sqrt();
            for (row, step) in rows.iter().zip(step) {
                for (col, step) in step.into_iter().enumerate() {
                    let w = &mut self.weight[row * param.cols + col];
                    *w = *w * (1.0 - lr * 0.1) - lr * scale * step;
                }
            }
        }
    }

    fn adamw(&mut self, param: &Param, grad: &[f64], lr: f64, t: i32) {
        self.mean.resize(grad.len(), 0.0);
        self.square.resize(grad.len(), 0.0);
        let decay = if param.spec.decay { 0.02 } else { 0.0 };
        for (i, g) in grad.iter().enumerate() {
            self.mean[i] = 0.8 * self.mean[i] + 0.2 * g;
            self.square[i] = 0.99 * self.square[i] + 0.01 * g * g;
            let (m, v) = (1.0 - 0.8f64.powi(t), 1.0 - 0.99f64.powi(t));
            let root = (self.square[i] / v).sqrt() + 1e-8;
            self.weight[i] = self.weight[i] * (1.0 - lr * decay) - lr * self.mean[i] / m / root;
        }
    }
}

/// Micro-batches of two samples.
fn batch(first: usize, of: usize) -> Batch {
    let tokens = (first..first + 2).flat_map(|s| common::tokens(1, 24, 128, s as u64));
    Batch::causal(&tokens.collect::<Vec<_>>(), 2, first as u64, 1.0 / (of * 24) as f32)
}

/// 24 steps from each step's own gradients: queries, keys and values apart, gates and values too; all
/// else by AdamW with settings of its own.
#[test]
fn every_weight_moves_as_in_float64() {
    let rest = "optimizer.muon={clip: 0.4, adamw: {lr_scale: 0.5, beta1: 0.8, beta2: 0.99, \
                weight_decay: 0.02}}";
    let families: [&[&str]; 3] = [
        &["model.tied_head=false"],
        &["model.family=llama", "model.kv_heads=2", "model.ffn_hidden=40"],
        &["model.family=qwen3", "model.kv_heads=2", "model.head_dim=12", "model.ffn_hidden=24"],
    ];
    for family in families {
        let m = common::manifest(&[&[rest, "batch.micro=2"], family].concat());
        let cpu = Cpu::new(Some(1));
        let engine = Engine::new(&cpu, Groups::solo(), &m, true).unwrap();
        engine.init();
        let begun: BTreeMap<String, Vec<f32>> = common::weights(&engine).into_iter().collect();
        let params: Vec<Param> = engine.params().cloned().collect();
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        let new = |param: &Param| Known { weight: wide(&begun[&param.name]), ..Known::default() };
        let mut known: Vec<Known> = params.iter().map(new).collect();
        for t in 1..=24 {
            let mut next = 8 * t as usize;
            let load = &mut |inputs: &Inputs| {
                inputs.upload(&cpu, &batch(next, 8));
                next += 2;
                Ok(())
            };
            let lr = 2e-3 / f64::from(t).sqrt();
            let norm = engine.step(load, 4, lr).unwrap().grad_norm;
            let (lr, factor) = (f64::from(lr as f32), (0.4 / (norm + 1e-6)).min(1.0));
            for (param, known) in params.iter().zip(&mut known) {
                let grad = read_grad(&engine, param);
                let grad: Vec<f64> = grad.iter().map(|g| f64::from(*g) * factor).collect();
                if param.spec.is_block_matrix() {
                    known.muon(param, &m.model, &grad, lr);
                } else {
                    known.adamw(param, &grad, 0.5 * lr, t);
                }
            }
        }
        let ended: BTreeMap<String, Vec<f32>> = common::weights(&engine).into_iter().collect();
        for (param, known) in params.iter().zip(&known) {
            let (begun, ended) = (&begun[&param.name], wide(&ended[&param.name]));
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let all = || ended.iter().zip(&known.weight).zip(begun);
            let off = norm(&mut all().map(|((a, b), _)| a - b));
            let moved = norm(&mut all().map(|((_, b), begun)| b - f64::from(*begun)));
            println!("{family:?} {}: {:.1e} of the way", param.name, off / moved);
            // The key bias's gradient is rounding alone.
            assert!(off <= 1e-4 * moved || param.name.ends_with("qkv.bias"), "{}", param.name);
        }
    }
}

/// Momentum and weights stay as they were; products in f32 where fp16 is asked for.
#[test]
fn a_step_that_overflows_leaves_every_state() {
    let fp16 = ["optimizer=muon", "precision=fp16", "batch.micro=2"];
    let scale = ["loss_scale={initial: 1e8, window: 3, hysteresis: 1}"];
    let m = common::manifest(&[&fp16[..], &scale].concat());
    let cpu = Cpu::new(Some(1));
    let engine = Engine::new(&cpu, Groups::solo(), &m, true).unwrap();
    engine.init();
    let (mut before, mut skipped, mut updated) = (common::states(&engine), 0, 0);
    assert!(before.iter().any(|((_, state), _)| *state == "momentum"));
    for step in 0..20 {
        let mut next = 8 * step;
        let load = &mut |inputs: &Inputs| {
            inputs.upload(&cpu, &batch(next, 8));
            next += 2;
            Ok(())
        };
        let outcome = engine.step(load, 4, 1e-3).unwrap();
        let now = common::states(&engine);
        assert_eq!(before == now, outcome.skipped, "{outcome:?}");
        *if outcome.skipped { &mut skipped } else { &mut updated } += 1;
        before = now;
    }
    assert!(skipped > 2 && updated > 5, "{skipped} skipped, {updated} not");
}

/// One GPU, and eight: the steps of one CPU, and twice the same bits.
#[test]
fn gpus_make_the_steps_of_cpus() {
    let model = ["model.family=llama", "model.kv_heads=2", "batch.micro=2", "optimizer=muon"];
    let all_three = "topology={tensor: 2, pipeline: 2, data: 2, zero: 1}";
    for (precision, tolerance) in [("precision=f32", 1e-5), ("precision=bf16", 4e-3)] {
        let manifest = |more: &[&str]| common::manifest(&[&model[..], &[precision], more].concat());
        let cpu = Cpu::new(Some(1));
        let one = train_on(&cpu, Groups::solo(), &manifest(&[]), 2, |_| ());
        for topology in [&["topology.data=1"], &[all_three]] {
            let m = manifest(topology);
            let ours = outcomes(&m, How::Nccl);
            for (a, b) in ours.iter().zip(&one) {
                let off = |a: f64, b: f64| (a - b).abs() / b;
                assert!(off(a.loss, b.loss) <= tolerance, "{a:?}, one CPU {b:?}");
                assert!(off(a.grad_norm, b.grad_norm) <= 10.0 * tolerance, "{a:?}, {b:?}");
            }
            if topology[0] == all_three {
                assert_eq!(ours, outcomes(&m, How::Nccl), "the same grid twice");
            }
        }
    }
}

fn step(world: &World, m: &Manifest) {
    let (cpu, groups) = (Cpu::new(Some(1)), Groups::new(world, &m.topology));
    let engine = Engine::new(&cpu, groups, m, true).unwrap();
    engine.init();
    let load = &mut |inputs: &Inputs| {
        inputs.upload(&cpu, &batch(0, 8));
        Ok(())
    };
    engine
        .step(load, m.batch.global / m.batch.micro / m.topology.data, 1e-3)
        .unwrap();
    engine.store().wait_gathers();
}

/// Bytes that a rank sends between replicas and among tensor-parallel ranks for Muon alone: each
/// number of a direction to the owner, and of a step from there, or to the other replicas.
fn sent(m: &Manifest) -> [f64; 2] {
    let numel = |p: &&gptrain::model::ParamSpec| (m.model.layers * p.rows * p.cols) as f64;
    let table = gptrain::model::table(&m.model);
    let all: f64 = table
        .iter()
        .filter(|p| p.is_block_matrix())
        .map(|p| numel(&p))
        .sum();
    let size = if m.precision == gptrain::manifest::Precision::Bf16 { 2.0 } else { 4.0 };
    let (tensor, data) = (m.topology.tensor as f64, m.topology.data as f64);
    let shares = 2.0 * size * all * (tensor - 1.0) / tensor;
    [size * all * (data - 1.0), shares]
}

/// The planner's messages are those of the first rank, and all ranks' are what the formula says.
#[test]
fn the_planner_counts_bytes_products_and_states() {
    let small = ["model.layers=3", "batch.micro=2", "optimizer=muon"];
    for sets in [
        &["topology={data: 2}"][..],
        &["topology={data: 4, zero: 1}", "precision=bf16"],
        &["topology={tensor: 2, data: 2, zero: 3}"],
        &["topology={tensor: 4}", "model.tied_head=false"],
    ] {
        let m = common::manifest(&[&small, sets].concat());
        let traffic: Vec<_> = std::thread::scope(|scope| {
            let run = |world: World| {
                let m = &m;
                scope.spawn(move || {
                    step(&world, m);
                    world.traffic()
                })
            };
            let ranks: Vec<_> = threads::world(m.topology.ranks())
                .into_iter()
                .map(run)
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().expect("a rank"))
                .collect()
        });
        let stage = &dry_run::stages(&m)[0];
        let [replicas, shares] = sent(&m);
        for (group, formula) in [(GRAD_SUM, replicas), ("tensor", shares)] {
            let of = |rank: usize| -> f64 {
                let kinds = traffic[rank]
                    .iter()
                    .filter(|((name, op), _)| &**name == group && *op == Op::Send);
                kinds.map(|(_, bytes)| *bytes as f64).sum()
            };
            let counted = stage.work.step.messages.get(&(group, Op::Send));
            assert_eq!(counted.map_or(0.0, |sent| sent.bytes), of(0), "{group}, {sets:?}");
            let all: f64 = (0..traffic.len()).map(of).sum();
            // Under ZeRO an owner's replica has a part already; the rest goes there and back.
            if group == GRAD_SUM && m.topology.zero > 0 {
                assert!(0.0 < all && all <= 2.0 * formula, "{all} of {formula}, {sets:?}");
            } else {
                assert_eq!(all, formula, "{group}, {sets:?}");
            }
        }
    }
    let m = common::manifest(&small);
    let flops = |rows: usize, cols: usize| {
        let (m, n) = (rows.min(cols) as f64, rows.max(cols) as f64);
        5.0 * (4.0 * m * m * n + 2.0 * m * m * m)
    };
    let block = 4.0 * flops(32, 32) + 2.0 * flops(32, 128);
    let planned = |sets: &[&str]| dry_run::stages(&common::manifest(sets))[0].clone();
    let stage = planned(&small);
    assert_eq!(stage.work.step.ops["gemm"].flops, 3.0 * block);
    // Momentum is half of what AdamW keeps of the blocks' matrices.
    let row = |sets: &[&str]| {
        let plan = planned(sets).memory_plan;
        plan.rows
            .iter()
            .find(|row| row.0 == "optimizer")
            .unwrap()
            .1
            .0 as usize
    };
    let less = row(&["model.layers=3", "batch.micro=2"]) - row(&small);
    assert_eq!(less, 3 * 12 * 32 * 32 * DType::F32.size(), "{m:?}");
}
