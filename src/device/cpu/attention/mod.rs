//! Self-attention in tiles: no query's scores are ever held for more than `KEYS` keys.
//!
//! Forward is FlashAttention's online softmax (Dao et al. 2022), one task per `QUERIES` queries of a
//! head; backward rebuilds the probabilities from lse, one task per head. Scores lie key by key, a
//! query in each lane, so that a query's maximum and sum need no sum across lanes. Keys that no
//! query of a tile sees cost nothing.

mod backward;
mod forward;
mod tile;

pub(super) use backward::backward;
pub(super) use forward::forward;
pub(super) use tile::{QUERIES, tile_factors};

use super::elementwise::Mask;
use super::kernel::COLUMNS;
use super::memory::{integer, load, scalar};
use crate::base::{DType, div_exact};
use crate::device::{Attend, Tensor, Visible};
use std::ops::Range;
use tile::Tile;

/// What is the same for all heads and samples.
struct Heads<'a> {
    how: &'a Attend,
    mask: Mask,
    samples: usize,
    /// Width of a head, and of its row in a tile.
    d: usize,
    wide: usize,
}

impl<'a> Heads<'a> {
    fn new(qkv: Tensor, how: &'a Attend, y: Tensor, lse: Tensor) -> Heads<'a> {
        let d = div_exact(qkv.cols, 3 * how.heads);
        assert_eq!((y.rows, y.cols), (qkv.rows, how.heads * d), "y");
        assert_eq!((lse.rows, lse.cols, lse.dtype), (qkv.rows, how.heads, DType::F32), "lse");
        if let Visible::Ranges(ranges) = how.visible {
            assert_eq!((ranges.rows, ranges.cols), (qkv.rows, 2), "visible ranges");
        }
        if let Some(slopes) = how.slopes {
            assert_eq!(slopes.numel(), how.heads, "slopes");
        }
        let samples = div_exact(qkv.rows, how.seq);
        Heads { how, mask: Mask::new(&how.dropout), samples, d, wide: d.next_multiple_of(COLUMNS) }
    }

    fn head(&self, sample: usize, head: usize) -> Head<'_> {
        let slope = self.how.slopes.map_or(0.0, |slopes| scalar(slopes, head));
        Head { all: self, sample, head, slope }
    }
}

/// One head of one sample.
struct Head<'a> {
    all: &'a Heads<'a>,
    sample: usize,
    head: usize,
    /// ALiBi's.
    slope: f32,
}

/// A head's query, key or value in a row of qkv.
#[derive(Clone, Copy)]
enum Which {
    Query,
    Key,
    Value,
}

impl Head<'_> {
    fn row(&self, position: usize) -> usize {
        self.sample * self.all.how.seq + position
    }

    /// Element of qkv at which a position's query, key or value starts.
    fn at(&self, position: usize, which: Which) -> usize {
        ((self.row(position) * self.all.how.heads + self.head) * 3 + which as usize) * self.all.d
    }

    /// Element of y at which a position starts.
    fn out(&self, position: usize) -> usize {
        (self.row(position) * self.all.how.heads + self.head) * self.all.d
    }

    /// Element of lse of a position.
    fn place(&self, position: usize) -> usize {
        self.row(position) * self.all.how.heads + self.head
    }

    /// The keys a query sees.
    fn keys(&self, query: usize) -> Range<usize> {
        match self.all.how.visible {
            Visible::Causal => 0..query + 1,
            Visible::Ranges(ranges) => {
                let bound = |i| integer(ranges, 2 * self.row(query) + i).max(0) as usize;
                let end = bound(1).min(self.all.how.seq);
                bound(0).min(end)..end
            }
        }
    }

    /// The queries of a tile and what they see.
    fn tile(&self, tile: usize) -> Tile {
        let first = tile * QUERIES;
        let queries = first..self.all.how.seq.min(first + QUERIES);
        let scale = 1.0 / (self.all.d as f32).sqrt();
        Tile::new(queries, scale, self.slope, |query| self.keys(query))
    }

    /// Loads rows of qkv into rows of a tile.
    fn load(&self, qkv: Tensor, positions: Range<usize>, which: Which, to: &mut [f32]) {
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

    /// What dropout multiplies the probabilities of a tile with, if there is dropout.
    fn factors<'b>(
        &self,
        tile: &Tile,
        keys: &Range<usize>,
        factors: &'b mut [[f32; QUERIES]],
    ) -> Option<&'b [[f32; QUERIES]]> {
        self.all.mask.any().then(|| {
            let head = self.all.how.first_head + self.head;
            let row = self.row(tile.queries.start);
            let whole = &mut factors[..keys.len().next_multiple_of(4)];
            self.all.mask.tile(row, head, keys.start, whole);
            &factors[..keys.len()]
        })
    }
}

/// Cuts the next `len` elements off scratch.
fn cut<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    scratch.split_off_mut(..len).expect("scratch is as long as its parts")
}
