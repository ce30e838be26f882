//! What a model is scored on: a stream of tokens in windows, or questions with several answers.
//! Either is a list of samples to be read in order, and what is kept of each sample's losses.
//!
//! A sample is a pure function of its number, so ranks share a list as they share training data.

mod packed;
mod questions;
mod windows;

pub use packed::{Packed, Sequence};
pub use questions::{Accuracy, Reading, Task};
pub use windows::{Tokens, Windows};

use super::batch::Sample;
use anyhow::Result;

/// A list of samples of `seq_len` tokens.
pub trait Samples: Sync {
    /// How many there are.
    fn count(&self) -> u64;
    /// Fills a sample of a batch. Each token that is scored weighs 1, the others 0.
    fn fill(&self, number: u64, sample: &mut Sample<'_>) -> Result<()>;
    /// What is kept of a sample, from −log p of its targets [seq_len]; 0 where nothing is scored.
    fn values(&self, number: u64, losses: &[f32]) -> Vec<f64>;
}

/// Writes positions `from .. from + targets` of a sample, which see each other and nothing else:
/// `tokens` are one more than the targets, of which the last `scored` count.
fn put(sample: &mut Sample<'_>, from: usize, tokens: impl Iterator<Item = i32>, scored: usize) {
    let mut before = None;
    let mut end = from;
    for token in tokens {
        if let Some(input) = before {
            (sample.tokens[end], sample.targets[end]) = (input, token);
            sample.positions[end] = (end - from) as i32;
            sample.visible[2 * end..2 * end + 2].copy_from_slice(&[from as i32, end as i32 + 1]);
            sample.weights[end] = 0.0;
            end += 1;
        }
        before = Some(token);
    }
    sample.weights[end - scored..end].fill(1.0);
}
