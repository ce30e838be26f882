//! Notes on valid but unusual settings, and settings that gptrain cannot train with.

use super::{DeviceChoice, Manifest, Optimizer, Precision};
use base::{Count, Problems};

/// Adam's peak learning rate from which on it is noted.
const HIGH_PEAK: f64 = 0.1;

impl Manifest {
    /// Notes on valid settings that are seldom intended.
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
        let peak = self.lr.peak;
        let adam = matches!(self.optimizer, Optimizer::AdamW(_) | Optimizer::Adam8bit(_));
        let high = (adam && peak > HIGH_PEAK).then(|| {
            format!(
                "lr.peak {peak} moves every weight by about {peak} a step: AdamW is trained with \
                 1e-5 to 1e-2"
            )
        });
        warmup.into_iter().chain(high).collect()
    }

    /// Rejects valid settings that gptrain cannot train with, by name. None is ignored.
    pub fn runnable(&self) -> Result<(), Problems> {
        if self.train.device == DeviceChoice::Cpu && self.precision == Precision::Tf32 {
            let what = "precision is tf32, which a CPU cannot";
            return Err(Problems::one(self.name.as_str(), what, "--set precision=f32"));
        }
        Ok(())
    }
}
