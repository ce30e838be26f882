//! Validation set of a run, with the weights of its evaluations: the mean over samples of each
//! sample's weighted loss.

use super::Samples;
use crate::batch::{Batch, Sample};
use crate::source::Source;
use anyhow::Result;
use base::{Count, Problems};
use std::sync::Arc;

/// First samples of a validation set.
pub struct Validation {
    source: Arc<Source>,
    samples: u64,
}

impl Validation {
    /// Fails if the set `name` holds fewer samples.
    pub fn new(name: &str, source: Arc<Source>, samples: u64) -> Result<Validation, Problems> {
        let held = source.samples();
        if samples > held {
            return Err(Problems::one(
                format!("validation set {name}"),
                format!("{} samples were asked for; it holds {}", Count(samples), Count(held)),
                format!("give --limit {held} or less"),
            ));
        }
        Ok(Validation { source, samples })
    }
}

impl Samples for Validation {
    fn count(&self) -> u64 {
        self.samples
    }

    fn fill(&self, number: u64, sample: &mut Sample<'_>) -> Result<()> {
        self.source.read(number, sample)
    }

    /// Sum of the sample's weighted losses, and its number of tokens with a weight. The sum is NaN if
    /// the sample cannot be read a second time.
    fn values(&self, number: u64, losses: &[f32]) -> Vec<f64> {
        let mut batch = Batch::default();
        batch.reshape(number, 1, self.source.seq_len());
        let mut samples = batch.samples_mut();
        if samples
            .try_for_each(|mut sample| self.source.read(number, &mut sample))
            .is_err()
        {
            return vec![f64::NAN, 0.0];
        }
        drop(samples);
        let weights = batch.samples_mut().flat_map(|sample| sample.weights.iter());
        let counted = weights.filter(|weight| **weight > 0.0).count();
        vec![losses.iter().copied().map(f64::from).sum(), counted as f64]
    }
}
