//! What is valid and seldom meant.

use super::Manifest;
use base::Count;

impl Manifest {
    /// Valid settings that are seldom meant, in words.
    pub fn notes(&self) -> Vec<String> {
        let (warmup, run) = (self.lr.warmup_samples, self.train.samples);
        let reached = 100.0 * run as f64 / warmup.max(1) as f64;
        let warmup = (warmup > run).then(|| {
            format!(
                "the warm-up of {} samples is longer than the run of {}: the learning rate ends at \
                 {reached:.0} % of lr.peak",
                Count(warmup),
                Count(run)
            )
        });
        warmup.into_iter().collect()
    }
}
