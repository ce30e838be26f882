//! Backward of attention: dqkv.

use super::tile::{KEYS, QUERIES, Tile, add_weighted_rows, score_slopes, transpose};
use super::{Attention, Head, cut};
use crate::cpu::Cpu;
use crate::cpu::kernel::Product;
use crate::cpu::math::dot;
use crate::cpu::memory::{scalar, store};
use crate::{Tensor, op};
use base::{Heads, Qkv};
use std::ops::Range;

pub(in crate::cpu) fn backward(cpu: &Cpu, op: &op::AttentionBackward) {
    let op::AttentionBackward { qkv, attend, dqkv, .. } = *op;
    let all = Attention::new(qkv, &attend);
    let lengths = Buffers::lengths(attend.seq, all.d, all.wide);
    cpu.workspace
        .with(cpu.threads, lengths.iter().sum(), |scratch| {
            let Heads { query, kv, .. } = attend.heads;
            cpu.each_slot(all.samples * kv, |i, slot| {
                let first = i % kv * (query / kv);
                let heads = (first..first + query / kv).map(|head| all.head(i / kv, head));
                let owner = all.head(i / kv, first);
                // SAFETY: no other task that runs now has this slot (`each_slot`).
                let own = unsafe { scratch.part(slot) };
                let mut own = Buffers::new(own, lengths);
                owner.load(qkv, 0..attend.seq, Qkv::Key, own.k);
                owner.load(qkv, 0..attend.seq, Qkv::Value, own.v);
                own.dk.fill(0.0);
                own.dv.fill(0.0);
                for head in heads {
                    for tile in 0..attend.seq.div_ceil(QUERIES) {
                        tile_backward(&head, op, &head.tile(tile), &mut own, dqkv.to);
                    }
                }
                save(&owner, own.dk, 0..attend.seq, Qkv::Key, dqkv.to);
                save(&owner, own.dv, 0..attend.seq, Qkv::Value, dqkv.to);
            });
        });
}

struct Buffers<'a> {
    /// [seq, wide], all four.
    k: &'a mut [f32],
    v: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    /// [QUERIES, wide], all three.
    q: &'a mut [f32],
    dy: &'a mut [f32],
    dq: &'a mut [f32],
    /// [d, QUERIES], both.
    q_transposed: &'a mut [f32],
    dy_transposed: &'a mut [f32],
    /// [KEYS, QUERIES], all three.
    p: &'a mut [f32],
    dp: &'a mut [f32],
    factors: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    /// Lengths of the buffers, in their order.
    fn lengths(seq: usize, d: usize, wide: usize) -> [usize; 12] {
        let rows = seq * wide;
        let tile = QUERIES * wide;
        let columns = d * QUERIES;
        let scores = KEYS * QUERIES;
        [rows, rows, rows, rows, tile, tile, tile, columns, columns, scores, scores, scores]
    }

    fn new(scratch: &'a mut [f32], lengths: [usize; 12]) -> Buffers<'a> {
        let [k, v, dk, dv, q, dy, dq, q_transposed, dy_transposed, p, dp, factors] =
            cut(scratch, lengths);
        Buffers { k, v, dk, dv, q, dy, dq, q_transposed, dy_transposed, p, dp, factors }
    }
}

/// Contribution of one tile: stores its dq, adds to dk and dv.
fn tile_backward(
    head: &Head,
    op: &op::AttentionBackward,
    tile: &Tile,
    own: &mut Buffers,
    dqkv: Tensor,
) {
    let op::AttentionBackward { dy, qkv, y, lse, .. } = *op;
    let d = head.all.d;
    let wide = head.all.wide;
    let count = tile.queries.len();
    head.load_out(dy, tile.queries.clone(), own.dy);
    // y is only needed for Σ dy·y; the buffer of dq holds it until then.
    head.load_out(y, tile.queries.clone(), own.dq);
    let mut logs = [0.0; QUERIES];
    let mut along = [0.0; QUERIES];
    for (i, query) in tile.queries.clone().enumerate() {
        let row = i * wide..i * wide + d;
        along[i] = dot(&own.dy[row.clone()], &own.dq[row]);
        logs[i] = scalar(lse, head.lse_at(query));
    }
    head.load(qkv, tile.queries.clone(), Qkv::Query, own.q);
    transpose(own.q, wide, count, own.q_transposed);
    transpose(own.dy, wide, count, own.dy_transposed);
    own.dq.fill(0.0);
    for keys in tile.key_tiles() {
        let rows = keys.start * wide..keys.end * wide;
        let k = &own.k[rows.clone()];
        let v = &own.v[rows.clone()];
        tile.scores(k, wide, keys.len(), own.q_transposed, d, own.p);
        tile.scores(v, wide, keys.len(), own.dy_transposed, d, own.dp);
        let factors = head.factors(tile, &keys, own.factors.as_chunks_mut().0);
        let p = &mut own.p.as_chunks_mut().0[..keys.len()];
        let dp = &mut own.dp.as_chunks_mut().0[..keys.len()];
        if let Some(factors) = factors {
            super::tile::drop(factors, dp);
        }
        score_slopes(tile, keys.start, p, dp, &logs, &along);
        if let Some(factors) = factors {
            super::tile::drop(factors, p);
        }
        let over_queries = |a: &[f32], b: &[f32], c: &mut [f32]| {
            let m = keys.len();
            let n = wide;
            let k = count;
            let add = true;
            Product { m, n, k, a, a_row: QUERIES, a_depth: 1, b, b_row: wide, c, c_row: wide, add }
                .run();
        };
        over_queries(own.p, own.dy, &mut own.dv[rows.clone()]);
        over_queries(own.dp, own.q, &mut own.dk[rows]);
        add_weighted_rows(own.dp, k, count, keys.len(), wide, own.dq);
    }
    save(head, own.dq, tile.queries.clone(), Qkv::Query, dqkv);
}

/// Stores rows of a tile as rows of dqkv.
fn save(head: &Head, from: &[f32], positions: Range<usize>, which: Qkv, dqkv: Tensor) {
    for (position, from) in positions.zip(from.chunks_exact(head.all.wide)) {
        store(&from[..head.all.d], dqkv, head.at(position, which));
    }
}
