//! Ranks for tests and benches: thousands of them in one process, and ranks that send slowly. Not
//! in a build without the feature `testing`.

pub mod simulation;
mod throttle;

pub use throttle::{SEND_LIMIT, Throttle, send_limit};
