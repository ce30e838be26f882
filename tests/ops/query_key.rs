//! Queries and keys before attention: norms of heads, and RoPE.

use crate::bench::Bench;
use crate::reference::{dot, plus, rms_norm, slopes};
use crate::{Case, case};
use gptrain::base::{DType, Heads, Qkv};
use gptrain::device::{QkNorm, QueryKey, Rotation, Tensor, op};

const EPS: f32 = 1e-5;

/// Rows of the table of angles.
const POSITIONS: usize = 50;

#[derive(Clone, Copy)]
pub struct Shape {
    rows: usize,
    heads: Heads,
    normed: bool,
    rotated: bool,
}

impl Shape {
    /// With both; `serves` query heads share a key.
    pub fn new(rows: usize, query: usize, serves: usize, dim: usize) -> Shape {
        let heads = Heads { query, kv: query / serves, dim };
        Shape { rows, heads, normed: true, rotated: true }
    }
}

pub fn table() -> Vec<Case> {
    let small = Shape::new(5, 4, 2, 6);
    let shapes = [
        ("both", small),
        ("one head of two", Shape::new(1, 1, 1, 2)),
        ("groups of three", Shape::new(9, 6, 3, 4)),
        ("rotated", Shape { normed: false, ..small }),
        ("normed", Shape { rotated: false, ..small }),
        ("normed, odd", Shape { rotated: false, ..Shape::new(3, 2, 1, 5) }),
        ("head of 80", Shape::new(2, 2, 2, 80)),
    ];
    let case =
        |(name, shape)| case(format!("queries and keys, {name}"), move |b| query_key(b, shape));
    shapes.into_iter().map(case).collect()
}

pub fn query_key(b: &Bench, shape: Shape) {
    let Shape { rows, heads, normed, rotated } = shape;
    let (d, width) = (heads.dim, heads.qkv_width());
    let qkv = b.normal(rows, width);
    let scales = [0, 1].map(|_| b.normal(1, d));
    let positions: Vec<i32> = (0..rows).map(|row| (row * 7 % POSITIONS) as i32).collect();
    let angles: Vec<f64> = (0..POSITIONS)
        .flat_map(|position| row_angles(position, d))
        .collect();
    let angles = b.known(POSITIONS, d / 2 * 2, DType::F32, &angles);
    let norm = QkNorm { query: scales[0].on, key: scales[1].on, eps: EPS };
    let rotation = Rotation { positions: b.integers(rows, 1, &positions), table: angles.on };
    let transform =
        QueryKey { heads, norm: normed.then_some(norm), rotation: rotated.then_some(rotation) };
    let of_head = |x: &[f64], scale: &[f64], row: usize| {
        let x = if normed { rms_norm(x, scale, EPS as f64) } else { x.to_vec() };
        if !rotated {
            return x;
        }
        let at = positions[row] as usize * d;
        let (cos, sin) = angles.x[at..at + d].split_at(d / 2);
        let first = (0..d / 2).map(|j| x[j] * cos[j] - x[j + d / 2] * sin[j]);
        first
            .chain((0..d / 2).map(|j| x[j + d / 2] * cos[j] + x[j] * sin[j]))
            .collect()
    };
    // A norm is rounded before its weight and after it, then what is rotated.
    let tolerance = if b.dtype == DType::F32 { 4e-6 } else { 1.0 / 64.0 };

    let y = b.blank(rows, width, b.dtype);
    b.run(op::QueryKey { qkv: qkv.on, transform, y: y.set() });
    b.expect_within(tolerance, "y", y, || {
        let mut y = qkv.x.clone();
        each_head(heads, rows, |row, at, which| {
            let head = of_head(&qkv.x[at..at + d], &scales[which].x, row);
            y[at..at + d].copy_from_slice(&head);
        });
        y
    });
    let inside = b.again(&qkv);
    b.run(op::QueryKey { qkv: inside.on, transform, y: inside.on.set() });
    b.same("in place: y", y, inside.on);

    let dy = b.normal(rows, width);
    let sums = [0, 1].map(|_| b.normal_f32(1, d));
    let backward = |dy: Tensor, dx: Tensor, sums: [Tensor; 2]| {
        let [dquery, dkey] = sums.map(|sum| normed.then_some(sum.add()));
        let qkv = transform.norm.map(|_| qkv.on);
        b.run(op::QueryKeyBackward { dy, qkv, transform, dx: dx.set(), dquery, dkey });
    };
    let dx = b.blank(rows, width, b.dtype);
    let again = sums.clone().map(|sum| b.again(&sum));
    backward(dy.on, dx, sums.clone().map(|sum| sum.on));
    b.expect_within(tolerance, "dx", dx, || {
        let mut dx = dy.x.clone();
        each_head(heads, rows, |row, at, which| {
            let along = |x: &[f64]| dot(&of_head(x, &scales[which].x, row), &dy.x[at..at + d]);
            dx[at..at + d].copy_from_slice(&slopes(&qkv.x[at..at + d], along));
        });
        dx
    });
    if normed {
        for (which, name) in ["query's scale", "key's scale"].into_iter().enumerate() {
            b.expect(name, sums[which].on, || {
                let along = |scale: &[f64]| {
                    let mut sum = 0.0;
                    each_head(heads, rows, |row, at, of| {
                        let y = of_head(&qkv.x[at..at + d], scale, row);
                        sum += if of == which { dot(&y, &dy.x[at..at + d]) } else { 0.0 };
                    });
                    sum
                };
                plus(&sums[which].x, &slopes(&scales[which].x, along))
            });
        }
    }
    let onto = b.again(&dy);
    backward(onto.on, onto.on, again.clone().map(|sum| sum.on));
    b.same("in place: dx", dx, onto.on);
    b.same("again: query's scale", sums[0].on, again[0].on);
}

/// Calls with each row, the element at which one of its heads begins, and 0 for a query, 1 for a key.
fn each_head(heads: Heads, rows: usize, mut with: impl FnMut(usize, usize, usize)) {
    for row in 0..rows {
        for head in 0..heads.query {
            with(row, row * heads.qkv_width() + heads.column(head, Qkv::Query), 0);
        }
        for head in (0..heads.query).step_by(heads.query / heads.kv) {
            with(row, row * heads.qkv_width() + heads.column(head, Qkv::Key), 1);
        }
    }
}

/// Cosines, then sines.
fn row_angles(position: usize, d: usize) -> Vec<f64> {
    let angle = |j: usize| position as f64 * 100f64.powf(-2.0 * j as f64 / d as f64);
    let cosines = (0..d / 2).map(|j| angle(j).cos());
    cosines.chain((0..d / 2).map(|j| angle(j).sin())).collect()
}
