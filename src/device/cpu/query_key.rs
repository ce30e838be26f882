//! Queries and keys before attention: an RMS norm of each head (Qwen3), then RoPE (Su et al. 2021).

use super::Cpu;
use super::math;
use super::memory::{BLOCK, Block, integer, load, round, store};
use crate::{Out, QkNorm, QueryKey, Rotation, Tensor, op};
use base::Qkv;

pub(super) fn forward(cpu: &Cpu, op: &op::QueryKey) {
    let op::QueryKey { qkv, ref transform, y } = *op;
    let d = transform.heads.dim;
    let all = Columns::new(transform);
    cpu.each_rows(qkv.rows, qkv.cols, |rows| {
        let [mut x, mut scale, mut angles]: [Block; 3] = [[0.0; BLOCK]; 3];
        let x = &mut x[..d];
        for row in rows {
            let angles = row_angles(transform, row, &mut angles);
            for (column, which) in all.queries_and_keys() {
                load(qkv, row * qkv.cols + column, x);
                if let Some(norm) = transform.norm {
                    math::scale(root(x, norm.eps), x);
                    round(qkv.dtype, x);
                    load(weights(&norm, which), 0, &mut scale[..d]);
                    math::multiply(&scale[..d], x);
                    round(qkv.dtype, x);
                }
                if let Some((cos, sin)) = angles {
                    let (a, b) = x.split_at_mut(d / 2);
                    math::rotate(cos, sin, a, b);
                }
                store(x, y.to, row * qkv.cols + column);
            }
            all.copy_values(qkv, y.to, row, x);
        }
    });
}

pub(super) fn backward(cpu: &Cpu, op: &op::QueryKeyBackward) {
    let op::QueryKeyBackward { dy, qkv, ref transform, dx, dquery, dkey } = *op;
    let outs: Vec<Out> = dquery.into_iter().chain(dkey).collect();
    let d = transform.heads.dim;
    let all = Columns::new(transform);
    cpu.sum_rows(dy.rows, d, &outs, |rows, sums| {
        let [mut g, mut x, mut scale, mut angles]: [Block; 4] = [[0.0; BLOCK]; 4];
        let g = &mut g[..d];
        let x = &mut x[..d];
        let scale = &mut scale[..d];
        for row in rows {
            let angles = row_angles(transform, row, &mut angles);
            for (column, which) in all.queries_and_keys() {
                let at = row * dy.cols + column;
                load(dy, at, g);
                if let Some((cos, sin)) = angles {
                    let (a, b) = g.split_at_mut(d / 2);
                    math::rotate_back(cos, sin, a, b);
                }
                if let (Some(norm), Some(qkv)) = (transform.norm, qkv) {
                    load(qkv, at, x);
                    load(weights(&norm, which), 0, scale);
                    let rstd = root(x, norm.eps);
                    math::scale(rstd, x);
                    let first = if which == Qkv::Query { 0 } else { d };
                    math::rms_backward(g, x, scale, &mut sums[first..first + d], rstd);
                }
                store(g, dx.to, at);
            }
            all.copy_values(dy, dx.to, row, g);
        }
    });
}

/// Columns of a row of qkv at which the heads' queries, keys and values start.
struct Columns {
    queries_and_keys: Vec<(usize, Qkv)>,
    values: Vec<usize>,
}

impl Columns {
    fn new(transform: &QueryKey) -> Columns {
        let heads = transform.heads;
        let each = |which, step| {
            (0..heads.query)
                .step_by(step)
                .map(move |head| (heads.column(head, which), which))
        };
        let serves = heads.query / heads.kv;
        let queries_and_keys = each(Qkv::Query, 1).chain(each(Qkv::Key, serves)).collect();
        let values = each(Qkv::Value, serves).map(|(column, _)| column).collect();
        Columns { queries_and_keys, values }
    }

    fn queries_and_keys(&self) -> impl Iterator<Item = (usize, Qkv)> {
        self.queries_and_keys.iter().copied()
    }

    fn copy_values(&self, from: Tensor, to: Tensor, row: usize, buffer: &mut [f32]) {
        if from != to {
            for column in &self.values {
                load(from, row * from.cols + column, buffer);
                store(buffer, to, row * from.cols + column);
            }
        }
    }
}

/// Cosines and sines of a row's position; None without RoPE.
fn row_angles<'a>(
    transform: &QueryKey,
    row: usize,
    angles: &'a mut Block,
) -> Option<(&'a [f32], &'a [f32])> {
    let Rotation { positions, table } = transform.rotation?;
    let angles = &mut angles[..table.cols];
    load(table, integer(positions, row) as usize * table.cols, angles);
    Some(angles.split_at(table.cols / 2))
}

fn weights(norm: &QkNorm, which: Qkv) -> Tensor {
    if which == Qkv::Query { norm.query } else { norm.key }
}

/// 1/√(mean of x² + eps)
fn root(x: &[f32], eps: f32) -> f32 {
    let mean = math::square_deviations(x, 0.0) as f64 / x.len() as f64;
    (1.0 / (mean + eps as f64).sqrt()) as f32
}
