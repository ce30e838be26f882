//! Forward of attention: y and lse.

use super::tile::{KEYS, QUERIES, Softmax, Tile, add_weighted_rows, soften, transpose};
use super::{Attention, Head, cut};
use crate::cpu::Cpu;
use crate::cpu::memory::store;
use crate::{Tensor, op};
use base::Qkv;

pub(in crate::cpu) fn forward(cpu: &Cpu, &op::Attention { qkv, attend, y, lse }: &op::Attention) {
    let all = Attention::new(qkv, &attend);
    let tiles = attend.seq.div_ceil(QUERIES);
    let lengths = Buffers::lengths(all.d, all.wide);
    cpu.workspace
        .with(cpu.threads, lengths.iter().sum(), |scratch| {
            cpu.each_slot(all.samples * attend.heads.query * tiles, |i, slot| {
                let head = all.head(i / tiles / attend.heads.query, i / tiles % attend.heads.query);
                // SAFETY: no other task that runs now has this slot (`each_slot`).
                let buffers = Buffers::new(unsafe { scratch.part(slot) }, lengths);
                tile_forward(&head, qkv, &head.tile(i % tiles), buffers, y.to, lse.to);
            });
        });
}

struct Buffers<'a> {
    /// [d, QUERIES]
    q: &'a mut [f32],
    /// [KEYS, wide], both.
    k: &'a mut [f32],
    v: &'a mut [f32],
    /// Scores, then probabilities; [KEYS, QUERIES].
    p: &'a mut [f32],
    factors: &'a mut [f32],
    /// [QUERIES, wide]
    y: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    /// Lengths of the buffers, in their order.
    fn lengths(d: usize, wide: usize) -> [usize; 6] {
        let keys = KEYS * wide;
        let scores = KEYS * QUERIES;
        [d * QUERIES, keys, keys, scores, scores, QUERIES * wide]
    }

    fn new(scratch: &'a mut [f32], lengths: [usize; 6]) -> Buffers<'a> {
        let [q, k, v, p, factors, y] = cut(scratch, lengths);
        Buffers { q, k, v, p, factors, y }
    }
}

/// Attention of the queries of one tile.
fn tile_forward(head: &Head, qkv: Tensor, tile: &Tile, own: Buffers, y: Tensor, lse: Tensor) {
    let d = head.all.d;
    let wide = head.all.wide;
    let count = tile.queries.len();
    head.load(qkv, tile.queries.clone(), Qkv::Query, own.y);
    transpose(own.y, wide, count, own.q);
    own.y.fill(0.0);
    let mut state = Softmax::new();
    for keys in tile.key_tiles() {
        head.load(qkv, keys.clone(), Qkv::Key, own.k);
        head.load(qkv, keys.clone(), Qkv::Value, own.v);
        tile.scores(own.k, wide, keys.len(), own.q, d, own.p);
        let p = &mut own.p.as_chunks_mut::<QUERIES>().0[..keys.len()];
        let factors = head.factors(tile, &keys, own.factors.as_chunks_mut().0);
        soften(tile, keys.start, p, &mut state);
        state.shrink(&mut own.y[..count * wide], wide);
        if let Some(factors) = factors {
            super::tile::drop(factors, p);
        }
        add_weighted_rows(own.p, own.v, count, keys.len(), wide, own.y);
    }
    for (i, query) in tile.queries.clone().enumerate() {
        let (factor, log_sum) = state.finish(i);
        let row = &mut own.y[i * wide..i * wide + d];
        row.iter_mut().for_each(|y| *y *= factor);
        store(row, y, head.out(query));
        store(&[log_sum], lse, head.lse_at(query));
    }
}
