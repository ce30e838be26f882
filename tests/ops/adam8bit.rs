//! AdamW on moments in 8 bits, against a definition that finds the nearest of 256 numbers in f64.

use crate::bench::{Bench, Known};
use crate::{Case, case};
use gptrain::base::DType;
use gptrain::device::dynamic_map::{SIGNED, UNSIGNED};
use gptrain::device::{AdamW, Coded, InPlace, op};

pub fn table() -> Vec<Case> {
    let of = |block, blocks| {
        let name = format!("adam8bit, {blocks} blocks of {block}");
        case(name, move |b| updates(b, block, blocks))
    };
    vec![of(64, 1), of(64, 150), of(32, 67), of(16, 131)]
}

/// A moment on the device, and its codes and scales by the definition.
struct Moment {
    on: [Known; 2],
    codes: Vec<f64>,
    scales: Vec<f32>,
}

impl Moment {
    /// Every code occurs; every fifth block is as new: zeros.
    fn new(b: &Bench, block: usize, blocks: usize, first: usize) -> Moment {
        let is_new = |i: usize| (i / block).is_multiple_of(5);
        let codes = (0..block * blocks).map(|i| if is_new(i) { 0 } else { (first + 37 * i) % 256 });
        let codes: Vec<f64> = codes.map(|code| code as f64).collect();
        let scale = |i: usize| if is_new(i * block) { 0.0 } else { 0.01 * (1 + i % 7) as f64 };
        let scales: Vec<f64> = (0..blocks).map(scale).collect();
        let on = [
            b.known(1, block * blocks, DType::U8, &codes),
            b.known(1, blocks, DType::F32, &scales),
        ];
        let scales = on[1].x.iter().map(|x| *x as f32).collect();
        Moment { on, codes, scales }
    }

    fn decoded(&self, map: &[f32; 256]) -> Vec<f32> {
        let block = self.codes.len() / self.scales.len();
        let codes = self.codes.iter().enumerate();
        codes
            .map(|(i, code)| map[*code as usize] * self.scales[i / block])
            .collect()
    }

    fn encode(&mut self, map: &[f32; 256], numbers: &[f32]) {
        let block = self.codes.len() / self.scales.len();
        for (i, numbers) in numbers.chunks(block).enumerate() {
            let scale = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            self.scales[i] = scale;
            let by = if scale == 0.0 { 1.0 } else { scale };
            for (code, x) in self.codes[i * block..].iter_mut().zip(numbers) {
                *code = nearest(map, x / by);
            }
        }
    }

    fn coded(&self) -> Coded {
        Coded { codes: self.on[0].on, scales: self.on[1].on }
    }

    fn expect(&self, b: &Bench, name: &str) {
        b.expect_within(0.0, &format!("{name} codes"), self.on[0].on, || self.codes.clone());
        let scales = || self.scales.iter().map(|x| f64::from(*x)).collect();
        b.expect_within(0.0, &format!("{name} scales"), self.on[1].on, scales);
    }
}

/// Nearest number of a map; the lower of two equally near ones. In a map from 0 on, a number above
/// 0 does not become 0.
fn nearest(map: &[f32; 256], x: f32) -> f64 {
    let above = map.partition_point(|value| *value < x).min(255);
    let below = above.saturating_sub(1);
    let off = |code: usize| (f64::from(map[code]) - f64::from(x)).abs();
    let code = if off(below) <= off(above) { below } else { above };
    if map[0] == 0.0 && x > 0.0 { code.max(1) as f64 } else { code as f64 }
}

fn updates(b: &Bench, block: usize, blocks: usize) {
    let len = block * blocks;
    let master = b.normal_f32(1, len);
    let (mut m, mut v) = (Moment::new(b, block, blocks, 3), Moment::new(b, block, blocks, 50));
    let rounded = b.blank(1, len, b.dtype);
    let mut weights = master.x.clone();
    let spread = b.normal_f32(1, len).x;
    for step in 1..=4 {
        // Gradients of very different sizes; some are 0, and so is the whole second block.
        let drawn = b.normal(1, len).x.into_iter().zip(&spread).enumerate();
        let size = |i: usize| if i / block == 1 || i.is_multiple_of(11) { 0.0 } else { 0.1 };
        let grad: Vec<f64> = drawn
            .map(|(i, (x, s))| size(i) * x * (2.0 * s).exp())
            .collect();
        let grad = b.known(1, len, b.dtype, &grad);
        let factor = if step == 3 { f64::NAN } else { 0.75 };
        let rule = AdamW {
            lr: 3e-2,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-6,
            weight_decay: 0.1,
            lr_scale: 0.5,
        };
        let scalars = b.known(1, 3, DType::F32, &[factor, 0.05, 2.0]);
        b.run(op::Adam8bit {
            rule,
            scalars: scalars.on,
            grad: grad.on,
            master: InPlace(master.on),
            m: InPlace(m.coded()),
            v: InPlace(v.coded()),
            weight: rounded.set_unless(master.on),
        });
        if factor.is_finite() {
            define(&rule, &scalars.x, &grad.x, &mut weights, &mut m, &mut v);
        }
        m.expect(b, "m");
        v.expect(b, "v");
        b.expect("master", master.on, || weights.clone());
        let stored = b.numbers(master.on);
        b.expect("rounded", rounded, || stored);
    }
}

/// In the order of PyTorch's AdamW, as the ops are, in f32: codes depend on every bit.
fn define(
    rule: &AdamW,
    scalars: &[f64],
    grad: &[f64],
    weights: &mut [f64],
    m: &mut Moment,
    v: &mut Moment,
) {
    let [factor, step, rescale] = [0, 1, 2].map(|i| scalars[i] as f32);
    let keep = 1.0 - f64::from(rule.lr) * f64::from(rule.weight_decay);
    let by_rule = f64::from(rule.lr_scale);
    let (mut first, mut root) = (m.decoded(&SIGNED.values), v.decoded(&UNSIGNED.values));
    for i in 0..grad.len() {
        let g = grad[i] as f32 * factor;
        first[i] = (g - first[i]).mul_add(1.0 - rule.beta1, first[i]);
        let second = (g * g).mul_add(1.0 - rule.beta2, rule.beta2 * (root[i] * root[i]));
        root[i] = second.sqrt();
        let by = f64::from(root[i]) * f64::from(rescale) + f64::from(rule.eps);
        weights[i] = weights[i] * keep - by_rule * f64::from(step) * f64::from(first[i]) / by;
    }
    m.encode(&SIGNED.values, &first);
    v.encode(&UNSIGNED.values, &root);
}
