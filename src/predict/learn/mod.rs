//! Learning from measurements: constants of formulas (`fit`), residuals by program, machine and similar
//! runs (`neighbours`) with one covariance of runs (`kernel`), and the remaining uncertainty (`doubt`).
//!
//! Independent of the measured quantity: numbers in, numbers out.

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
