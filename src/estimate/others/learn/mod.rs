//! What measurements teach: constants of formulas (`fit`), and beside them what a program, a machine
//! and runs like this one do in their own way (`neighbours`), by one covariance of runs (`kernel`), and
//! how much that leaves unsaid (`doubt`).
//!
//! Does not know what is measured: numbers in, numbers out.

mod doubt;
mod fit;
mod kernel;
mod linear;
mod neighbours;
#[cfg(test)]
mod tests;

pub use fit::{Belief, Runs, fit};
pub use kernel::{Acquainted, Kernel, Novelty, Point, Shared};
pub use neighbours::Neighbours;
