//! Notes on valid but unusual settings, and settings that gptrain cannot train with.

use super::{Decay, DeviceChoice, Manifest, Optimizer, Precision};
use base::{Count, Problems};

/// Adam's peak learning rate from which on it is noted.
const HIGH_PEAK: f64 = 0.1;

impl Manifest {
    /// Notes on valid settings that are seldom intended.
    pub fn notes(&self) -> Vec<String> {
        let warmup = self.lr.warmup_samples;
        let run = self.train.samples;
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

    /// Steps after `step` at the end of the run whose learning rate is lr.min, because the decay ends
    /// before the run.
    pub fn steps_at_minimum(&self, step: u64) -> u64 {
        let steps = |samples| self.batch.ramp().steps(samples);
        let ended = self.lr.decay.end().map(steps);
        ended.map_or(0, |ended| steps(self.train.samples).saturating_sub(ended.max(step)))
    }

    /// Note on a decay that ends before the run, which has taken `step` steps and `samples` samples,
    /// with settings that let it learn until its end.
    pub fn schedule_note(&self, step: u64, samples: u64) -> Option<String> {
        let steps = Some(self.steps_at_minimum(step)).filter(|steps| *steps > 0)?;
        let name = self.lr.decay.name();
        let end = self.lr.decay.end()?;
        let min = self.lr.min;
        let peak = self.lr.peak / 10.0;
        let stretch = format!("a decay that ends with the run: --set lr.decay={name}");
        let again = format!(
            "a new {name} from lr.peak, from here to the end: --set lr.decay={name} --set \
             lr.warmup_samples={samples}"
        );
        let tail = "lr.peak, and a decay over the last tenth of the run: --set lr.decay=wsd";
        let hold = format!(
            "a constant tenth of lr.peak: --set lr.decay=constant --set lr.min=0 --set \
             lr.peak={peak:.1e}"
        );
        let choices = match self.lr.decay {
            Decay::Wsd(_) => vec![stretch, hold],
            _ if samples == 0 => vec![stretch, tail.to_string(), hold],
            _ => vec![stretch, again, tail.to_string(), hold],
        };
        let what = format!(
            "lr.decay ends at sample {}: the last {} have a learning rate of {min} (lr.min)",
            Count(end),
            Count(steps).with_noun("step"),
        );
        Some(format!("{what}\n    → {}", choices.join("\n    → ")))
    }

    /// Rejects valid settings that gptrain cannot train with, by name. None is ignored.
    pub fn runnable(&self) -> Result<(), Problems> {
        if self.train.device == DeviceChoice::Cpu && self.precision == Precision::Tf32 {
            return Err(Problems::one(
                self.name.as_str(),
                "precision is tf32, which a CPU cannot",
                "--set precision=f32",
            ));
        }
        Ok(())
    }
}
