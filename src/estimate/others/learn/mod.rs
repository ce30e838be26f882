//! What measured runs teach: the constants of the cost formulas (`fit`), and how far the formulas
//! were off for runs like this one (`neighbours`).
//!
//! Does not know what is measured: numbers in, numbers out.

mod fit;
mod linear;
mod neighbours;

pub use fit::{Belief, Effects, Runs, fit};
pub use neighbours::{Kernel, Neighbours, Point};
