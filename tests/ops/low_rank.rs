//! The guarded axpy, and orthonormal columns.

use crate::bench::{Bench, Known};
use crate::reference::dot;
use crate::{Case, case};
use gptrain::base::DType;
use gptrain::device::{InPlace, op};

pub fn table() -> Vec<Case> {
    vec![
        case("axpy, 1 element", |b| axpy(b, 1)),
        case("axpy, 4,004 elements", |b| axpy(b, 4_004)),
        case("axpy, 40,001 elements", |b| axpy(b, 40_001)),
        case("orthogonalize", orthogonalize),
        case("orthogonalize what is of lower rank", lower_rank),
    ]
}

pub fn axpy(b: &Bench, len: usize) {
    let (x, y) = (b.normal_f32(1, len), b.normal_f32(1, len));
    let factor = |value: f64| b.known(1, 1, DType::F32, &[value]).on;
    let plus = |by: f64| {
        x.x.iter()
            .zip(&y.x)
            .map(|(x, y)| by * x + y)
            .collect::<Vec<_>>()
    };
    let (onto, over) = (b.again(&y), b.blank(1, len, DType::F32));
    b.run(op::Axpy { a: -3.0, factor: factor(0.25), x: x.on, y: onto.on.add() });
    b.expect("onto y", onto.on, || plus(-0.75));
    b.run(op::Axpy { a: 2.0, factor: factor(0.25), x: x.on, y: over.set() });
    b.expect("over y", over, || x.x.iter().map(|x| 0.5 * x).collect());
    let in_place = b.again(&x);
    b.run(op::Axpy { a: 2.0, factor: factor(0.25), x: in_place.on, y: in_place.on.set() });
    b.same("in place", in_place.on, over);
    for y in [onto.on.add(), onto.on.set()] {
        b.run(op::Axpy { a: 1.0, factor: factor(f64::NAN), x: x.on, y });
        b.expect("a factor that is NaN", onto.on, || plus(-0.75));
    }
}

/// Several matrices of different shapes at once, with columns of full rank.
pub fn orthogonalize(b: &Bench) {
    let shapes = [(1, 1), (9, 4), (300, 4), (1030, 4), (70, 1), (50, 32), (33, 2), (64, 2)];
    let all: Vec<Known> = shapes
        .iter()
        .map(|(rows, cols)| b.normal_f32(*rows, *cols))
        .collect();
    let on: Vec<_> = all.iter().map(|x| x.on).collect();
    b.run(op::Orthogonalize { xs: InPlace(&on) });
    for x in &all {
        let name = format!("{} × {}", x.on.rows, x.on.cols);
        b.expect_within(1e-5, &name, x.on, || gram_schmidt(&x.x, x.on.cols));
    }
    // Orthonormal columns are unchanged.
    b.run(op::Orthogonalize { xs: InPlace(&on[1..2]) });
    b.expect_within(1e-5, "again", on[1], || gram_schmidt(&all[1].x, 4));
    let broken = b
        .known(3, 2, DType::F32, &[1.0, f64::INFINITY, 2.0, 1.0, 3.0, 1.0])
        .on;
    b.run(op::Orthogonalize { xs: InPlace(&[broken]) });
    let column = |of: usize| b.numbers(broken).into_iter().skip(of).step_by(2);
    assert!(column(0).all(f64::is_finite) && column(1).any(f64::is_nan), "an infinite number");
}

/// Columns that depend on each other, and columns of zeros: orthonormal all the same.
fn lower_rank(b: &Bench) {
    let (left, right) = (b.normal_f32(200, 3), b.normal_f32(3, 8));
    let product = |i: usize| {
        let (row, col) = (i / 8, i % 8);
        (0..3)
            .map(|k| left.x[3 * row + k] * right.x[8 * k + col])
            .sum::<f64>()
    };
    let of_rank_3 = b.known(200, 8, DType::F32, &(0..1600).map(product).collect::<Vec<_>>());
    let zeros = b.known(40, 3, DType::F32, &[0.0; 120]);
    b.run(op::Orthogonalize { xs: InPlace(&[of_rank_3.on, zeros.on]) });
    for x in [of_rank_3.on, zeros.on] {
        let (numbers, cols) = (b.numbers(x), x.cols);
        let column = |k: usize| {
            numbers
                .iter()
                .skip(k)
                .step_by(cols)
                .copied()
                .collect::<Vec<_>>()
        };
        for (j, k) in (0..cols).flat_map(|k| (0..=k).map(move |j| (j, k))) {
            let off = dot(&column(j), &column(k)) - if j == k { 1.0 } else { 0.0 };
            assert!(off.abs() < 1e-5, "columns {j} and {k} of {x:?}: {off:e}");
        }
    }
    b.expect("zeros", zeros.on, || {
        (0..120)
            .map(|i| if i / 3 == i % 3 { 1.0 } else { 0.0 })
            .collect()
    });
}

/// By its definition, in f64.
fn gram_schmidt(x: &[f64], cols: usize) -> Vec<f64> {
    let mut columns: Vec<Vec<f64>> = (0..cols)
        .map(|k| x.iter().skip(k).step_by(cols).copied().collect())
        .collect();
    for k in 0..cols {
        let (before, now) = columns.split_at_mut(k);
        for other in before {
            let by = dot(other, &now[0]);
            now[0]
                .iter_mut()
                .zip(other)
                .for_each(|(x, other)| *x -= by * *other);
        }
        let norm = dot(&now[0], &now[0]).sqrt();
        now[0].iter_mut().for_each(|x| *x /= norm);
    }
    (0..x.len()).map(|i| columns[i % cols][i / cols]).collect()
}
