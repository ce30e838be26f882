//! Words everybody speaks. Knows nothing of training.

mod dtype;
mod json;
mod problems;
pub mod rng;
mod units;

pub use dtype::DType;
pub use json::null_is_nan;
pub use problems::{Problem, Problems};
pub use units::{Bytes, Count, Seconds};

/// n / d where d is relied on to divide n.
pub fn div_exact(n: usize, d: usize) -> usize {
    assert!(d > 0 && n.is_multiple_of(d), "{n} is not a multiple of {d}");
    n / d
}
