//! Self-attention, one head of one sample at a time.

use super::Cpu;
use super::elementwise::Mask;
use super::math::{self, add_scaled, dot, exp_scaled, maximum, sum_exp, vectorised};
use super::memory::{clear, integer, load, scalar, store};
use crate::base::{DType, div_exact};
use crate::device::{Attend, Out, Tensor, Visible};
use std::ops::Range;

/// One head of one sample.
struct Head<'a> {
    how: &'a Attend,
    mask: Mask,
    sample: usize,
    head: usize,
    /// Width of a head.
    d: usize,
}

impl<'a> Head<'a> {
    fn new(how: &'a Attend, i: usize, d: usize) -> Head<'a> {
        let (sample, head) = (i / how.heads, i % how.heads);
        Head { how, mask: Mask::new(&how.dropout), sample, head, d }
    }

    fn row(&self, query: usize) -> usize {
        self.sample * self.how.seq + query
    }

    /// The keys a query sees.
    fn keys(&self, query: usize) -> Range<usize> {
        match self.how.visible {
            Visible::Causal => 0..query + 1,
            Visible::Ranges(ranges) => {
                let bound = |i| integer(ranges, 2 * self.row(query) + i).max(0) as usize;
                let end = bound(1).min(self.how.seq);
                bound(0).min(end)..end
            }
        }
    }

    /// Element of qkv at which this head's query (0), key (1) or value (2) starts.
    fn at(&self, row: usize, which: usize) -> usize {
        (row * self.how.heads + self.head) * 3 * self.d + which * self.d
    }

    /// Element of y at which this head starts.
    fn out(&self, row: usize) -> usize {
        (row * self.how.heads + self.head) * self.d
    }

    fn load_all(&self, qkv: Tensor, which: usize, to: &mut [f32]) {
        for (i, to) in to.chunks_exact_mut(self.d).enumerate() {
            load(qkv, self.at(self.row(i), which), to);
        }
    }

    /// Scores of a query with the keys it sees.
    fn scores(&self, query: usize, keys: Range<usize>, q: &[f32], k: &[f32], to: &mut [f32]) {
        let scale = 1.0 / (self.d as f32).sqrt();
        let slope = self.how.slopes.map_or(0.0, |slopes| scalar(slopes, self.head));
        for (score, key) in to.iter_mut().zip(keys) {
            let distance = key as f32 - query as f32;
            *score = dot(q, &k[key * self.d..(key + 1) * self.d]).mul_add(scale, slope * distance);
        }
    }

    /// What dropout multiplies the probabilities of these keys with.
    fn factors<'b>(&self, query: usize, keys: Range<usize>, to: &'b mut [f32]) -> &'b [f32] {
        let start = keys.start / 4 * 4;
        let head = self.how.first_head + self.head;
        self.mask.factors(self.row(query), head, start, &mut to[..keys.end - start]);
        &to[keys.start - start..keys.end - start]
    }
}

pub(super) fn forward(cpu: &Cpu, qkv: Tensor, how: &Attend, y: Out, lse: Out) {
    let (samples, d) = shape(qkv, how, y.to, lse.to);
    assert!(!y.add && !lse.add, "attention overwrites");
    let plane = how.seq * d;
    cpu.workspace.with(cpu.threads, 2 * plane + 2 * d + 2 * how.seq + 4, |scratch| {
        cpu.each_slot(samples * how.heads, |i, slot| {
            let head = Head::new(how, i, d);
            // SAFETY: the slot is this task's.
            let own = unsafe { scratch.part(slot) };
            let (k, own) = own.split_at_mut(plane);
            let (v, own) = own.split_at_mut(plane);
            let (q, own) = own.split_at_mut(d);
            let (sum, own) = own.split_at_mut(d);
            let (row_scores, factors) = own.split_at_mut(how.seq);
            head.load_all(qkv, 1, k);
            head.load_all(qkv, 2, v);
            for query in 0..how.seq {
                let (row, keys) = (head.row(query), head.keys(query));
                let place = row * how.heads + head.head;
                if keys.is_empty() {
                    clear(y.to, head.out(row), d);
                    store(&[f32::NEG_INFINITY], lse.to, place);
                    continue;
                }
                load(qkv, head.at(row, 0), q);
                let p = &mut row_scores[..keys.len()];
                head.scores(query, keys.clone(), q, k, p);
                let largest = maximum(p);
                let total = sum_exp(p, largest);
                store(&[largest + total.ln()], lse.to, place);
                exp_scaled(p, largest, 1.0 / total);
                if head.mask.any() {
                    math::multiply(head.factors(query, keys.clone(), factors), p);
                }
                sum.fill(0.0);
                for (p, v) in p.iter().zip(v[keys.start * d..].chunks_exact(d)) {
                    add_scaled(*p, v, sum);
                }
                store(sum, y.to, head.out(row));
            }
        });
    });
}

/// `inputs` are dy, qkv, y and lse.
pub(super) fn backward(cpu: &Cpu, inputs: [Tensor; 4], how: &Attend, dqkv: Out) {
    let [dy, qkv, y, lse] = inputs;
    let (samples, d) = shape(qkv, how, y, lse);
    assert_eq!((dy.rows, dy.cols), (y.rows, y.cols), "dy and y");
    assert_eq!((dqkv.to.rows, dqkv.to.cols, dqkv.add), (qkv.rows, qkv.cols, false), "dqkv");
    let plane = how.seq * d;
    cpu.workspace.with(cpu.threads, 4 * plane + 4 * d + 3 * how.seq + 4, |scratch| {
        cpu.each_slot(samples * how.heads, |i, slot| {
            let head = Head::new(how, i, d);
            // SAFETY: the slot is this task's.
            let own = unsafe { scratch.part(slot) };
            let (k, own) = own.split_at_mut(plane);
            let (v, own) = own.split_at_mut(plane);
            let (dk, own) = own.split_at_mut(plane);
            let (dv, own) = own.split_at_mut(plane);
            dk.fill(0.0);
            dv.fill(0.0);
            head.load_all(qkv, 1, k);
            head.load_all(qkv, 2, v);
            for query in 0..how.seq {
                let keys = head.keys(query);
                if keys.is_empty() {
                    clear(dqkv.to, head.at(head.row(query), 0), d);
                } else {
                    query_backward(&head, [dy, qkv, y, lse], query, [k, v], [dk, dv], own, dqkv.to);
                }
            }
            for key in 0..how.seq {
                let own = key * d..(key + 1) * d;
                store(&dk[own.clone()], dqkv.to, head.at(head.row(key), 1));
                store(&dv[own], dqkv.to, head.at(head.row(key), 2));
            }
        });
    });
}

/// One query's part: stores dq, adds to dk and dv.
fn query_backward(
    head: &Head,
    [dy, qkv, y, lse]: [Tensor; 4],
    query: usize,
    [k, v]: [&[f32]; 2],
    [dk, dv]: [&mut [f32]; 2],
    own: &mut [f32],
    dqkv: Tensor,
) {
    let (d, row, keys) = (head.d, head.row(query), head.keys(query));
    let (q, own) = own.split_at_mut(d);
    let (dq, own) = own.split_at_mut(d);
    let (g, own) = own.split_at_mut(d);
    let (out, own) = own.split_at_mut(d);
    let (p, own) = own.split_at_mut(head.how.seq);
    let (ds, factors) = own.split_at_mut(head.how.seq);
    let (p, ds) = (&mut p[..keys.len()], &mut ds[..keys.len()]);
    load(qkv, head.at(row, 0), q);
    load(dy, head.out(row), g);
    load(y, head.out(row), out);
    let along = dot(g, out);
    head.scores(query, keys.clone(), q, k, p);
    exp_scaled(p, scalar(lse, row * head.how.heads + head.head), 1.0);
    for (ds, v) in ds.iter_mut().zip(v[keys.start * d..].chunks_exact(d)) {
        *ds = dot(g, v);
    }
    let scale = 1.0 / (d as f32).sqrt();
    dq.fill(0.0);
    let factors = head.mask.any().then(|| head.factors(query, keys.clone(), factors));
    if let Some(factors) = factors {
        math::multiply(factors, ds);
    }
    score_slopes(p, along, scale, ds);
    if let Some(factors) = factors {
        math::multiply(factors, p);
    }
    for (i, key) in keys.enumerate() {
        let part = key * d..(key + 1) * d;
        add_scaled(ds[i], &k[part.clone()], dq);
        add_scaled(ds[i], q, &mut dk[part.clone()]);
        add_scaled(p[i], g, &mut dv[part]);
    }
    store(dq, dqkv, head.at(row, 0));
}

vectorised! {
    /// dp = scale·p·(dp − along)
    fn score_slopes(p: &[f32], along: f32, scale: f32, dp: &mut [f32]) {
        for (p, dp) in p.iter().zip(dp) {
            *dp = scale * p * (*dp - along);
        }
    }
}

/// Samples in qkv, and the width of a head.
fn shape(qkv: Tensor, how: &Attend, y: Tensor, lse: Tensor) -> (usize, usize) {
    let d = div_exact(qkv.cols, 3 * how.heads);
    assert_eq!((y.rows, y.cols), (qkv.rows, how.heads * d), "y");
    assert_eq!((lse.rows, lse.cols, lse.dtype), (qkv.rows, how.heads, DType::F32), "lse");
    if let Visible::Ranges(ranges) = how.visible {
        assert_eq!((ranges.rows, ranges.cols), (qkv.rows, 2), "visible ranges");
    }
    if let Some(slopes) = how.slopes {
        assert_eq!(slopes.numel(), how.heads, "slopes");
    }
    (div_exact(qkv.rows, how.seq), d)
}
