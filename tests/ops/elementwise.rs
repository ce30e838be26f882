//! Dropout, residual, bias, gelu, swiglu, zero, copy.

use crate::bench::{Bench, Known};
use crate::reference::{column_sums, dropout_matrix, gelu, plus, slopes, swiglu, times};
use crate::{Case, case};
use gptrain::base::DType;
use gptrain::device::{Dropout, Gelu, op};

/// Number of the first sample in the run: past 32 bits once multiplied by the length.
const FIRST: i64 = 3_000_000_000;

pub fn table() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols) in [(1, 1), (17, 33), (40, 1), (1, 1030), (5, 512)] {
        for rate in [0.0, 0.1] {
            cases.push(case(format!("elementwise {rows}x{cols}, dropout {rate}"), move |b| {
                all(b, rows, cols, rate)
            }));
        }
    }
    for (rows, cols) in [(1, 1), (17, 33), (5, 512), (3, 40)] {
        cases.push(case(format!("swiglu {rows}x{cols}"), move |b| gates(b, rows, cols)));
    }
    cases.push(case("gelu in the tails", tails));
    cases.push(case("dropout keeps the right fraction", fraction));
    cases
}

pub fn all(b: &Bench, rows: usize, cols: usize, rate: f32) {
    copies(b, rows, cols);
    let drop = b.dropout(rate, FIRST, 8, 3);
    let mask = || match rate {
        0.0 => vec![1.0; rows * cols],
        _ => dropout_matrix(&drop, FIRST, rows, cols),
    };
    let x = b.normal(rows, cols);
    let y = b.blank(rows, cols, b.dtype);
    b.run(op::Dropout { x: x.on, drop, y: y.set() });
    b.expect("dropout", y, || times(&mask(), &x.x));
    let inside = b.again(&x);
    b.run(op::Dropout { x: inside.on, drop, y: inside.on.set() });
    b.same("dropout in place", y, inside.on);
    let sum = b.normal(rows, cols);
    b.run(op::Dropout { x: x.on, drop, y: sum.on.add() });
    b.expect("dropout +=", sum.on, || plus(&sum.x, &times(&mask(), &x.x)));

    for biased in [true, false] {
        residual(b, rows, cols, &drop, &mask, biased);
    }
}

fn copies(b: &Bench, rows: usize, cols: usize) {
    let x = b.normal(rows, cols);
    for dtype in [DType::F32, DType::BF16] {
        let y = b.blank(rows, cols, dtype);
        b.run(op::Copy { x: x.on, y: y.set() });
        b.expect("copy", y, || x.x.clone());
        let old = b.normal_f32(rows, cols);
        let old = b.known(rows, cols, dtype, &old.x);
        b.run(op::Copy { x: x.on, y: old.on.add() });
        b.expect("copy +=", old.on, || plus(&old.x, &x.x));
        b.run(op::Zero { x: y.set() });
        b.expect("zero", y, || vec![0.0; rows * cols]);
    }
}

fn residual(
    b: &Bench,
    rows: usize,
    cols: usize,
    drop: &Dropout,
    mask: &dyn Fn() -> Vec<f64>,
    biased: bool,
) {
    let (x, branch, bias) = (b.normal(rows, cols), b.normal(rows, cols), b.normal(1, cols));
    let bias_on = biased.then_some(bias.on);
    let y = b.blank(rows, cols, b.dtype);
    b.run(op::Residual { x: x.on, branch: branch.on, bias: bias_on, drop: *drop, y: y.set() });
    b.expect("residual", y, || {
        let bias = if biased { bias.x.clone() } else { vec![0.0; cols] };
        let sums: Vec<f64> = branch
            .x
            .chunks(cols)
            .flat_map(|row| plus(row, &bias))
            .collect();
        plus(&x.x, &times(&mask(), &sums))
    });
    let onto = b.again(&x);
    b.run(op::Residual {
        x: onto.on,
        branch: branch.on,
        bias: bias_on,
        drop: *drop,
        y: onto.on.set(),
    });
    b.same("residual in place on x", y, onto.on);
    let onto = b.again(&branch);
    b.run(op::Residual { x: x.on, branch: onto.on, bias: bias_on, drop: *drop, y: onto.on.set() });
    b.same("residual in place on branch", y, onto.on);

    let dy = b.normal(rows, cols);
    let (dbranch, dbias) = (b.blank(rows, cols, b.dtype), b.normal_f32(1, cols));
    let into = |dbias: &Known| biased.then_some(dbias.on.add());
    b.run(op::ResidualBackward {
        dy: dy.on,
        drop: *drop,
        dbranch: drop.output(dy.on, dbranch),
        dbias: into(&dbias),
    });
    b.expect("dbranch", dbranch, || times(&mask(), &dy.x));
    // The sum is of dbranch as stored.
    let stored = b.numbers(dbranch);
    if biased {
        b.expect("dbias", dbias.on, || plus(&dbias.x, &column_sums(&stored, cols)));
    }
    let (onto, dbias_onto) = (b.again(&dy), b.again(&dbias));
    b.run(op::ResidualBackward {
        dy: onto.on,
        drop: *drop,
        dbranch: drop.output(onto.on, onto.on),
        dbias: into(&dbias_onto),
    });
    b.same("residual_backward in place: dbranch", dbranch, onto.on);
    b.same("residual_backward in place: dbias", dbias.on, dbias_onto.on);
}

fn tails(b: &Bench) {
    let x: Vec<f64> = (-400..=400).map(|i| i as f64 / 20.0).collect();
    for kind in [Gelu::Tanh, Gelu::Exact] {
        let x = b.known(1, x.len(), b.dtype, &x);
        let y = b.blank(1, x.x.len(), b.dtype);
        b.run(op::Gelu { x: x.on, gelu: kind, y: y.set() });
        // Largest 20: near zero this is 4e-6 absolute at most.
        let tolerance = if b.dtype == DType::F32 { 2e-7 } else { 1.0 / 256.0 };
        let want = || x.x.iter().map(|x| gelu(kind, *x)).collect();
        b.expect_within(tolerance, "gelu", y, want);
    }
}

fn gates(b: &Bench, rows: usize, cols: usize) {
    let x = b.normal(rows, 2 * cols);
    // Gates far out on both sides.
    let mut far = x.x.clone();
    if let [gate, _, .., last, _] = &mut far[..] {
        (*gate, *last) = (-100.0, 80.0);
    }
    let x = b.known(rows, 2 * cols, b.dtype, &far);
    let of = |x: &[f64]| {
        x.chunks(2)
            .map(|pair| swiglu(pair[0], pair[1]))
            .collect::<Vec<_>>()
    };
    let y = b.blank(rows, cols, b.dtype);
    b.run(op::Swiglu { x: x.on, y: y.set() });
    b.expect("swiglu", y, || of(&x.x));
    let dy = b.normal(rows, cols);
    let dx = b.blank(rows, 2 * cols, b.dtype);
    b.run(op::SwigluBackward { dy: dy.on, x: x.on, dx: dx.set() });
    b.expect("swiglu_backward", dx, || {
        let pairs = x.x.chunks(2).zip(&dy.x);
        pairs
            .flat_map(|(pair, dy)| slopes(pair, |pair| of(pair)[0] * dy))
            .collect()
    });
}

fn fraction(b: &Bench) {
    let (rows, cols) = (200, 500);
    let ones = b.known(rows, cols, b.dtype, &vec![1.0; rows * cols]);
    let drop = b.dropout(0.1, FIRST, 50, 0);
    b.run(op::Dropout { x: ones.on, drop, y: ones.on.set() });
    let kept = b.numbers(ones.on).iter().filter(|x| **x != 0.0).count() as f64;
    // Six standard deviations of 100,000 draws.
    assert!((kept / (rows * cols) as f64 - 0.9).abs() < 0.006, "{kept} kept");
    b.expect("dropout of ones", ones.on, || dropout_matrix(&drop, FIRST, rows, cols));
}
