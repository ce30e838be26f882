//! Tokens.

/// A micro-batch on the host; all fields [samples·seq_len] row-major.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub first_sample: u64,
    pub samples: usize,
    pub seq_len: usize,
    pub tokens: Vec<i32>,
    pub targets: Vec<i32>,
    pub weights: Vec<f32>,
    pub positions: Vec<i32>,
    pub visible: Vec<i32>,
}
