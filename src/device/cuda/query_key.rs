//! Queries and keys before attention: a norm of each head, then RoPE.

use super::Cuda;
use super::args::{self, arguments};
use super::elementwise::add_parts;
use super::launch::{Grid, typed};
use crate::{QueryKey, Tensor, op};
use std::ptr::{null, null_mut};

/// Warps of a block, one per head of a row.
pub(super) const WARPS: usize = 8;

/// Minimum heads of a block of backward, over all rows, and number of blocks that occupy a whole GPU.
const CHUNK: usize = 64;
const BLOCKS: usize = 1056;

pub(super) fn forward(cuda: &Cuda, &op::QueryKey { qkv, transform, y }: &op::QueryKey) {
    let arguments = shared_arguments(Some(qkv), &transform, qkv, y.to);
    let grid = Grid::line(count_heads(qkv, &transform).div_ceil(WARPS), 32 * WARPS);
    cuda.launch(typed!("query_key", qkv.dtype), grid, arguments);
}

pub(super) fn backward(cuda: &Cuda, op: &op::QueryKeyBackward) {
    let op::QueryKeyBackward { dy, qkv, transform, dx, dquery, dkey } = *op;
    let all = count_heads(dy, &transform);
    let d = transform.heads.dim;
    let chunk = all.div_ceil(BLOCKS).max(CHUNK);
    let blocks = all.div_ceil(chunk).max(1);
    let parts = transform
        .norm
        .map(|_| cuda.scratch(blocks * 2 * d * size_of::<f32>()));
    let common = shared_arguments(qkv, &transform, dy, dx.to);
    let arguments = arguments!(QueryKey { dy, parts: parts.unwrap_or(0), chunk, ..common });
    let grid = Grid::line(blocks, 32 * WARPS);
    cuda.launch(typed!("query_key_backward", dy.dtype), grid, arguments);
    add_parts(cuda, arguments.parts as usize, 2 * d, blocks, [dquery, dkey]);
}

/// Heads of all rows: of queries, keys and values.
fn count_heads(qkv: Tensor, transform: &QueryKey) -> usize {
    qkv.rows * (transform.heads.query + 2 * transform.heads.kv)
}

/// Arguments that forward and backward share. Values are copied unless `to` is `from`.
fn shared_arguments(
    qkv: Option<Tensor>,
    transform: &QueryKey,
    from: Tensor,
    to: Tensor,
) -> args::QueryKey {
    let norm = transform.norm;
    let rotation = transform.rotation;
    arguments!(QueryKey {
        qkv,
        dy: null(),
        to,
        query_scale: norm.map(|norm| norm.query),
        key_scale: norm.map(|norm| norm.key),
        positions: rotation.map(|rotation| rotation.positions),
        table: rotation.map(|rotation| rotation.table),
        parts: null_mut(),
        rows: from.rows,
        heads: transform.heads.query,
        kv: transform.heads.kv,
        d: transform.heads.dim,
        chunk: 0u32,
        eps: norm.map_or(0.0, |norm| norm.eps),
        copy: from != to,
    })
}
