//! Evaluation data: a stream of tokens in windows, a run's validation set, or questions with several
//! answers. Each is a list of samples to read in order, and the values kept of each sample's losses.
//!
//! A sample is a pure function of its number, so ranks share a list in the same way as training
//! data.

mod formats;
mod packed;
mod questions;
mod shots;
mod validation;
mod windows;

pub use packed::{Packed, Sequence};
pub use questions::{Accuracy, QuestionEncoder, Task};
pub use shots::Shots;
pub use validation::Validation;
pub use windows::{Tokens, Windows};

use super::batch::Sample;
use anyhow::Result;

/// List of samples of `seq_len` tokens.
pub trait Samples: Sync {
    /// Number of samples.
    fn count(&self) -> u64;
    /// Fills a sample of a batch. Each scored token has the weight 1, the others 0.
    fn fill(&self, number: u64, sample: &mut Sample<'_>) -> Result<()>;
    /// Values kept of a sample, computed from −log p of its targets [seq_len] times their weights.
    fn values(&self, number: u64, losses: &[f32]) -> Vec<f64>;
}

/// Writes a sequence into a sample from position `from` on; its positions see only each other. The last
/// token is only a target. The last `scored` targets have the weight 1.
fn write_sequence(
    sample: &mut Sample<'_>,
    from: usize,
    tokens: impl Iterator<Item = i32>,
    scored: usize,
) {
    let mut previous = None;
    let mut end = from;
    for token in tokens {
        if let Some(input) = previous {
            (sample.tokens[end], sample.targets[end]) = (input, token);
            sample.positions[end] = (end - from) as i32;
            sample.visible[2 * end..2 * end + 2].copy_from_slice(&[from as i32, end as i32 + 1]);
            sample.weights[end] = 0.0;
            end += 1;
        }
        previous = Some(token);
    }
    sample.weights[end - scored..end].fill(1.0);
}
