//! Ramp-up of the global batch: Megatron's `--rampup-batch-size START INCREMENT SAMPLES`.
//!
//! The batch of a step is a function of the samples consumed before it, so a resumed run continues
//! exactly. Each step takes the samples after the previous step's: none is skipped or read
//! twice when the batch changes.

use super::growth::Growing;

/// Global batch that grows, or is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp(Growing);

/// Consecutive steps with the same global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPhase {
    pub global_batch: usize,
    /// First step of the phase, counted from 0.
    pub first_step: u64,
    /// Samples consumed before the phase.
    pub first_sample: u64,
    pub steps: u64,
}

impl BatchPhase {
    fn end_sample(&self) -> u64 {
        self.first_sample + self.steps * self.global_batch as u64
    }
}

impl Ramp {
    pub fn constant(global: usize) -> Ramp {
        Ramp(Growing::constant(global))
    }

    /// Ramp from `start` to `global` in steps of `increment`, over the first `samples` samples.
    /// `increment` divides `global - start`.
    pub fn growing(start: usize, increment: usize, samples: u64, global: usize) -> Ramp {
        Ramp(Growing::new(start, increment, samples, global))
    }

    /// Final batch.
    pub fn global(&self) -> usize {
        self.0.last
    }

    /// Samples over which the batch grows.
    pub fn samples(&self) -> u64 {
        self.0.samples()
    }

    /// Number of increments: `(global - start) / increment`.
    pub fn increments(&self) -> usize {
        let growth = self.0.growth;
        growth.map_or(0, |growth| (self.global() - growth.start) / growth.increment)
    }

    /// Every batch size of the ramp, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        self.0.sizes()
    }

    /// Global batch of the step that starts after `consumed` samples. Bit-identical to Megatron:
    /// the samples per increment are an f64, and the ramp-up includes sample number `samples`
    /// itself (megatron/core/num_microbatches_calculator.py).
    pub fn batch_at(&self, consumed: u64) -> usize {
        match self.0.growth {
            Some(growth) if consumed <= growth.samples => {
                let each = growth.samples as f64 / self.increments() as f64;
                let grown = (consumed as f64 / each) as usize;
                self.global().min(growth.start + grown * growth.increment)
            }
            _ => self.global(),
        }
    }

    /// Phases of a run of `samples` samples, in whole steps. Samples that do not fill a last step
    /// are dropped, as in Megatron.
    pub fn phases(&self, samples: u64) -> impl Iterator<Item = BatchPhase> + use<> {
        let ramp = *self;
        let mut step = 0;
        let mut consumed = 0;
        std::iter::from_fn(move || {
            let phase = ramp.phase(step, consumed, samples);
            (step, consumed) = (step + phase.steps, phase.end_sample());
            (phase.steps > 0).then_some(phase)
        })
    }

    /// Phase that starts after `consumed` samples in a run of `samples`.
    fn phase(&self, first_step: u64, consumed: u64, samples: u64) -> BatchPhase {
        let global_batch = self.batch_at(consumed);
        let left = samples.saturating_sub(consumed) / global_batch as u64;
        // The batch never shrinks, so bisection finds the end of the phase.
        let mut same = 0;
        let mut more = left + 1;
        while more - same > 1 {
            let middle = same + (more - same) / 2;
            let before_last = (middle - 1)
                .checked_mul(global_batch as u64)
                .and_then(|samples| consumed.checked_add(samples));
            if before_last.is_some_and(|samples| self.batch_at(samples) == global_batch) {
                same = middle;
            } else {
                more = middle;
            }
        }
        BatchPhase { global_batch, first_step, first_sample: consumed, steps: same }
    }

    /// Number of whole steps in `samples` samples.
    pub fn steps(&self, samples: u64) -> u64 {
        self.phases(samples).map(|phase| phase.steps).sum()
    }

    /// Samples consumed by the first `steps` steps; u64::MAX on overflow.
    pub fn samples_after(&self, steps: u64) -> u64 {
        let mut last = BatchPhase { global_batch: 0, first_step: 0, first_sample: 0, steps: 0 };
        for phase in self.phases(u64::MAX / 2) {
            last = phase;
            if phase.first_step + phase.steps >= steps {
                break;
            }
        }
        let within = steps.saturating_sub(last.first_step);
        within
            .saturating_mul(last.global_batch as u64)
            .saturating_add(last.first_sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BLOOM's `--rampup-batch-size 16 16 9_765_625` with a global batch of 2048.
    const BLOOM: (usize, usize, u64, usize) = (16, 16, 9_765_625, 2048);

    fn ramp((start, increment, samples, global): (usize, usize, u64, usize)) -> Ramp {
        Ramp::growing(start, increment, samples, global)
    }

    /// Batch of every step, by Megatron's loop.
    fn walk(ramp: &Ramp, samples: u64) -> Vec<usize> {
        let mut consumed = 0;
        let mut steps = Vec::new();
        while consumed + ramp.batch_at(consumed) as u64 <= samples {
            steps.push(ramp.batch_at(consumed));
            consumed += ramp.batch_at(consumed) as u64;
        }
        steps
    }

    /// The run's notes divide and drop the remainder: 76,894 samples per increment, "4805 steps" at
    /// 16, "18146" until 384. The actual steps: at 16 while fewer than 76,894.69 samples are
    /// consumed, which is 4806 steps; the phase of 384 ends after 18,148.
    #[test]
    fn blooms_ramp_up() {
        let ramp = ramp(BLOOM);
        assert_eq!(ramp.increments(), 127);
        assert_eq!(9_765_625 / 127, 76_894);
        assert_eq!(76_894 / 16, 4805);
        assert_eq!(
            (16..=384)
                .step_by(16)
                .map(|b| 76_894.0 / b as f64)
                .sum::<f64>() as u64,
            18_146
        );
        let phases: Vec<BatchPhase> = ramp.phases(220_000_000).collect();
        assert_eq!(phases.len(), 128);
        let phase = |global_batch, first_step, first_sample, steps| BatchPhase {
            global_batch,
            first_step,
            first_sample,
            steps,
        };
        assert_eq!(phases[0], phase(16, 0, 0, 4806));
        assert_eq!(phases[1], phase(32, 4806, 76_896, 2403));
        assert_eq!(phases[23], phase(384, 17_948, 1_768_736, 200));
        assert_eq!(phases[24].first_step, 18_148);
        assert_eq!(ramp.steps(9_766_880), 26_076);
        // From the log of the run: "iteration 3707/ 128728".
        assert_eq!(ramp.steps(220_000_000), 128_728);
    }

    #[test]
    fn stages_are_the_steps_one_by_one() {
        let ramps = [
            (ramp(BLOOM), 12_000_000),
            (ramp((192, 32, 9_765_625, 512)), 12_000_000),
            (ramp((32, 32, 5_000, 128)), 9_999),
            (ramp((1, 1, 10, 64)), 500), // increments shorter than a step are skipped
            (ramp((8, 8, 0, 64)), 500),
            (ramp((8, 8, 100, 8)), 500),
            (Ramp::constant(24), 1000),
            (ramp((7, 3, 1_000, 70)), 6),
        ];
        for (ramp, samples) in ramps {
            let phased: Vec<usize> = ramp
                .phases(samples)
                .flat_map(|s| std::iter::repeat_n(s.global_batch, s.steps as usize))
                .collect();
            let steps = walk(&ramp, samples);
            assert!(phased == steps, "{ramp:?}");
            assert_eq!(ramp.steps(samples), steps.len() as u64);
            assert!(
                phased
                    .iter()
                    .all(|batch| ramp.sizes().any(|size| size == *batch))
            );
        }
    }

    #[test]
    fn steps_and_samples_turn_into_each_other() {
        let ramp = ramp(BLOOM);
        let mut consumed = 0;
        for step in 0..30_000 {
            if step % 97 == 0 {
                assert_eq!(ramp.samples_after(step), consumed);
                assert_eq!(ramp.steps(consumed), step);
            }
            consumed += ramp.batch_at(consumed) as u64;
        }
        assert_eq!(Ramp::constant(16).samples_after(100), 1600);
        assert_eq!(Ramp::constant(16).samples_after(u64::MAX), u64::MAX);
        assert_eq!(Ramp::constant(16).steps(u64::MAX), u64::MAX / 16);
    }

    /// A phase starts where the previous one ended, for any batch.
    #[test]
    fn no_sample_is_skipped() {
        let mut next = (0, 0);
        for phase in ramp((192, 16, 9_765_625, 2048)).phases(220_000_000) {
            assert_eq!((phase.first_step, phase.first_sample), next);
            next = (phase.first_step + phase.steps, phase.end_sample());
        }
        assert!(220_000_000 - next.1 < 2048);
    }

    #[test]
    fn the_ramp_up_covers_its_last_sample() {
        let ramp = Ramp::growing(10, 10, 100, 30);
        let batches: Vec<usize> = [0, 49, 50, 99, 100, 101].map(|at| ramp.batch_at(at)).into();
        assert_eq!(batches, [10, 10, 20, 20, 30, 30]);
        assert_eq!(ramp.sizes().collect::<Vec<_>>(), [10, 20, 30]);
    }
}
