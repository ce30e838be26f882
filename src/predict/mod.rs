//! The planner for other trainers: cost formulas (`cost`), their constants fitted to measured runs
//! (`fitted`, `rows`), and predictions with error bars (`predictor`, `score`).
//!
//! Independent of gptrain's own engine and plans; takes setups and their words from `estimate`.

mod plan;
mod predictor;
pub mod calibrate;
pub mod score;
pub mod rows;
pub mod shape_lint;
pub mod cost;
pub mod fitted;
mod features;
mod learn;

pub use predictor::{Prediction, Predictor};
