//! Arithmetic of a tile: scores of up to `KEYS` keys, one per row, and `QUERIES` queries.

use crate::cpu::kernel::{COLUMNS, Product};
use crate::cpu::math::{MaskIndex, exp, scale, vectorised};
use std::ops::Range;

/// Queries per tile: two AVX-512 registers. More would waste more at the causal edge.
pub const QUERIES: usize = 32;

/// Keys per tile, such that its scores and the rows of its keys fit into the L1 cache.
pub(super) const KEYS: usize = 64;

/// Row of a tile.
type Row = [f32; QUERIES];

/// Queries of a tile, and their visible keys.
pub(super) struct Tile {
    pub queries: Range<usize>,
    /// Query i sees keys `start[i] .. end[i]`; rows past the last query see none.
    start: [i32; QUERIES],
    end: [i32; QUERIES],
    /// Factor of the dot products of queries and keys.
    scale: f32,
    /// Slope of ALiBi.
    slope: f32,
}

impl Tile {
    pub fn new(
        queries: Range<usize>,
        scale: f32,
        slope: f32,
        keys: impl Fn(usize) -> Range<usize>,
    ) -> Tile {
        let mut start = [0; QUERIES];
        let mut end = [0; QUERIES];
        for (i, query) in queries.clone().enumerate() {
            let keys = keys(query);
            (start[i], end[i]) = (keys.start as i32, keys.end as i32);
        }
        Tile { queries, start, end, scale, slope }
    }

    /// Ranges of at most `KEYS` keys with at least one visible key. They start at multiples of 4,
    /// as dropout requires.
    pub fn key_tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let seen = || {
            self.start
                .iter()
                .zip(&self.end)
                .filter(|(start, end)| start < end)
        };
        let first = seen().map(|(start, _)| *start as usize).min().unwrap_or(0) / 4 * 4;
        let last = seen().map(|(_, end)| *end as usize).max().unwrap_or(0);
        let tiles = (first..last)
            .step_by(KEYS)
            .map(move |at| at..last.min(at + KEYS));
        tiles.filter(move |keys| {
            seen().any(|(start, end)| (*start as usize) < keys.end && *end as usize > keys.start)
        })
    }

    /// Products of `count` rows of k (or v) with all queries (or dy), transposed: [d, QUERIES].
    pub fn scores(
        &self,
        k: &[f32],
        wide: usize,
        count: usize,
        queries: &[f32],
        d: usize,
        to: &mut [f32],
    ) {
        Product {
            m: count,
            n: self.queries.len().next_multiple_of(COLUMNS),
            k: d,
            a: k,
            a_row: wide,
            a_depth: 1,
            b: queries,
            b_row: QUERIES,
            c: to,
            c_row: QUERIES,
            add: false,
        }
        .run();
    }

    #[inline(always)]
    fn sees(&self, query: usize, key: i32) -> bool {
        (key >= self.start[query]) & (key < self.end[query])
    }

    /// Score from the dot product of the `query`-th query and a key.
    #[inline(always)]
    fn score(&self, product: f32, query: usize, key: i32) -> f32 {
        let distance = (key - self.queries.start as i32 - query as i32) as f32;
        product.mul_add(self.scale, self.slope * distance)
    }
}

/// Softmax over the keys so far.
pub(super) struct Softmax {
    maximum: Row,
    sum: Row,
    /// Factor by which the last tile's maxima scale all earlier results.
    shrink: Row,
}

impl Softmax {
    pub fn new() -> Softmax {
        let maximum = [f32::NEG_INFINITY; QUERIES];
        Softmax { maximum, sum: [0.0; QUERIES], shrink: [1.0; QUERIES] }
    }

    /// Rescales the rows of y, [queries, wide], to the current maxima.
    pub fn shrink(&self, y: &mut [f32], wide: usize) {
        for (row, factor) in y.chunks_exact_mut(wide).zip(self.shrink) {
            if factor != 1.0 {
                scale(factor, row);
            }
        }
    }

    /// Factor of a query's y, and its log-sum-exp.
    pub fn finish(&self, query: usize) -> (f32, f32) {
        match self.sum[query] {
            0.0 => (0.0, f32::NEG_INFINITY),
            sum => (1.0 / sum, self.maximum[query] + sum.ln()),
        }
    }
}

/// Adds pᵀ·rows to `to`, [queries, wide]: p [keys, QUERIES], rows [keys, wide].
pub(super) fn add_weighted_rows(
    p: &[f32],
    rows: &[f32],
    queries: usize,
    keys: usize,
    wide: usize,
    to: &mut [f32],
) {
    Product {
        m: queries,
        n: wide,
        k: keys,
        a: p,
        a_row: 1,
        a_depth: QUERIES,
        b: rows,
        b_row: wide,
        c: to,
        c_row: wide,
        add: true,
    }
    .run();
}

/// Transposes `count` rows of `wide` elements into as many columns as `to` has rows.
pub(super) fn transpose(from: &[f32], wide: usize, count: usize, to: &mut [f32]) {
    for (i, row) in from.chunks_exact(wide).take(count).enumerate() {
        for (to, x) in to.chunks_exact_mut(QUERIES).zip(row) {
            to[i] = *x;
        }
    }
}

vectorised! {
    /// Products to exp(score − maximum), 0 if not visible.
    pub(super) fn soften(tile: &Tile, first: usize, p: &mut [Row], state: &mut Softmax) {
        let mut maximum = state.maximum;
        for (key, row) in (first as i32..).zip(p.iter_mut()) {
            for (i, x) in row.iter_mut().enumerate() {
                let score = tile.score(*x, i, key);
                *x = if tile.sees(i, key) { score } else { f32::NEG_INFINITY };
                maximum[i] = if *x > maximum[i] { *x } else { maximum[i] };
            }
        }
        // Avoids −∞ − −∞ as long as no key was visible.
        let base = maximum.map(|x| if x == f32::NEG_INFINITY { 0.0 } else { x });
        let mut sum = [0.0; QUERIES];
        for row in p.iter_mut() {
            for (i, x) in row.iter_mut().enumerate() {
                *x = exp(*x - base[i]);
                sum[i] += *x;
            }
        }
        for i in 0..QUERIES {
            state.shrink[i] = exp(state.maximum[i] - base[i]);
            state.sum[i] = state.sum[i].mul_add(state.shrink[i], sum[i]);
        }
        state.maximum = maximum;
    }

    /// p from products to probabilities, and dp to the slopes of the products.
    pub(super) fn score_slopes(
        tile: &Tile, first: usize, p: &mut [Row], dp: &mut [Row], logs: &Row, along: &Row
    ) {
        for ((key, p), dp) in (first as i32..).zip(p).zip(dp) {
            for i in 0..QUERIES {
                let seen = tile.sees(i, key);
                let probability = exp(tile.score(p[i], i, key) - logs[i]);
                let slope = tile.scale * probability * (dp[i] - along[i]);
                p[i] = if seen { probability } else { 0.0 };
                dp[i] = if seen { slope } else { 0.0 };
            }
        }
    }

    /// p = factors·p
    pub(super) fn drop(factors: &[Row], p: &mut [Row]) {
        for (p, factors) in p.iter_mut().zip(factors) {
            for i in 0..QUERIES {
                p[i] *= factors[i];
            }
        }
    }

    /// Dropout factors of a tile, with `QUERIES` rows from `index` on in its columns, and columns
    /// in its rows: 0 if the random word is below `bound`, else `kept`.
    pub(super) fn dropout_tile(
        index: &MaskIndex, bound: u32, kept: f32, factors: &mut [Row]
    ) {
        assert!(factors.len().is_multiple_of(4));
        for (quad, rows) in factors.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            for i in 0..QUERIES {
                for (row, word) in rows.iter_mut().zip(index.words(i, quad)) {
                    row[i] = if word < bound { 0.0 } else { kept };
                }
            }
        }
    }
}
