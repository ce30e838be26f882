//! Self-attention.

use crate::bench::{Bench, Known};
use crate::reference::{dot, dropout, slopes};
use crate::{Case, case};
use gptrain::base::{DType, Heads, Qkv};
use gptrain::device::{Attend, Dropout, Visible, op};

/// Number of the first sample in the run.
const FIRST: i64 = 5;

#[derive(Clone, Copy)]
pub enum Mask {
    Causal,
    /// The first keys are seen by all queries, the rest is causal.
    Prefix(usize),
    /// Causal inside documents of that length.
    Documents(usize),
    /// Any ranges: empty ones, one key, all keys, keys after the query.
    Ragged,
}

#[derive(Clone, Copy)]
pub struct Shape {
    samples: usize,
    seq: usize,
    heads: usize,
    /// Query heads that share a key and a value.
    serves: usize,
    d: usize,
    mask: Mask,
    window: Option<usize>,
    alibi: bool,
    rate: f32,
    /// Scores grow with this.
    spread: f64,
    /// Factor of scores; None: 1/√d.
    scale: Option<f32>,
}

impl Shape {
    pub fn new(samples: usize, seq: usize, heads: usize, d: usize) -> Shape {
        let mask = Mask::Causal;
        let (window, alibi, rate, spread, scale) = (None, false, 0.0, 1.0, None);
        Shape { samples, seq, heads, serves: 1, d, mask, window, alibi, rate, spread, scale }
    }

    pub fn grouped(self, serves: usize) -> Shape {
        Shape { serves, ..self }
    }

    pub fn within(self, window: usize) -> Shape {
        Shape { window: Some(window), ..self }
    }

    fn scale(self) -> f32 {
        self.scale.unwrap_or(1.0 / (self.d as f32).sqrt())
    }

    fn heads(self) -> Heads {
        Heads { query: self.heads, kv: self.heads / self.serves, dim: self.d }
    }

    pub fn masked(self, mask: Mask) -> Shape {
        Shape { mask, ..self }
    }

    pub fn with_alibi(self) -> Shape {
        Shape { alibi: true, ..self }
    }

    pub fn dropping(self, rate: f32) -> Shape {
        Shape { rate, ..self }
    }
}

pub fn table() -> Vec<Case> {
    let small = Shape::new(2, 17, 2, 8);
    let shapes = [
        ("one query", Shape::new(1, 1, 1, 1)),
        ("one query, wide", Shape::new(3, 1, 2, 40)),
        ("causal", small),
        ("head of 40", Shape::new(1, 9, 2, 40)),
        ("head of 1", Shape::new(1, 33, 1, 1)),
        ("head of 5, alibi", Shape { alibi: true, ..Shape::new(1, 19, 3, 5) }),
        ("prefix", Shape { mask: Mask::Prefix(5), ..small }),
        ("documents", Shape { mask: Mask::Documents(6), ..small }),
        ("ragged", Shape { mask: Mask::Ragged, ..small }),
        ("dropout", Shape { rate: 0.1, ..small }),
        ("of another scale", Shape { scale: Some(0.75), alibi: true, ..small }),
        ("sharp", Shape { spread: 6.0, ..small }),
        ("all", Shape { mask: Mask::Ragged, alibi: true, rate: 0.1, ..Shape::new(2, 21, 3, 6) }),
        ("several tiles", Shape::new(1, 100, 1, 1)),
        ("groups of three", Shape::new(2, 13, 6, 4).grouped(3)),
        ("one key for all", Shape::new(1, 11, 5, 3).grouped(5).dropping(0.1)),
        ("window", small.within(4)),
        ("window of one", Shape::new(1, 9, 2, 4).within(1)),
        ("window, several tiles", Shape::new(1, 100, 1, 1).within(37)),
        ("window and prefix", small.masked(Mask::Prefix(9)).within(5)),
        (
            "window, groups, documents",
            Shape {
                mask: Mask::Documents(7),
                alibi: true,
                ..Shape::new(1, 19, 4, 3).grouped(2).within(4)
            },
        ),
        (
            "several tiles, all",
            Shape { mask: Mask::Ragged, alibi: true, rate: 0.1, ..Shape::new(1, 97, 1, 2) },
        ),
    ];
    shapes
        .into_iter()
        .map(|(name, shape)| case(format!("attention, {name}"), move |b| attention(b, shape)))
        .collect()
}

pub fn attention(b: &Bench, shape: Shape) {
    let Shape { samples, seq, heads, d, alibi, rate, spread, .. } = shape;
    let (rows, all) = (samples * seq, shape.heads());
    let normal = b.normal_f32(rows, all.qkv_width()).x;
    let spread: Vec<f64> = normal.into_iter().map(|x| x * spread).collect();
    let qkv = b.known(rows, all.qkv_width(), b.dtype, &spread);
    let ranges: Vec<[i32; 2]> = (0..rows)
        .map(|row| range(shape.mask, seq, row % seq))
        .collect();
    let slopes_of_heads: Vec<f64> = (0..heads).map(|h| 0.5f64.powi(h as i32 + 1)).collect();
    let drop = b.dropout(rate, FIRST, seq, 0);
    let attend = Attend {
        heads: all,
        first_head: 4,
        scale: shape.scale(),
        seq,
        visible: match shape.mask {
            Mask::Causal => Visible::Causal,
            _ => Visible::Ranges(b.integers(rows, 2, ranges.as_flattened())),
        },
        window: shape.window,
        slopes: alibi.then(|| b.known(1, heads, DType::F32, &slopes_of_heads).on),
        dropout: drop,
    };
    let definition = Definition { shape, ranges, slopes: slopes_of_heads, drop };

    let (y, lse) = (b.blank(rows, heads * d, b.dtype), b.blank(rows, heads, DType::F32));
    b.run(op::Attention { qkv: qkv.on, attend, y: y.set(), lse: lse.set() });
    b.expect("y", y, || definition.compute(&qkv.x).0);
    b.expect("lse", lse, || definition.compute(&qkv.x).1);

    let dy = b.normal(rows, heads * d);
    let dqkv = b.blank(rows, all.qkv_width(), b.dtype);
    b.run(op::AttentionBackward { dy: dy.on, qkv: qkv.on, y, lse, attend, dqkv: dqkv.set() });
    // The backward takes y as rounded: in bf16 this adds once more its rounding.
    let tolerance = if b.dtype == DType::F32 { 6e-6 } else { 1.0 / 128.0 };
    b.expect_within(tolerance, "dqkv", dqkv, || definition.slopes(&qkv, &dy));
}

fn range(mask: Mask, seq: usize, query: usize) -> [i32; 2] {
    let ends = match mask {
        Mask::Causal => [0, query + 1],
        Mask::Prefix(prefix) => [0, prefix.max(query + 1)],
        Mask::Documents(len) => [query / len * len, query + 1],
        Mask::Ragged => match query % 5 {
            0 => [query / 2, query / 2],
            1 => [seq - 1, seq],
            2 => [0, seq],
            3 => [query / 3, query],
            _ => [query, seq],
        },
    };
    ends.map(|end| end as i32)
}

struct Definition {
    shape: Shape,
    ranges: Vec<[i32; 2]>,
    slopes: Vec<f64>,
    drop: Dropout,
}

impl Definition {
    /// y and lse of qkv.
    fn compute(&self, qkv: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (mut y, mut lse) = (Vec::new(), Vec::new());
        for row in 0..self.shape.samples * self.shape.seq {
            for head in 0..self.shape.heads {
                let (y_here, lse_here) = self.query(qkv, row, head);
                y.extend(y_here);
                lse.push(lse_here);
            }
        }
        (y, lse)
    }

    fn query(&self, qkv: &[f64], row: usize, head: usize) -> (Vec<f64>, f64) {
        let Shape { seq, d, alibi, rate, .. } = self.shape;
        let (first, query, heads) = (row / seq * seq, row % seq, self.shape.heads());
        let part = |row: usize, which: Qkv| {
            let at = row * heads.qkv_width() + heads.column(head, which);
            &qkv[at..at + d]
        };
        let slope = if alibi { self.slopes[head] } else { 0.0 };
        let [start, end] = self.ranges[row].map(|key| key as usize);
        let oldest = self
            .shape
            .window
            .map_or(0, |window| (query + 1).saturating_sub(window));
        let start = start.max(oldest).min(end);
        let scores: Vec<f64> = (start..end)
            .map(|key| {
                let product = dot(part(row, Qkv::Query), part(first + key, Qkv::Key));
                product * f64::from(self.shape.scale()) + slope * (key as f64 - query as f64)
            })
            .collect();
        let total: f64 = scores.iter().map(|s| s.exp()).sum();
        let mut y = vec![0.0; d];
        for (key, score) in (start..end).zip(&scores) {
            let kept = match rate {
                0.0 => 1.0,
                _ => dropout(&self.drop, FIRST, row, head + 4, key),
            };
            for (y, v) in y.iter_mut().zip(part(first + key, Qkv::Value)) {
                *y += kept * score.exp() / total * v;
            }
        }
        (y, total.ln())
    }

    /// dqkv of dy. A number of qkv moves only its own sample and the heads of its key, so that is all
    /// that is done again for it.
    fn slopes(&self, qkv: &Known, dy: &Known) -> Vec<f64> {
        let Shape { samples, seq, heads, serves, d, .. } = self.shape;
        let (width, kv) = ((serves + 2) * d, heads / serves);
        let mut dqkv = vec![0.0; qkv.x.len()];
        for (sample, key) in (0..samples).flat_map(|s| (0..kv).map(move |key| (s, key))) {
            let rows = sample * seq..(sample + 1) * seq;
            let at = |row: usize| (row * kv + key) * width;
            let own: Vec<f64> = rows
                .clone()
                .flat_map(|row| qkv.x[at(row)..at(row) + width].to_vec())
                .collect();
            let mut whole = qkv.x.clone();
            let whole = std::cell::RefCell::new(&mut whole);
            let slopes = slopes(&own, |own| {
                let mut whole = whole.borrow_mut();
                for (row, own) in rows.clone().zip(own.chunks(width)) {
                    whole[at(row)..at(row) + width].copy_from_slice(own);
                }
                let along = |row: usize, head: usize| {
                    let dy = &dy.x[(row * heads + head) * d..(row * heads + head + 1) * d];
                    dot(&self.query(&whole, row, head).0, dy)
                };
                let served = |row| (key * serves..(key + 1) * serves).map(move |h| (row, h));
                rows.clone()
                    .flat_map(served)
                    .map(|(row, head)| along(row, head))
                    .sum()
            });
            for (row, slopes) in rows.clone().zip(slopes.chunks(width)) {
                dqkv[at(row)..at(row) + width].copy_from_slice(slopes);
            }
        }
        dqkv
    }
}
