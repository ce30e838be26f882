//! Sizes that grow over the first samples of a run: what the ramp-up of the batch and the warm-up of the
//! samples' length have in common. Each has its own rule for the size of a step.

/// Size that grows to `last`, or is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growing {
    pub last: usize,
    /// None if it is constant.
    pub growth: Option<Growth>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    pub start: usize,
    pub increment: usize,
    pub samples: u64,
}

impl Growing {
    pub fn constant(last: usize) -> Growing {
        assert!(last > 0, "a size of 0");
        Growing { last, growth: None }
    }

    /// Grows from `start` in multiples of `increment`, which divides `last - start`, over the first
    /// `samples` samples.
    pub fn new(start: usize, increment: usize, samples: u64, last: usize) -> Growing {
        assert!(0 < start && start <= last, "growth from {start} to {last}");
        assert!(increment > 0 && (last - start).is_multiple_of(increment));
        let growth = (start < last && samples > 0).then_some(Growth { start, increment, samples });
        Growing { last, growth }
    }

    /// Samples over which it grows.
    pub fn samples(&self) -> u64 {
        self.growth.map_or(0, |growth| growth.samples)
    }

    /// Every size, ascending.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let start = self.growth.map_or(self.last, |growth| growth.start);
        let increment = self.growth.map_or(1, |growth| growth.increment);
        (start..=self.last).step_by(increment)
    }
}
