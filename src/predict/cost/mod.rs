//! Memory and time of a run, from the shapes and a few constants (`constants`).

pub mod constants;
mod gemm;
mod memory;
mod time;

pub use constants::Constants;
pub use memory::{Memory, memory};
pub use time::{Products, Time, time, time_of_products, wasted_share};
