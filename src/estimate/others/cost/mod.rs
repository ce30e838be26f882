//! What a run needs of memory and time, from the shapes and a few constants (`constants`).

pub mod constants;
pub mod deepspeed;
mod gemm;
mod memory;
mod time;

pub use constants::Constants;
pub use memory::{Memory, memory};
pub use time::{Products, Time, time, time_with, wasted};
