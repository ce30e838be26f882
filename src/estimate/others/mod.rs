//! The needs of other trainers: cost formulas (`cost`), their constants fitted to measured runs
//! (`fitted`, `rows`), and predictions with error bars (`predict`, `score`).

pub mod predict;
pub mod calibrate;
pub mod score;
pub mod rows;
pub mod shape_lint;
pub mod cost;
pub mod fitted;
mod points;
mod learn;
