//! Dropout factors, a function of (key, row, head, column): 0 or 1 / (1 - rate).

use super::math::{self, MaskIndex};
use super::memory::{BLOCK, Block, read_i64};
use crate::Dropout;

/// Parameters of dropout factors.
pub(super) struct Mask {
    key: u64,
    /// Row of the whole run at which the tensor starts.
    first: u64,
    /// A random word below this drops its element.
    bound: u32,
    kept: f32,
}

impl Mask {
    pub fn new(drop: &Dropout) -> Mask {
        assert!((0.0..1.0).contains(&drop.rate), "dropout rate {}", drop.rate);
        let nothing = Mask { key: drop.key, first: 0, bound: 0, kept: 1.0 };
        if drop.rate == 0.0 {
            return nothing;
        }
        let first = read_i64(drop.first_sample) as u64 * drop.seq as u64 + drop.first_row as u64;
        let bound = (drop.rate as f64 * 4_294_967_296.0).ceil() as u32;
        Mask { first, bound, kept: 1.0 / (1.0 - drop.rate), ..nothing }
    }

    /// Whether any element can be dropped.
    pub fn any(&self) -> bool {
        self.bound > 0
    }

    /// Applies dropout to a block that starts at column `col`, a multiple of 4, of a row.
    pub fn apply(&self, row: usize, col: usize, x: &mut [f32]) {
        if self.any() {
            assert!(col.is_multiple_of(4));
            let index = MaskIndex { key: self.key, row: self.first + row as u64, head: 0, col };
            let mut factors: Block = [0.0; BLOCK];
            let factors = &mut factors[..x.len()];
            math::dropout_factors(&index, self.bound, self.kept, factors);
            math::multiply(factors, x);
        }
    }

    /// Arguments of `dropout_tile` for a tile of attention, given its first row and column, and its
    /// head.
    pub fn tile(&self, row: usize, head: usize, col: usize) -> (MaskIndex, u32, f32) {
        assert!(col.is_multiple_of(4));
        (
            MaskIndex { key: self.key, row: self.first + row as u64, head, col },
            self.bound,
            self.kept,
        )
    }
}
