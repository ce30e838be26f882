//! Schedule of a run's steps: samples of a step, samples of a micro-batch, tokens of a sample. Each is a
//! function of the samples consumed, so that a resumed run, another grid and the planner agree.

use crate::length::LengthRamp;
use crate::ramp::Ramp;
use std::ops::Range;

/// Samples of a micro-batch, and tokens of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MicroShape {
    pub samples: usize,
    pub tokens: usize,
}

/// Micro-batch of a global batch: `first`, or that of the last stage whose global batch is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroStages {
    pub first: usize,
    /// Global batch from which on, and the micro-batch; ascending.
    pub later: Vec<(usize, usize)>,
}

impl MicroStages {
    pub fn constant(micro: usize) -> MicroStages {
        MicroStages { first: micro, later: Vec::new() }
    }

    /// Micro-batch of steps of `global` samples.
    pub fn at(&self, global: usize) -> usize {
        let stage = self.later.iter().rfind(|(from, _)| *from <= global);
        stage.map_or(self.first, |(_, micro)| *micro)
    }
}

/// Schedule of a run's steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSchedule {
    pub ramp: Ramp,
    pub micros: MicroStages,
    pub lengths: LengthRamp,
}

/// Consecutive steps that are equal but for their samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub global: usize,
    pub micro: MicroShape,
    /// Samples consumed before the segment.
    pub first_sample: u64,
    pub steps: u64,
}

impl Segment {
    /// Samples of all its steps.
    fn samples(&self) -> u64 {
        self.steps * self.global as u64
    }
}

impl BatchSchedule {
    /// Micro-batches of the step that takes these samples.
    pub fn micro(&self, samples: &Range<u64>) -> MicroShape {
        let global = (samples.end - samples.start) as usize;
        MicroShape { samples: self.micros.at(global), tokens: self.lengths.at(samples.end) }
    }

    /// Segments of a run of `samples` samples, in whole steps.
    pub fn segments(&self, samples: u64) -> Vec<Segment> {
        let mut segments = Vec::new();
        for phase in self.ramp.phases(samples) {
            let global = phase.global_batch;
            let end_of = |steps: u64| phase.first_sample + steps * global as u64;
            let mut done = 0;
            while done < phase.steps {
                let tokens = self.lengths.at(end_of(done + 1));
                // The length never shrinks, so bisection finds the last step with this length.
                let (mut same, mut more) = (done + 1, phase.steps + 1);
                while more - same > 1 {
                    let middle = same + (more - same) / 2;
                    if self.lengths.at(end_of(middle)) == tokens {
                        same = middle;
                    } else {
                        more = middle;
                    }
                }
                let micro = MicroShape { samples: self.micros.at(global), tokens };
                let (first_sample, steps) = (end_of(done), same - done);
                segments.push(Segment { global, micro, first_sample, steps });
                done = same;
            }
        }
        segments
    }

    /// Micro-batches of the first step.
    pub fn first_micro(&self) -> MicroShape {
        self.micro(&(0..self.ramp.batch_at(0) as u64))
    }

    /// For each size of micro-batches the longest samples, in any step that begins before the size changes.
    pub fn largest_micros(&self) -> Vec<MicroShape> {
        let mut largest: Vec<MicroShape> = Vec::new();
        for segment in self.segments(self.grown()) {
            let Segment { global, micro: MicroShape { samples, .. }, first_sample, .. } = segment;
            // A step after samples that are left out may begin between two others.
            let end = first_sample + segment.samples() + global as u64;
            let tokens = self.lengths.at(end);
            match largest.iter_mut().find(|micro| micro.samples == samples) {
                Some(micro) => micro.tokens = tokens.max(micro.tokens),
                None => largest.push(MicroShape { samples, tokens }),
            }
        }
        largest
    }

    /// Samples after which nothing grows any more, and one step after them.
    fn grown(&self) -> u64 {
        let end = self.ramp.samples().max(self.lengths.samples());
        // A step may reach over the end by less than a batch.
        end.saturating_add(3 * self.ramp.global() as u64)
    }

    /// Tokens of the first `samples` samples.
    pub fn tokens(&self, samples: u64) -> u64 {
        let full = self.lengths.full() as u64;
        if self.lengths.samples() == 0 {
            return samples.saturating_mul(full);
        }
        self.tokens_after(&self.segments(self.grown()), samples)
    }

    /// Tokens of the first `samples` samples, of which the first are in the segments of `growth`.
    fn tokens_after(&self, growth: &[Segment], samples: u64) -> u64 {
        let mut tokens = 0u64;
        let mut counted = 0;
        for segment in growth {
            let count = segment.samples().min(samples - counted);
            tokens = tokens.saturating_add(count.saturating_mul(segment.micro.tokens as u64));
            counted += count;
        }
        tokens.saturating_add((samples - counted).saturating_mul(self.lengths.full() as u64))
    }

    /// Fewest samples with at least so many tokens.
    pub fn samples_of_tokens(&self, tokens: u64) -> u64 {
        let full = self.lengths.full() as u64;
        if self.lengths.samples() == 0 || tokens == 0 {
            return tokens.div_ceil(full);
        }
        let growth = self.segments(self.grown());
        let (mut below, mut enough) = (0, tokens.div_ceil(full) + self.grown());
        while enough - below > 1 {
            let middle = below + (enough - below) / 2;
            if self.tokens_after(&growth, middle) >= tokens {
                enough = middle;
            } else {
                below = middle;
            }
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedules() -> Vec<BatchSchedule> {
        let lengths = [LengthRamp::constant(64), LengthRamp::growing(8, 8, 90, 64)];
        let ramps = [Ramp::constant(4), Ramp::growing(4, 4, 120, 16)];
        let micros = MicroStages { first: 1, later: vec![(8, 2), (16, 4)] };
        let mut all = Vec::new();
        for (lengths, ramp) in lengths.into_iter().flat_map(|l| ramps.map(|r| (l, r))) {
            all.push(BatchSchedule { ramp, micros: micros.clone(), lengths });
        }
        all
    }

    #[test]
    fn segments_are_the_steps_one_by_one() {
        for schedule in schedules() {
            let mut consumed = 0;
            let mut tokens = 0;
            for Segment { global, micro, first_sample, steps } in schedule.segments(300) {
                assert_eq!(first_sample, consumed);
                for _ in 0..steps {
                    let end = consumed + schedule.ramp.batch_at(consumed) as u64;
                    assert_eq!((end - consumed) as usize, global);
                    assert_eq!(schedule.micro(&(consumed..end)), micro, "at {consumed}");
                    tokens += (end - consumed) * micro.tokens as u64;
                    consumed = end;
                    assert_eq!(schedule.tokens(consumed), tokens);
                }
            }
            assert!(consumed <= 300 && consumed + 16 > 300);
            let largest = schedule.largest_micros();
            for consumed in 0..400 {
                let step = consumed..consumed + schedule.ramp.batch_at(consumed) as u64;
                let micro = schedule.micro(&step);
                let known = largest
                    .iter()
                    .find(|largest| largest.samples == micro.samples);
                assert!(known.is_some_and(|known| known.tokens >= micro.tokens), "{micro:?}");
            }
        }
    }

    #[test]
    fn tokens_and_samples_turn_into_each_other() {
        for schedule in schedules() {
            for samples in 1..400 {
                let tokens = schedule.tokens(samples);
                assert!(tokens > schedule.tokens(samples - 1));
                assert_eq!(schedule.samples_of_tokens(tokens), samples);
                assert_eq!(schedule.samples_of_tokens(tokens + 1), samples + 1);
            }
            assert_eq!(schedule.samples_of_tokens(0), 0);
        }
    }

    #[test]
    fn a_micro_batch_is_that_of_the_last_stage_reached() {
        let micros = MicroStages { first: 1, later: vec![(784, 2)] };
        assert_eq!([16, 768, 784, 2048].map(|global| micros.at(global)), [1, 1, 2, 2]);
        assert_eq!(MicroStages::constant(4).at(1), 4);
    }
}
