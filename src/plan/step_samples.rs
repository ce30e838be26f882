//! Samples of each step: the batches of the ramp-up, one after another, without the samples that are left
//! out by hand.

use crate::segments::{BatchSchedule, MicroShape};
use std::ops::Range;

/// Samples of a run's steps. A step is a function of the samples consumed before it, so a resumed run takes
/// the same samples on every grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSamples {
    pub schedule: BatchSchedule,
    /// Samples that are left out.
    skip: Vec<Range<u64>>,
}

impl StepSamples {
    pub fn new(schedule: BatchSchedule, skip: Vec<Range<u64>>) -> StepSamples {
        StepSamples { schedule, skip }
    }

    /// Micro-batches of the step that takes these samples.
    pub fn micro(&self, samples: &Range<u64>) -> MicroShape {
        self.schedule.micro(samples)
    }

    /// Samples of the step that begins after `consumed` samples. A step that would reach into a range that
    /// is left out begins after it. Samples that are left out count as consumed.
    pub fn after(&self, consumed: u64) -> Range<u64> {
        let mut first = consumed;
        loop {
            let end = first.saturating_add(self.schedule.ramp.batch_at(first) as u64);
            let skipped = self
                .skip
                .iter()
                .find(|range| range.start < end && first < range.end);
            let Some(skipped) = skipped else { return first..end };
            first = skipped.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::length::LengthRamp;
    use crate::ramp::Ramp;
    use crate::segments::MicroStages;

    fn steps(ramp: Ramp, skip: Vec<Range<u64>>) -> StepSamples {
        let (micros, lengths) = (MicroStages::constant(1), LengthRamp::constant(8));
        StepSamples::new(BatchSchedule { ramp, micros, lengths }, skip)
    }

    fn walk(steps: &StepSamples, until: u64) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        let mut consumed = 0;
        while consumed < until {
            let step = steps.after(consumed);
            consumed = step.end;
            all.push(step);
        }
        all
    }

    #[test]
    fn no_step_has_a_sample_that_is_left_out() {
        let left_out = steps(Ramp::constant(4), vec![8..16, 21..22]);
        assert_eq!(walk(&left_out, 30), [0..4, 4..8, 16..20, 22..26, 26..30]);
        // The batch after the range is that of its place in the run, as if nothing were left out.
        let growing = Ramp::growing(2, 2, 8, 6);
        let left_out = steps(growing, vec![2..6, 6..9]);
        assert_eq!(walk(&left_out, 20), [0..2, 9..15, 15..21]);
        let whole = steps(growing, Vec::new());
        assert_eq!(walk(&whole, 9), [0..2, 2..4, 4..8, 8..14]);
    }

    #[test]
    fn ranges_that_touch_are_left_out_together() {
        let left_out = steps(Ramp::constant(4), vec![4..8, 8..9, 10..11]);
        assert_eq!(walk(&left_out, 14), [0..4, 11..15]);
        let to_the_end = steps(Ramp::constant(4), vec![4..5, 5..u64::MAX]);
        assert!(to_the_end.after(4).start == u64::MAX);
    }
}
