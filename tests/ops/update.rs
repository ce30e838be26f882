//! Sums, clipping, AdamW.

use crate::bench::{Bench, Known};
use crate::reference::plus;
use crate::{Case, case};
use gptrain::base::DType;
use gptrain::device::{AdamW, Tensor, digest_term};

pub fn table() -> Vec<Case> {
    vec![
        case("optimizer, 1 element", |b| all(b, 1)),
        case("optimizer, 561 elements", |b| all(b, 561)),
        case("optimizer, 70,001 elements", |b| all(b, 70_001)),
        case("clip", clip),
    ]
}

pub fn all(b: &Bench, len: usize) {
    let (x, z) = (b.normal(1, len), b.normal_f32(len, 1));
    let y = b.known(1, 1, DType::F32, &[3.0]);
    b.backend.sum(z.on, y.on.add());
    // Against the sum of magnitudes, since the sum itself may cancel.
    let y_want = || plus(&y.x, &[z.x.iter().sum()]);
    b.expect("sum", y.on, y_want);
    let sums = b.blank(1, 3, DType::F32);
    b.backend.square_sums(&[x.on, z.on, y.on], sums.set());
    let y_now = b.numbers(y.on);
    b.expect("square sums", sums, || {
        [&x.x, &z.x, &y_now].iter().map(|x| x.iter().map(|x| x * x).sum()).collect()
    });
    digests(b, &x, &z);
    adamw(b, len);
}

/// Digests, against the definition; and that one bit changes them.
fn digests(b: &Bench, x: &Known, z: &Known) {
    let definition = |on: Tensor| {
        let size = on.dtype.size();
        let bytes = b.bytes(on);
        let bits = bytes.chunks(size).map(|bytes| {
            let mut word = [0; 4];
            word[..size].copy_from_slice(bytes);
            u32::from_le_bytes(word)
        });
        let terms = bits.enumerate().map(|(at, bits)| digest_term(at as u64, bits));
        terms.fold(0u64, u64::wrapping_add)
    };
    let of = |xs: &[Tensor]| {
        let out = b.integers_64(xs.len());
        b.backend.digests(xs, out.set());
        let bytes = b.bytes(out);
        bytes.chunks(8).map(|d| u64::from_le_bytes(d.try_into().unwrap())).collect::<Vec<_>>()
    };
    // Rows of whole 16 bytes, and what starts between them.
    let (even, odd) = (x.on.span(0, x.on.numel() / 8 * 8), x.on.span(x.on.numel() / 2, 1));
    let xs = [x.on, z.on, even, odd];
    assert_eq!(of(&xs), xs.map(definition));
    let mut bytes = b.bytes(x.on);
    *bytes.last_mut().unwrap() ^= 1;
    let changed = b.again(x).on;
    b.backend.upload(&bytes, changed);
    assert_ne!(of(&[changed]), of(&[x.on]));
}

fn adamw(b: &Bench, len: usize) {
    let master = b.normal_f32(1, len);
    let state = |_| b.known(1, len, DType::F32, &vec![0.0; len]);
    let [m, v] = [0, 1].map(state);
    let live = b.blank(1, len, b.dtype);
    let mut want = [master.x.clone(), m.x.clone(), v.x.clone()];
    for step in 1..=3 {
        let grad = b.normal(1, len);
        let factor = if step == 2 { f64::NAN } else { 0.75 };
        let on = b.known(1, 1, DType::F32, &[factor]).on;
        let (lr, beta1, beta2, eps) = (3e-2, 0.9, 0.95, 1e-6);
        let rule = AdamW { lr, beta1, beta2, eps, weight_decay: 0.1, step };
        b.backend.adamw(&rule, on, grad.on, master.on, m.on, v.on, live);
        if factor.is_finite() {
            update(&rule, factor, &grad.x, &mut want);
        }
        b.expect("master", master.on, || want[0].clone());
        b.expect("m", m.on, || want[1].clone());
        b.expect("v", v.on, || want[2].clone());
        let stored = b.numbers(master.on);
        b.expect("live", live, || stored);
        if b.dtype == DType::F32 {
            b.same("live is master, rounded", live, master.on);
        }
        // Where the weights in use are the master's themselves.
        let onto = b.again(&master);
        let [m, v] = [0, 1].map(state);
        b.backend.adamw(&rule, on, grad.on, onto.on, m.on, v.on, onto.on);
        b.expect("live on master", onto.on, || {
            let mut want = [master.x.clone(), m.x.clone(), v.x.clone()];
            if factor.is_finite() {
                update(&rule, factor, &grad.x, &mut want);
            }
            want[0].clone()
        });
    }
}

/// Algorithm 2 of Loshchilov & Hutter, in the order of PyTorch's AdamW.
fn update(rule: &AdamW, factor: f64, grad: &[f64], [w, m, v]: &mut [Vec<f64>; 3]) {
    let [lr, beta1, beta2] = [rule.lr, rule.beta1, rule.beta2].map(f64::from);
    for i in 0..grad.len() {
        let g = grad[i] * factor;
        w[i] *= 1.0 - lr * rule.weight_decay as f64;
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let m_hat = m[i] / (1.0 - beta1.powi(rule.step as i32));
        let v_hat = v[i] / (1.0 - beta2.powi(rule.step as i32));
        w[i] -= lr * m_hat / (v_hat.sqrt() + rule.eps as f64);
    }
}

fn clip(b: &Bench) {
    let run = |sums: &[f64]| {
        let sums = b.known(1, sums.len(), DType::F32, sums);
        let out = b.blank(1, 2, DType::F32);
        b.backend.clip(sums.on, 1.0, out.set());
        out
    };
    b.expect("norm 5", run(&[9.0, 16.0]), || vec![5.0, 1.0 / (5.0 + 1e-6)]);
    b.expect("norm 0.5", run(&[0.25]), || vec![0.5, 1.0]);
    b.expect("norm 0", run(&[0.0, 0.0]), || vec![0.0, 1.0]);
    b.expect("infinite", run(&[1.0, f64::INFINITY]), || vec![f64::INFINITY, f64::NAN]);
    b.expect("NaN", run(&[f64::NAN]), || vec![f64::NAN, f64::NAN]);
}
