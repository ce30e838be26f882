//! Queries and keys before attention: a norm of each head, then RoPE.

use super::Cuda;
use super::args;
use super::elementwise::add_parts;
use super::launch::{Grid, typed};
use crate::{QueryKey, Tensor, op};
use std::ptr::{null, null_mut};

/// Warps of a block, each with a head of a row.
const WARPS: usize = 8;

/// Heads of rows that a block of backward has at least, and blocks to have work for a whole GPU.
const CHUNK: usize = 64;
const BLOCKS: usize = 1056;

pub(super) fn forward(cuda: &Cuda, &op::QueryKey { qkv, how, y }: &op::QueryKey) {
    let arguments = arguments(qkv, &how, qkv, y.to);
    let grid = Grid::line(number(qkv, &how).div_ceil(WARPS), 32 * WARPS);
    cuda.launch(typed!("query_key", qkv.dtype), grid, arguments);
}

pub(super) fn backward(cuda: &Cuda, op: &op::QueryKeyBackward) {
    let op::QueryKeyBackward { dy, qkv, how, dx, dquery, dkey } = *op;
    let (all, d) = (number(qkv, &how), how.heads.dim);
    let chunk = all.div_ceil(BLOCKS).max(CHUNK);
    let blocks = all.div_ceil(chunk).max(1);
    let parts = how.norm.map(|_| cuda.scratch(blocks * 2 * d * size_of::<f32>()));
    let arguments = args::QueryKey {
        dy: dy.addr() as _,
        parts: parts.map_or(null_mut(), |parts| parts as _),
        chunk: chunk as u32,
        ..arguments(qkv, &how, dy, dx.to)
    };
    let grid = Grid::line(blocks, 32 * WARPS);
    cuda.launch(typed!("query_key_backward", qkv.dtype), grid, arguments);
    for (i, out) in dquery.into_iter().chain(dkey).enumerate() {
        let parts = arguments.parts as usize + i * d * size_of::<f32>();
        add_parts(cuda, parts, 2 * d, blocks, out);
    }
}

/// Heads of all rows: of queries, keys and values.
fn number(qkv: Tensor, how: &QueryKey) -> usize {
    qkv.rows * (how.heads.query + 2 * how.heads.kv)
}

/// Arguments that forward and backward share. Values are copied unless `to` is `from`.
fn arguments(qkv: Tensor, how: &QueryKey, from: Tensor, to: Tensor) -> args::QueryKey {
    let (norm, rotation) = (how.norm, how.rotation);
    args::QueryKey {
        qkv: qkv.addr() as _,
        dy: null(),
        to: to.addr() as _,
        query_scale: norm.map_or(null(), |norm| norm.query.addr() as _),
        key_scale: norm.map_or(null(), |norm| norm.key.addr() as _),
        positions: rotation.map_or(null(), |rotation| rotation.positions.addr() as _),
        table: rotation.map_or(null(), |rotation| rotation.table.addr() as _),
        parts: null_mut(),
        rows: qkv.rows as u64,
        heads: how.heads.query as u32,
        kv: how.heads.kv as u32,
        d: how.heads.dim as u32,
        chunk: 0,
        eps: norm.map_or(0.0, |norm| norm.eps),
        copy: (from != to).into(),
    }
}
