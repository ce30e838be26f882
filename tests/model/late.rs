//! Updates that come late (`topology.offload.delay`): θ[i+1] = AdamW(θ[i], g[i−1]), by a second
//! implementation of it; the same among any ranks, and wherever gradients lie.

use crate::common;
use crate::grids::{GLOBAL, Past, train};
use crate::grids_cuda::{How, outcomes};
use gptrain::data::Batch;
use gptrain::device::cpu::Cpu;
use gptrain::engine::{Engine, Groups, MASTER, Outcome};
use gptrain::model::Inputs;

/// Steps before the first late one.
const AFTER: usize = 2;
const STEPS: usize = 6;
const CLIP: f64 = 0.3;

/// Learning rate of a step; each has another one.
fn lr(step: usize) -> f64 {
    1e-3 * (step + 1) as f64
}

fn batches(cpu: &Cpu, step: usize) -> impl FnMut(&Inputs) -> anyhow::Result<()> {
    let (micro, global, seq) = (2, 4, 24);
    let mut next = step * global;
    move |inputs: &Inputs| {
        let of = |s: usize| common::tokens(1, seq, 128, s as u64);
        let tokens: Vec<i32> = (next..next + micro).flat_map(of).collect();
        inputs.upload(cpu, &Batch::causal(&tokens, micro, 0, 1.0 / (global * seq) as f32));
        next += micro;
        Ok(())
    }
}

/// All master weights, by parameter, and all gradients of the last step.
fn numbers(engine: &Engine) -> [Vec<Vec<f32>>; 2] {
    let of_masters =
        |((_, state), values): ((String, &str), Vec<f32>)| (state == MASTER).then_some(values);
    let masters = common::states(engine).into_iter().filter_map(of_masters).collect();
    let gradient = |param: &gptrain::model::Param| {
        let mut values = vec![0.0; param.numel()];
        engine.read_grad(param, &mut values);
        values
    };
    [masters, engine.params().map(gradient).collect()]
}

/// Loss and gradients of a step with given weights, of an engine that has made no update.
fn fresh(sets: &[&str], masters: &[Vec<f32>], step: usize) -> (Outcome, Vec<Vec<f32>>) {
    let cpu = Cpu::new(Some(1));
    let engine = Engine::new(&cpu, Groups::solo(), &common::manifest(sets), true).unwrap();
    engine.init();
    let store = engine.store();
    let slices: Vec<_> = store.slices().into_iter().filter(|s| s.state.name == MASTER).collect();
    for (slice, values) in slices.iter().zip(masters) {
        store.write(slice, 0, bytemuck::cast_slice(values));
    }
    store.cast_master_to_model();
    let outcome = engine.step(&mut batches(&cpu, step), 2, 0.0).unwrap();
    (outcome, numbers(&engine)[1].clone())
}

/// AdamW as the paper has it, in f64.
struct AdamW {
    updates: i32,
    moments: Vec<Vec<[f64; 2]>>,
}

impl AdamW {
    fn update(&mut self, w: &mut [Vec<f64>], g: &[Vec<f32>], norm: f64, lr: f64, decays: &[bool]) {
        let (beta1, beta2, eps, decay) = (0.9, 0.95, 1e-8, 0.1);
        self.updates += 1;
        let factor = (CLIP / (norm + 1e-6)).min(1.0);
        let correct = |beta: f64| 1.0 - beta.powi(self.updates);
        for (i, moments) in self.moments.iter_mut().enumerate() {
            for (j, [m, v]) in moments.iter_mut().enumerate() {
                let g = factor * f64::from(g[i][j]);
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let step = *m / correct(beta1) / ((*v / correct(beta2)).sqrt() + eps);
                let keep = if decays[i] { 1.0 - lr * decay } else { 1.0 };
                w[i][j] = w[i][j] * keep - lr * step;
            }
        }
    }
}

#[test]
fn a_late_update_is_by_the_gradient_of_the_step_before() {
    let clip = "optimizer.adamw={clip: 0.3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1}";
    let small = ["batch.micro=2", "batch.global=4", "model.vocab=128", clip];
    for home in ["device", "host"] {
        let offload = format!(
            "topology.offload={{what: optimizer, gradients: {home}, delay: 1, delay_after: \
             {AFTER}}}"
        );
        let cpu = Cpu::new(Some(1));
        let m = common::manifest(&[&small[..], &[&offload]].concat());
        let engine = Engine::new(&cpu, Groups::solo(), &m, true).unwrap();
        engine.init();
        let decays: Vec<bool> = engine.params().map(|param| param.spec.decay).collect();
        let [mut masters, _] = numbers(&engine);
        let mut w: Vec<Vec<f64>> =
            masters.iter().map(|x| x.iter().map(|x| f64::from(*x)).collect()).collect();
        let moments = masters.iter().map(|x| vec![[0.0; 2]; x.len()]).collect();
        let mut rule = AdamW { updates: 0, moments };
        let mut waits: Option<(Vec<Vec<f32>>, f64, f64)> = None;
        for step in 0..STEPS {
            let outcome = engine.step(&mut batches(&cpu, step), 2, lr(step)).unwrap();
            let [after, gradients] = numbers(&engine);
            assert!(outcome.grad_norm > 2.0 * CLIP, "clipped");
            // The step was taken with the weights that were there before the late update.
            let (alone, theirs) = fresh(&small, &masters, step);
            assert_eq!((outcome.loss, outcome.grad_norm), (alone.loss, alone.grad_norm), "{step}");
            assert!(gradients == theirs, "gradients of step {step}");
            let now = (gradients, outcome.grad_norm, lr(step));
            let due = if step < AFTER { Some(now) } else { waits.replace(now) };
            match &due {
                Some((g, norm, lr)) => rule.update(&mut w, g, *norm, *lr, &decays),
                None => assert!(after == masters && step == AFTER, "step {step} has no update"),
            }
            let pairs = w.iter().flatten().zip(after.iter().flatten());
            let worst = pairs.map(|(w, x)| (w - f64::from(*x)).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-6, "step {step}, gradients on the {home}: off by {worst:.1e}");
            masters = after;
        }
        assert_eq!(rule.updates as usize, STEPS - 1);
    }
}

const LATE: &str =
    "topology.offload={what: optimizer, gradients: device, delay: 1, delay_after: 1}";
const LATE_HOST: &str =
    "topology.offload={what: optimizer, gradients: host, delay: 1, delay_after: 1}";

/// The gradients of a run of one rank and of any grid, and the losses, but for the order of sums.
#[test]
fn any_ranks_are_late_alike() {
    let one = train(&["precision=f32", LATE], &GLOBAL);
    let on_time = train(&["precision=f32"], &GLOBAL);
    let two = |past: &Past| [0, 1].map(|i| (past.outcomes[i].loss, past.outcomes[i].grad_norm));
    assert_eq!(two(&one), two(&on_time), "until the late update is missed");
    assert!(one.outcomes[2..] != on_time.outcomes[2..], "it is late");
    let grids: [&[&str]; 7] = [
        &["topology.data=2"],
        &["topology.data=2", "topology.zero=1"],
        &["topology.data=2", "topology.zero=2"],
        &["topology.data=2", "topology.zero=3"],
        &["topology.tensor=2", "topology.sequence_parallel=true"],
        &["topology.pipeline=2"],
        &["topology.pipeline=2", "topology.data=2", "topology.zero=1"],
    ];
    for grid in grids {
        let device = train(&[&["precision=f32", LATE], grid].concat(), &GLOBAL);
        for (a, b) in device.outcomes.iter().zip(&one.outcomes) {
            assert!((a.loss - b.loss).abs() <= 1e-5 * b.loss, "{grid:?}: {a:?}, one rank {b:?}");
        }
        let host = train(&[&["precision=f32", LATE_HOST], grid].concat(), &GLOBAL);
        assert!(device == host, "gradients on the host, {grid:?}");
    }
}

/// GPUs, of which nothing waits for the host's pass but the weights.
#[test]
fn gpus_are_late_as_a_cpu_is() {
    let sets = |grid: &[&str], offload: &str| {
        let after = offload.replace("delay_after: 1", "delay_after: 0");
        let small = ["batch.micro=2", "batch.global=8", "precision=f32", &after];
        common::manifest(&[&small[..], grid].concat())
    };
    let one = sets(&[], LATE);
    let cpu = crate::grids_cuda::train(&Cpu::new(Some(1)), Groups::solo(), &one, 2, |_| ());
    for grid in [&["topology.data=2", "topology.zero=3"][..], &["topology.pipeline=2"]] {
        let gpu = outcomes(&sets(grid, LATE), How::Nccl);
        for (a, b) in gpu.iter().zip(&cpu) {
            assert!((a.loss - b.loss).abs() <= 1e-5 * b.loss, "{grid:?}: {a:?}, on the CPU {b:?}");
        }
        assert!(gpu[2].loss != gpu[0].loss, "one update was made");
        assert_eq!(gpu, outcomes(&sets(grid, LATE_HOST), How::Nccl), "{grid:?}");
    }
}
