//! The global batch over the run: Megatron's `--rampup-batch-size START INCREMENT SAMPLES`.
//!
//! The batch of a step is a function of the samples consumed before it, so a resumed run goes on
//! exactly where it stopped, and each step takes the samples that follow the last step's: none is
//! skipped or read twice when the batch changes.

/// A global batch that grows from `start` to `global`, or is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    global: usize,
    growth: Option<Growth>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    start: usize,
    increment: usize,
    samples: u64,
}

/// Steps in a row with the same global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    pub global_batch: usize,
    /// The stage's first step, from 0.
    pub first_step: u64,
    /// Samples consumed before it.
    pub first_sample: u64,
    pub steps: u64,
}

impl Stage {
    fn end_sample(&self) -> u64 {
        self.first_sample + self.steps * self.global_batch as u64
    }
}

impl Ramp {
    pub fn constant(global: usize) -> Ramp {
        assert!(global > 0, "a global batch of 0");
        Ramp { global, growth: None }
    }

    /// From `start`, by `increment`, to `global` over the first `samples` samples. `increment`
    /// divides `global - start`.
    pub fn growing(start: usize, increment: usize, samples: u64, global: usize) -> Ramp {
        assert!(0 < start && start <= global, "a ramp-up from {start} to {global}");
        assert!(increment > 0 && (global - start).is_multiple_of(increment));
        let growth =
            (start < global && samples > 0).then_some(Growth { start, increment, samples });
        Ramp { global, growth }
    }

    /// The batch at the end.
    pub fn global(&self) -> usize {
        self.global
    }

    /// How often the batch grows: `(global - start) / increment`.
    pub fn increments(&self) -> usize {
        self.growth.map_or(0, |g| (self.global - g.start) / g.increment)
    }

    /// Every size the batch may have, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let start = self.growth.map_or(self.global, |g| g.start);
        (start..=self.global).step_by(self.growth.map_or(1, |g| g.increment))
    }

    /// The global batch of the step that begins after `consumed` samples. Megatron's arithmetic to
    /// the last bit: the samples per increment are an f64, and the ramp-up still covers the sample
    /// number `samples` itself (megatron/core/num_microbatches_calculator.py).
    pub fn batch_at(&self, consumed: u64) -> usize {
        match self.growth {
            Some(growth) if consumed <= growth.samples => {
                let each = growth.samples as f64 / self.increments() as f64;
                let grown = (consumed as f64 / each) as usize;
                self.global.min(growth.start + grown * growth.increment)
            }
            _ => self.global,
        }
    }

    /// The stages of a run of `samples` samples, as whole steps: samples that do not fill a last
    /// step are left, as Megatron leaves them.
    pub fn stages(&self, samples: u64) -> impl Iterator<Item = Stage> + use<> {
        let ramp = *self;
        let (mut step, mut consumed) = (0, 0);
        std::iter::from_fn(move || {
            let stage = ramp.stage(step, consumed, samples);
            (step, consumed) = (step + stage.steps, stage.end_sample());
            (stage.steps > 0).then_some(stage)
        })
    }

    /// The stage that begins after `consumed` samples in a run of `samples`.
    fn stage(&self, first_step: u64, consumed: u64, samples: u64) -> Stage {
        let global_batch = self.batch_at(consumed);
        let left = samples.saturating_sub(consumed) / global_batch as u64;
        let alike = |steps: u64| {
            let last = (steps - 1).checked_mul(global_batch as u64);
            let last = last.and_then(|samples| consumed.checked_add(samples));
            last.is_some_and(|at| self.batch_at(at) == global_batch)
        };
        // The batch only ever grows with the samples, so halving finds where.
        let (mut same, mut more) = (0, left + 1);
        while more - same > 1 {
            let middle = same + (more - same) / 2;
            if alike(middle) {
                same = middle;
            } else {
                more = middle;
            }
        }
        Stage { global_batch, first_step, first_sample: consumed, steps: same }
    }

    /// Whole steps in `samples` samples.
    pub fn steps(&self, samples: u64) -> u64 {
        self.stages(samples).map(|stage| stage.steps).sum()
    }

    /// Samples consumed by the first `steps` steps; u64::MAX where that is more than u64 holds.
    pub fn samples_after(&self, steps: u64) -> u64 {
        let mut last = Stage { global_batch: 0, first_step: 0, first_sample: 0, steps: 0 };
        for stage in self.stages(u64::MAX / 2) {
            last = stage;
            if stage.first_step + stage.steps >= steps {
                break;
            }
        }
        let within = steps.saturating_sub(last.first_step);
        within.saturating_mul(last.global_batch as u64).saturating_add(last.first_sample)
    }
}
