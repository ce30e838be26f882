//! Mask of a kernel from an op's dropout.

use super::DropoutMask;
use crate::Dropout;
use std::ptr::null;

impl DropoutMask {
    pub fn new(drop: &Dropout) -> DropoutMask {
        assert!((0.0..1.0).contains(&drop.rate), "dropout rate {}", drop.rate);
        DropoutMask {
            key: drop.key,
            first_sample: drop.first_sample.addr() as _,
            seq: drop.seq as u64,
            first_row: drop.first_row as u64,
            bound: (drop.rate as f64 * 4_294_967_296.0).ceil() as u32,
            kept: 1.0 / (1.0 - drop.rate),
        }
    }

    /// Mask that drops nothing.
    pub fn none() -> DropoutMask {
        DropoutMask { key: 0, first_sample: null(), seq: 0, first_row: 0, bound: 0, kept: 1.0 }
    }
}
