//! Muon: momentum, fused matrices apart and together again, to norm 1, the update.

use crate::bench::{Bench, Known};
use crate::{Case, case};
use gptrain::base::{DType, Fused};
use gptrain::device::{FusedMatrix, InPlace, Momentum, Tensor, op};

pub fn table() -> Vec<Case> {
    let qkv = Fused::new([8, 4, 4]);
    let gates = Fused::new([1, 1, 0]);
    let mut cases = Vec::new();
    for (rows, cols, shares, fused) in [
        (32, 70, 1, qkv),
        (48, 64, 1, qkv),
        (26, 33, 1, gates),
        (40, 64, 1, gates),
        (9, 40, 4, Fused::ONE),
        (17, 128, 2, Fused::ONE),
        (1, 1, 1, Fused::ONE),
        (3, 1100, 1, Fused::ONE),
    ] {
        let name = format!("{rows} × {cols} in {shares}, {fused:?} apart");
        cases.push(case(name, move |b| apart(b, rows, cols, shares, fused)));
    }
    cases.extend([1, 4_004, 40_001].map(|len| case(format!("muon, {len}"), move |b| all(b, len))));
    cases
}

/// Everything that goes element by element.
pub fn all(b: &Bench, len: usize) {
    for factor in [0.75, f64::NAN] {
        let factor = b.known(1, 1, DType::F32, &[factor]);
        for nesterov in [false, true] {
            momentum(b, len, &factor, nesterov);
        }
        update(b, len, &factor);
    }
    blend(b, len);
    for (sum, norm) in [(6.25, 2.5), (1e-8, 1e-3), (0.0, 1e-3)] {
        let (x, sum) = (b.normal(1, len), b.known(1, 1, DType::F32, &[sum]));
        b.run(op::ScaleToNorm1 { sum: sum.on, eps: 1e-3, x: InPlace(x.on) });
        b.expect("to norm 1", x.on, || x.x.iter().map(|x| x / norm).collect());
    }
}

fn momentum(b: &Bench, len: usize, factor: &Known, nesterov: bool) {
    let rule = Momentum { momentum: 0.9, nesterov };
    let (grad, m) = (b.normal_f32(1, len), b.normal_f32(1, len));
    let by = factor.x[0];
    let pairs = || grad.x.iter().map(|g| g * by).zip(&m.x);
    let moved = |g: f64, m: f64| m + (1.0 - f64::from(rule.momentum)) * (g - m);
    for dtype in [DType::F32, b.dtype] {
        let (onto, out) = (b.again(&m), b.blank(1, len, dtype));
        let m_on = InPlace(onto.on);
        b.run(op::Momentum { rule, factor: factor.on, grad: grad.on, m: m_on, y: out.set() });
        b.expect("momentum", onto.on, || {
            if by.is_nan() { m.x.clone() } else { pairs().map(|(g, m)| moved(g, *m)).collect() }
        });
        b.expect("direction", out, || {
            if by.is_nan() {
                vec![0.0; len]
            } else {
                let mean = pairs().map(|(g, m)| (g, moved(g, *m)));
                let ahead = |(g, m): (f64, f64)| g + f64::from(rule.momentum) * (m - g);
                mean.map(|both| if nesterov { ahead(both) } else { both.1 })
                    .collect()
            }
        });
    }
}

fn blend(b: &Bench, len: usize) {
    let (x, y) = (b.normal(1, len), b.normal(1, len));
    b.run(op::Blend { a: 3.5, x: x.on, b: -0.75, y: InPlace(y.on) });
    b.expect("blend", y.on, || {
        x.x.iter()
            .zip(&y.x)
            .map(|(x, y)| 3.5 * x - 0.75 * y)
            .collect()
    });
    b.run(op::Blend::multiply(-1.75, x.on));
    b.expect("multiply", x.on, || x.x.iter().map(|x| -1.75 * x).collect());
}

fn update(b: &Bench, len: usize, factor: &Known) {
    let (keep, step) = (0.875, 0.25);
    for dtype in [DType::F32, b.dtype] {
        let u = b.normal_f32(1, len);
        let (u, master) = (b.known(1, len, dtype, &u.x), b.normal_f32(1, len));
        let rounded = b.blank(1, len, b.dtype);
        let (direction, factor_on) = (u.on, factor.on);
        let down = |master: Tensor, weight: Tensor| {
            let weight = weight.set_unless(master);
            let master = InPlace(master);
            b.run(op::MuonUpdate { keep, step, factor: factor_on, direction, master, weight });
        };
        down(master.on, rounded);
        if factor.x[0].is_nan() {
            b.expect("skipped", master.on, || master.x.clone());
            continue;
        }
        let lower = |(w, u): (&f64, &f64)| f64::from(keep) * w - f64::from(step) * u;
        b.expect("master", master.on, || master.x.iter().zip(&u.x).map(lower).collect());
        let stored = b.numbers(master.on);
        b.expect("rounded", rounded, || stored);
        if dtype == DType::F32 {
            let onto = b.again(&master);
            down(onto.on, onto.on);
            b.same("rounded on master", onto.on, master.on);
        }
    }
}

/// Each matrix of those that are fused, and all of them put together again.
fn apart(b: &Bench, rows: usize, cols: usize, shares: usize, fused: Fused) {
    let all = b.normal(rows, cols);
    let together = b.blank(rows, cols, b.dtype);
    let width = cols / shares;
    for number in 0..fused.count() {
        let which = FusedMatrix { rows, cols, shares, fused, number };
        let [own, _] = which.size();
        let one = b.blank(own, cols, b.dtype);
        b.run(op::Unfuse { all: all.on, which, one: one.set() });
        b.expect("one", one, || {
            let mine = (0..rows).filter(|row| fused.matrix_of(*row) == number);
            let value =
                |row: usize, col: usize| all.x[(col / width * rows + row) * width + col % width];
            mine.flat_map(|row| (0..cols).map(move |col| value(row, col)))
                .collect()
        });
        b.run(op::Fuse { one, which, all: InPlace(together) });
    }
    b.same("together again", together, all.on);
}
