//! Learning from measurements: constants of formulas (`fit`), residuals by program, machine and similar
//! runs (`neighbours`) with one covariance of runs (`kernel`), and the remaining uncertainty (`uncertainty`).
//!
//! Independent of the measured quantity: numbers in, numbers out.

mod uncertainty;
mod fit;
mod kernel;
mod linear;
mod neighbours;
#[cfg(test)]
mod tests;

pub use fit::{Belief, Runs, fit};
pub use kernel::{Features, HalvingCounts, Kernel, Shared, UnseenDeviation};
pub use neighbours::Neighbours;
