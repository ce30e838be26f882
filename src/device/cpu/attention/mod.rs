//! Self-attention in tiles: the scores of a query are never held for more than `KEYS` keys.
//!
//! Forward is FlashAttention's online softmax (Dao et al. 2022), with one task per `QUERIES`
//! queries of a head. Backward rebuilds the probabilities from lse, with one task per key/value
//! head, which adds up the contributions of its query heads one after the other. Scores are stored
//! key by key with a query in each lane, so the maximum and sum of a query need no sum across
//! lanes. Keys that no query of a tile sees are skipped.

mod backward;
mod forward;
mod tile;

pub(super) use backward::backward;
pub(super) use forward::forward;

use super::dropout::Mask;
use super::kernel::COLUMNS;
use super::memory::{integer, load, scalar};
use crate::{Attend, Tensor, Visible};
use base::Qkv;
use std::ops::Range;
use tile::{QUERIES, Tile, dropout_tile};

/// State of one call of the op, shared by all heads and samples.
struct Attention<'a> {
    attend: &'a Attend,
    mask: Mask,
    samples: usize,
    /// Width of a head, and of its row in a tile.
    d: usize,
    wide: usize,
}

impl<'a> Attention<'a> {
    fn new(qkv: Tensor, attend: &'a Attend) -> Attention<'a> {
        let samples = attend.samples(qkv.rows);
        let d = attend.heads.dim;
        let mask = Mask::new(&attend.dropout);
        let wide = d.next_multiple_of(COLUMNS);
        Attention { attend, mask, samples, d, wide }
    }

    fn head(&self, sample: usize, head: usize) -> Head<'_> {
        let slope = self
            .attend
            .slopes
            .map_or(0.0, |slopes| scalar(slopes, head));
        Head { all: self, sample, head, slope }
    }
}

/// One head of one sample.
struct Head<'a> {
    all: &'a Attention<'a>,
    sample: usize,
    head: usize,
    /// Slope of ALiBi.
    slope: f32,
}

impl Head<'_> {
    fn row(&self, position: usize) -> usize {
        self.sample * self.all.attend.seq + position
    }

    /// Element of qkv at which a position's query, key or value starts.
    fn at(&self, position: usize, which: Qkv) -> usize {
        let heads = self.all.attend.heads;
        self.row(position) * heads.qkv_width() + heads.column(self.head, which)
    }

    /// Element of y at which a position starts.
    fn out(&self, position: usize) -> usize {
        self.lse_at(position) * self.all.d
    }

    /// Element of lse of a position.
    fn lse_at(&self, position: usize) -> usize {
        self.row(position) * self.all.attend.heads.query + self.head
    }

    /// Keys visible to a query.
    fn keys(&self, query: usize) -> Range<usize> {
        let attend = self.all.attend;
        let oldest = attend
            .window
            .map_or(0, |window| (query + 1).saturating_sub(window));
        match attend.visible {
            Visible::Causal => oldest..query + 1,
            Visible::Ranges(ranges) => {
                let bound = |i| integer(ranges, 2 * self.row(query) + i).max(0) as usize;
                let end = bound(1).min(attend.seq);
                bound(0).max(oldest).min(end)..end
            }
        }
    }

    /// Queries of a tile and their visible keys.
    fn tile(&self, tile: usize) -> Tile {
        let first = tile * QUERIES;
        let queries = first..self.all.attend.seq.min(first + QUERIES);
        Tile::new(queries, self.all.attend.scale, self.slope, |query| self.keys(query))
    }

    /// Loads rows of qkv into rows of a tile.
    fn load(&self, qkv: Tensor, positions: Range<usize>, which: Qkv, to: &mut [f32]) {
        for (position, to) in positions.zip(to.chunks_exact_mut(self.all.wide)) {
            load(qkv, self.at(position, which), &mut to[..self.all.d]);
        }
    }

    /// Loads rows of y or dy into rows of a tile.
    fn load_out(&self, y: Tensor, positions: Range<usize>, to: &mut [f32]) {
        for (position, to) in positions.zip(to.chunks_exact_mut(self.all.wide)) {
            load(y, self.out(position), &mut to[..self.all.d]);
        }
    }

    /// Dropout factors of a tile's probabilities; None without dropout.
    fn factors<'b>(
        &self,
        tile: &Tile,
        keys: &Range<usize>,
        factors: &'b mut [[f32; QUERIES]],
    ) -> Option<&'b [[f32; QUERIES]]> {
        self.all.mask.any().then(|| {
            let head = self.all.attend.first_head + self.head;
            let row = self.row(tile.queries.start);
            let whole = &mut factors[..keys.len().next_multiple_of(4)];
            let (index, bound, kept) = self.all.mask.tile(row, head, keys.start);
            dropout_tile(&index, bound, kept, whole);
            &factors[..keys.len()]
        })
    }
}

/// Splits scratch into parts of these lengths.
fn cut<const N: usize>(mut scratch: &mut [f32], lengths: [usize; N]) -> [&mut [f32]; N] {
    lengths.map(|len| {
        scratch
            .split_off_mut(..len)
            .expect("scratch is as long as its parts")
    })
}
