//! The planner.
pub mod cost;
mod counts;
pub mod hardware;
mod learn;
pub mod own;
pub mod predict;
pub mod rows;
pub mod score;
pub mod setup;
