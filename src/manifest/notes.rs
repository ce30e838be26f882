//! What is valid and seldom meant, and what gptrain cannot train with.

use super::{DeviceChoice, Manifest, Precision};
use base::{Count, Problems};

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

    /// Valid settings that gptrain cannot train with are rejected by name, never ignored.
    pub fn runnable(&self) -> Result<(), Problems> {
        if self.train.device == DeviceChoice::Cpu && self.precision == Precision::Tf32 {
            let what = "precision is tf32, which a CPU cannot";
            return Err(Problems::one(self.name.as_str(), what, "--set precision=f32"));
        }
        Ok(())
    }
}
