//! Sums, clipping, AdamW.

use crate::bench::{Bench, Known};
use crate::reference::plus;
use crate::{Case, case};
use gptrain::base::DType;
use gptrain::device::{
    AdamW, AdamWUpdate, InPlace, Scaler, Scaling, StepLimits, Tensor, digest_term, op,
};

pub fn table() -> Vec<Case> {
    vec![
        case("optimizer, 1 element", |b| all(b, 1)),
        case("optimizer, 561 elements", |b| all(b, 561)),
        case("optimizer, 70,001 elements", |b| all(b, 70_001)),
        case("adamw of many tensors", adamw_of_many),
        case("clip", clip),
        case("loss scale that moves", |b| loss_scale_step(b, 2.0, [3, 2], 256.0)),
        case("skip above", skip_above),
        case("constant loss scale", |b| loss_scale_step(b, 1.0, [2, 3], 64.0)),
    ]
}

pub fn all(b: &Bench, len: usize) {
    let (x, z) = (b.normal(1, len), b.normal_f32(len, 1));
    let y = b.known(1, 1, DType::F32, &[3.0]);
    b.run(op::Sum { x: z.on, y: y.on.add() });
    // Against the sum of magnitudes, since the sum itself may cancel.
    let y_want = || plus(&y.x, &[z.x.iter().sum()]);
    b.expect("sum", y.on, y_want);
    let sums = b.blank(1, 3, DType::F32);
    b.run(op::SquareSums { xs: &[x.on, z.on, y.on], y: sums.set() });
    let y_now = b.numbers(y.on);
    b.expect("square sums", sums, || {
        [&x.x, &z.x, &y_now]
            .iter()
            .map(|x| x.iter().map(|x| x * x).sum())
            .collect()
    });
    count_zeros(b, &x, &y);
    digests(b, &x, &z);
    adamw(b, len);
}

/// Zeros of tensors with some, all, none, and of one without elements; -0 is one.
fn count_zeros(b: &Bench, x: &Known, y: &Known) {
    let len = x.on.numel();
    let sparse: Vec<f64> = (0..len)
        .map(|i| [0.0, 1.0, -0.0, f64::NAN][i % 4])
        .collect();
    let sparse = b.known(1, len, DType::F32, &sparse);
    let all = b.known(1, len, DType::F32, &vec![0.0; len]);
    let [lows, highs] = [0; 2].map(|_| b.blank(1, 4, DType::F32));
    let xs = [sparse.on, all.on, y.on, all.on.span(0, 0)];
    b.run(op::CountZeros { xs: &xs, lows: lows.set(), highs: highs.set() });
    let zeros = [len.div_ceil(4) + (len + 1) / 4, len, 0, 0];
    let high = op::ZEROS_PER_HIGH as usize;
    b.exactly("lower parts", lows, || zeros.map(|n| (n % high) as f64).to_vec());
    b.exactly("higher parts", highs, || zeros.map(|n| (n / high) as f64).to_vec());
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
        let terms = bits
            .enumerate()
            .map(|(at, bits)| digest_term(at as u64, bits));
        terms.fold(0u64, u64::wrapping_add)
    };
    let of = |xs: &[Tensor]| {
        let out = b.longs(&vec![-1; xs.len()]);
        b.run(op::Digests { xs, y: out.set() });
        let bytes = b.bytes(out);
        bytes
            .chunks(8)
            .map(|d| u64::from_le_bytes(d.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    // Rows of whole 16 bytes, and what starts between them.
    let (even, odd) = (x.on.span(0, x.on.numel() / 8 * 8), x.on.span(x.on.numel() / 2, 1));
    let bytes: Vec<f64> = (0..x.on.numel()).map(|i| (i * 7 % 256) as f64).collect();
    let bytes = b.known(1, bytes.len(), DType::U8, &bytes);
    let xs = [x.on, z.on, even, odd, bytes.on];
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
    let rounded = b.blank(1, len, b.dtype);
    let mut want = [master.x.clone(), m.x.clone(), v.x.clone()];
    for step in 1..=3 {
        let grad = b.normal(1, len);
        let factor = if step == 2 { f64::NAN } else { 0.75 };
        let (lr, beta1, beta2, eps) = (3e-2, 0.9, 0.95, 1e-6);
        let rule = AdamW { lr, beta1, beta2, eps, weight_decay: 0.1, lr_scale: 0.5 };
        let on = b
            .known(1, 3, DType::F32, &[&[factor][..], &corrections(&rule, step)].concat())
            .on;
        let one = AdamWUpdate {
            rule,
            grad: grad.on,
            master: InPlace(master.on),
            m: InPlace(m.on),
            v: InPlace(v.on),
            weight: rounded.set_unless(master.on),
        };
        b.run(op::AdamW { scalars: on, updates: &[one] });
        if factor.is_finite() {
            update(&rule, step, factor, &grad.x, &mut want);
        }
        b.expect("master", master.on, || want[0].clone());
        b.expect("m", m.on, || want[1].clone());
        b.expect("v", v.on, || want[2].clone());
        let stored = b.numbers(master.on);
        b.expect("rounded", rounded, || stored);
        if b.dtype == DType::F32 {
            b.same("the weight is master, rounded", rounded, master.on);
        }
        // Where the weights in use are the master's themselves.
        let onto = b.again(&master);
        let [m, v] = [0, 1].map(state);
        let one = AdamWUpdate {
            master: InPlace(onto.on),
            m: InPlace(m.on),
            v: InPlace(v.on),
            weight: None,
            ..one
        };
        b.run(op::AdamW { scalars: on, updates: &[one] });
        b.expect("rounded on master", onto.on, || {
            let mut want = [master.x.clone(), m.x.clone(), v.x.clone()];
            if factor.is_finite() {
                update(&rule, step, factor, &grad.x, &mut want);
            }
            want[0].clone()
        });
    }
}

/// More tensors than a launch takes, of all kinds and some of several pieces: by the definition, and
/// the bits of one by one.
fn adamw_of_many(b: &Bench) {
    let (lr, beta1, beta2, eps) = (3e-2, 0.9, 0.95, 1e-6);
    let rule = |i: usize| {
        let (weight_decay, lr_scale) = (0.1 * (i % 2) as f32, 1.0 + i as f32);
        AdamW { lr, beta1, beta2, eps, weight_decay, lr_scale }
    };
    let scalars = [&[0.75][..], &corrections(&rule(0), 1)].concat();
    let scalars = b.known(1, 3, DType::F32, &scalars).on;
    let tensors = |i: usize| {
        let len = [1, 8, 77, 9_000][i % 4] + 8 * (i / 4);
        let (grad, masters) = (b.normal(1, len), b.normal_f32(1, len));
        let one = |master: Tensor| {
            let [m, v] = [(); 2].map(|()| b.known(1, len, DType::F32, &vec![0.0; len]).on);
            let weight = if i.is_multiple_of(3) { master } else { b.blank(1, len, b.dtype) };
            AdamWUpdate {
                rule: rule(i),
                grad: grad.on,
                master: InPlace(master),
                m: InPlace(m),
                v: InPlace(v),
                weight: weight.set_unless(master),
            }
        };
        let both = [one(masters.on), one(b.again(&masters).on)];
        let mut want = [masters.x, vec![0.0; len], vec![0.0; len]];
        update(&rule(i), 1, 0.75, &grad.x, &mut want);
        (both, want)
    };
    let all: Vec<([AdamWUpdate; 2], [Vec<f64>; 3])> = (0..140).map(tensors).collect();
    let together: Vec<AdamWUpdate> = all.iter().map(|([one, _], _)| *one).collect();
    b.run(op::AdamW { scalars, updates: &together });
    for (i, ([one, other], want)) in all.iter().enumerate() {
        b.expect(&format!("master {i}"), one.master.0, || want[0].clone());
        b.run(op::AdamW { scalars, updates: &[*other] });
        let tensors =
            |update: &AdamWUpdate| [update.master.0, update.m.0, update.v.0, update.weight()];
        let all = tensors(one).into_iter().zip(tensors(other));
        all.for_each(|(x, y)| b.same(&format!("tensor {i}"), x, y));
    }
}

/// lr / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ).
fn corrections(rule: &AdamW, update: i32) -> [f64; 2] {
    let grown = |beta: f32| 1.0 - f64::from(beta).powi(update);
    [f64::from(rule.lr) / grown(rule.beta1), 1.0 / grown(rule.beta2).sqrt()]
}

/// Algorithm 2 of Loshchilov & Hutter, in the order of PyTorch's AdamW.
fn update(rule: &AdamW, step: i32, factor: f64, grad: &[f64], [w, m, v]: &mut [Vec<f64>; 3]) {
    let [lr, beta1, beta2] = [rule.lr, rule.beta1, rule.beta2].map(f64::from);
    let by = lr * f64::from(rule.lr_scale);
    for i in 0..grad.len() {
        let g = grad[i] * factor;
        w[i] *= 1.0 - lr * rule.weight_decay as f64;
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        let m_hat = m[i] / (1.0 - beta1.powi(step));
        let v_hat = v[i] / (1.0 - beta2.powi(step));
        w[i] -= by * m_hat / (v_hat.sqrt() + rule.eps as f64);
    }
}

fn clip(b: &Bench) {
    let scaled = |sums: &[f64], scale: f64| {
        let sums = b.known(1, sums.len(), DType::F32, sums);
        let scale = b.known(1, 1, DType::F32, &[scale]);
        let out = b.blank(1, 2, DType::F32);
        b.run(op::Clip { sums: sums.on, scale: scale.on, max_norm: 1.0, y: out.set() });
        out
    };
    let run = |sums: &[f64]| scaled(sums, 1.0);
    let eighth = 1.0 / (5.0 + 1e-6) / 8.0;
    b.expect("norm 5, scaled by 8", scaled(&[64.0 * 9.0, 64.0 * 16.0], 8.0), || vec![5.0, eighth]);
    b.expect("norm 0.5, scaled by 8", scaled(&[16.0], 8.0), || vec![0.5, 0.125]);
    b.expect("norm 5", run(&[9.0, 16.0]), || vec![5.0, 1.0 / (5.0 + 1e-6)]);
    b.expect("norm 0.5", run(&[0.25]), || vec![0.5, 1.0]);
    b.expect("norm 0", run(&[0.0, 0.0]), || vec![0.0, 1.0]);
    b.expect("infinite", run(&[1.0, f64::INFINITY]), || vec![f64::INFINITY, f64::NAN]);
    b.expect("NaN", run(&[f64::NAN]), || vec![f64::NAN, f64::NAN]);
}

/// An update is taken back where the loss or the norm is above its limit, and nowhere else.
fn skip_above(b: &Bench) {
    let cases = [
        // loss, norm, status before; status after
        ([2.0, 1.0], 0.0, 0.0),
        ([2.1, 1.0], 0.0, 3.0),
        ([2.0, 1.1], 0.0, 3.0),
        ([f64::INFINITY, 1.0], 0.0, 3.0),
        ([3.0, f64::NAN], 1.0, 1.0), // overflowed
        ([3.0, 3.0], 2.0, 2.0),      // stuck
    ];
    for ([loss, norm], before, after) in cases {
        let number = |x: f64| b.known(1, 1, DType::F32, &[x]).on;
        let counts = b.longs(&[5, 2, 9, 1, 0]);
        let scaler = Scaler { scale: number(64.0), counts };
        let factor = if before > 0.0 { f64::NAN } else { 0.5 };
        let (factor_on, status) = (number(factor), number(before));
        let limits = StepLimits { loss: 2.0, norm: 1.0 };
        let [loss_on, norm_on] = [loss, norm].map(number);
        b.run(op::SkipAbove {
            limits,
            loss: loss_on,
            norm: norm_on,
            counts: InPlace(scaler.counts),
            factor: InPlace(factor_on),
            status: InPlace(status),
        });
        let skipped = after == 3.0;
        b.expect("factor", factor_on, || vec![if skipped { f64::NAN } else { factor }]);
        b.expect("status", status, || vec![after]);
        let counted: Vec<i64> = b.bytes(counts).chunks(8).map(long_of).collect();
        let one = i64::from(skipped);
        assert_eq!(counted, [5, 2, 9 - one, 1 + one, 0], "loss {loss}, norm {norm}");
    }
}

/// Step by step as Megatron's DynamicGradScaler, until the scale is stuck; then nothing moves.
fn loss_scale_step(b: &Bench, growth: f32, [window, hysteresis]: [u64; 2], min: f32) {
    let rule =
        AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, lr_scale: 0.5 };
    let scaling = Scaling { growth, window, hysteresis, min };
    let first = if growth > 1.0 { 1024.0 } else { f64::from(min) };
    let scale = b.known(1, 1, DType::F32, &[first]).on;
    let counts = b.longs(&[0, hysteresis as i64, 0, 0, 0]);
    let mut theirs =
        Megatron { scale: first, growth_tracker: 0, hysteresis_tracker: hysteresis as i64 };
    let (mut updates, mut skipped) = (0, 0);
    let mut stuck = false;
    // 0 is an overflow: alone, in a row, after fewer and after as many updates as double the scale.
    for finite in "1110111001111011110000000000001111"
        .chars()
        .map(|c| c == '1')
    {
        let factor = if finite { 0.5 } else { f64::NAN };
        let factor_on = b.known(1, 1, DType::F32, &[factor]).on;
        let [status, scalars] = [1, 2].map(|n| b.blank(1, n, DType::F32));
        b.run(op::LossScaleStep {
            scaling,
            scaler: InPlace(Scaler { scale, counts }),
            factor: InPlace(factor_on),
            status: status.set(),
        });
        if stuck {
            b.expect("nothing moves", scale, || vec![theirs.scale]);
            let (factor, status) = (b.numbers(factor_on)[0], b.numbers(status)[0]);
            assert!(factor.is_nan() && status == 2.0, "stuck: {factor} {status}");
            continue;
        }
        let lowest = theirs.scale <= f64::from(min);
        theirs.update(&scaling, !finite);
        let (counted, missed) = if finite { (&mut updates, 0.0) } else { (&mut skipped, 1.0) };
        *counted += 1;
        stuck = !finite && lowest && theirs.hysteresis_tracker <= 0;
        let [step, rescale] = corrections(&rule, updates);
        let fate = if stuck { 2.0 } else { missed };
        b.run(op::AdamScalars { rule, updates: counts.span(2, 1), y: scalars.set() });
        b.expect("factor", factor_on, || vec![factor]);
        b.expect("status", status, || vec![fate]);
        b.expect("adam scalars", scalars, || vec![step, rescale]);
        b.expect("scale", scale, || vec![theirs.scale]);
        let trackers = [theirs.growth_tracker, theirs.hysteresis_tracker];
        let row = [trackers, [updates.into(), skipped.into()]].concat();
        let counts: Vec<i64> = b.bytes(counts).chunks(8).map(long_of).collect();
        assert_eq!((&counts[..4], counts[4]), (&row[..], stuck.into()));
    }
    assert!(stuck, "the sequence ends at the lowest scale");
}

fn long_of(bytes: &[u8]) -> i64 {
    i64::from_ne_bytes(bytes.try_into().unwrap())
}

/// Its rule, by the names it has there.
struct Megatron {
    scale: f64,
    growth_tracker: i64,
    hysteresis_tracker: i64,
}

impl Megatron {
    fn update(&mut self, s: &Scaling, found_inf: bool) {
        if found_inf {
            self.growth_tracker = 0;
            self.hysteresis_tracker -= 1;
            if self.hysteresis_tracker <= 0 {
                self.scale = (self.scale * 0.5).max(f64::from(s.min));
            }
        } else {
            self.growth_tracker += 1;
            if self.growth_tracker == s.window as i64 {
                self.growth_tracker = 0;
                self.hysteresis_tracker = s.hysteresis as i64;
                self.scale *= f64::from(s.growth);
            }
        }
    }
}
