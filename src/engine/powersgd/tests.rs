use super::*;
use crate::{Engine, Groups};
use comm::{World, threads};
use device::cpu::Cpu;

/// Outputs of PyTorch's powerSGD_hook over gloo (tests/fixtures/pytorch/powersgd.py): number of
/// processes, rank of the factors, and the drawn and resulting values.
const THEIRS: [(usize, usize, &[u8]); 4] = [
    (2, 1, include_bytes!("../../../tests/fixtures/pytorch/powersgd-2-1.f32")),
    (2, 2, include_bytes!("../../../tests/fixtures/pytorch/powersgd-2-2.f32")),
    (4, 2, include_bytes!("../../../tests/fixtures/pytorch/powersgd-4-2.f32")),
    (4, 4, include_bytes!("../../../tests/fixtures/pytorch/powersgd-4-4.f32")),
];
const STEPS: usize = 20;
const MATRICES: [&str; 4] = ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"];

/// `noise` of the fixture's script.
fn noise(of: [usize; 4]) -> f64 {
    let factors = [0x9E37_79B1u32, 0x85EB_CA77, 0xC2B2_AE3D, 0x27D4_EB2F];
    let parts = of
        .iter()
        .zip(factors)
        .map(|(x, factor)| factor.wrapping_mul(*x as u32));
    let x = parts.fold(0, u32::wrapping_add);
    let x = (x ^ (x >> 15)).wrapping_mul(0x2C1B_3C6D);
    let x = (x ^ (x >> 12)).wrapping_mul(0x297A_2D39);
    f64::from((x ^ (x >> 15)) >> 11) / f64::from(1 << 20) - 1.0
}

/// `gradient` of the fixture's script.
fn gradient([step, rank, number]: [usize; 3], strong: usize, [rows, cols]: [usize; 2]) -> Vec<f32> {
    (0..rows * cols)
        .map(|at| {
            let mut g = 0.1 * noise([100 + step, rank, number, at]);
            for k in 0..4 {
                let drawn = noise([3 + k, rank, step, 0]);
                let weight = if k < strong { 2.0 + 0.5 * drawn } else { 0.25 * drawn };
                g += weight * noise([1, k, number, at / cols]) * noise([2, k, number, at % cols]);
            }
            g as f32
        })
        .collect()
}

/// Calls `run` on each of `replicas` replicas of a block of width 8, with the tensors of its
/// matrices' gradients.
fn replicas(replicas: usize, rank: usize, run: impl Fn(&Engine, &[Tensor]) + Sync) {
    let text = "
model: {layers: 1, hidden: 8, heads: 2, vocab: 16, seq_len: 4}
data: {train: none}
batch: {micro: 1, global: 8}
lr: {peak: 1e-3}
train: {samples: 800}
";
    let compression = format!("{{powersgd: {{rank: {rank}, start_step: 0, min_rate: 1}}}}");
    let sets = [format!("topology={{data: {replicas}, compression: {compression}}}")];
    let m = manifest::for_test(text, &sets);
    let rank = |world: World| {
        let cpu = Cpu::new(Some(1));
        let engine = Engine::new(&cpu, Groups::new(&world, &m.topology), &m, true).unwrap();
        engine.init();
        engine.params.begin_step(1);
        let compression = engine.compression.as_ref().expect("compressed");
        run(
            &engine,
            &MATRICES.each_ref().map(|name| {
                let name = format!("block.0.{name}.weight");
                let at = compression
                    .names
                    .iter()
                    .position(|other| *other == name)
                    .expect("a matrix");
                compression.grads[at]
            }),
        );
    };
    std::thread::scope(|scope| {
        threads::world(replicas)
            .into_iter()
            .for_each(|world| drop(scope.spawn(|| rank(world))));
    });
}

fn read(engine: &Engine, x: Tensor) -> Vec<f32> {
    let mut values = vec![0.0f32; x.numel()];
    engine.be.download(x, bytemuck::cast_slice_mut(&mut values));
    values
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// Every replica's gradient equals that of the first process of the fixture after the hook.
#[test]
fn gradients_are_those_of_pytorchs_hook() {
    for (size, rank, bytes) in THEIRS {
        let theirs: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        replicas(size, rank, |engine, grads| {
            let mut theirs = &theirs[..];
            let mut next = |len: usize| {
                let (now, rest) = theirs.split_at(len);
                theirs = rest;
                now
            };
            let compression = engine.compression.as_ref().expect("compressed");
            for matrix in &compression.buckets[0].matrices {
                engine
                    .be
                    .upload(bytemuck::cast_slice(next(matrix.q.numel())), matrix.q);
            }
            let place = engine.params.groups.grad_sum.rank();
            for step in 0..STEPS {
                for (number, grad) in grads.iter().enumerate() {
                    // A gradient of the hook is that of the replica's own mean loss.
                    let mut values = gradient([step, place, number], rank, [grad.rows, grad.cols]);
                    values.iter_mut().for_each(|g| *g /= size as f32);
                    engine.be.upload(bytemuck::cast_slice(&values), *grad);
                }
                compression.run(&engine.params, &engine.scalars);
                for number in [0, 3] {
                    let ours = read(engine, grads[number]);
                    let theirs = next(grads[number].numel());
                    let apart: Vec<f32> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
                    let off = norm(&apart) / norm(theirs);
                    let what = format!("{} of {size} replicas, rank {rank}", MATRICES[number]);
                    assert!(off <= 1e-5, "{what}: step {step} is off by {off:.1e}");
                }
            }
            assert!(theirs.is_empty(), "all of the fixture");
        });
    }
}

/// If one number of one replica is not finite, no replica changes a state, all skip the step, and
/// the weight is named.
#[test]
fn one_infinite_gradient_leaves_every_replicas_states() {
    replicas(4, 2, |engine, grads| {
        let compression = engine.compression.as_ref().expect("compressed");
        let kept = || -> Vec<Vec<f32>> {
            let matrices = compression.buckets[0].matrices.iter();
            matrices
                .flat_map(|m| [m.error, m.q])
                .map(|x| read(engine, x))
                .collect()
        };
        let place = engine.params.groups.grad_sum.rank();
        for (step, infinite) in [false, true, false].into_iter().enumerate() {
            for (number, grad) in grads.iter().enumerate() {
                let mut values = gradient([step, place, number], 2, [grad.rows, grad.cols]);
                if infinite && place == 2 && number == 1 {
                    values[5] = f32::INFINITY;
                }
                engine.be.upload(bytemuck::cast_slice(&values), *grad);
            }
            let before = kept();
            let scale = compression.run(&engine.params, &engine.scalars);
            assert_eq!(read(engine, scale)[0].is_nan(), infinite);
            assert_eq!(before == kept(), infinite, "step {step}");
            let sums = read(engine, engine.scalars.local_sums);
            let found = sums.iter().filter(|sum| !sum.is_finite()).count();
            assert_eq!(found, usize::from(infinite && place == 2));
        }
    });
}

/// Replicas with the mean of their errors send the same values from then on, except for rounding.
#[test]
fn the_mean_of_the_errors_stands_for_each() {
    let given = std::sync::Mutex::new([const { Vec::new() }; 2]);
    for (which, average) in [false, true].into_iter().enumerate() {
        replicas(4, 2, |engine, grads| {
            let compression = engine.compression.as_ref().expect("compressed");
            let place = engine.params.groups.grad_sum.rank();
            for step in 0..STEPS {
                for (number, grad) in grads.iter().enumerate() {
                    let values = gradient([step, place, number], 2, [grad.rows, grad.cols]);
                    engine.be.upload(bytemuck::cast_slice(&values), *grad);
                }
                if average && step == STEPS / 2 {
                    compression.average_errors(&engine.params);
                }
                compression.run(&engine.params, &engine.scalars);
            }
            if place == 0 {
                let all = grads.iter().flat_map(|grad| read(engine, *grad));
                given.lock().unwrap()[which] = all.collect();
            }
        });
    }
    let [each, mean] = given.into_inner().unwrap();
    let apart: Vec<f32> = each.iter().zip(&mean).map(|(a, b)| a - b).collect();
    let off = norm(&apart) / norm(&each);
    assert!(0.0 < off && off < 1e-5, "off by {off:.1e}");
}
