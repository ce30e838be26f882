//! Warm-up of the sequence length: samples are cut to a length that grows, as by DeepSpeed's
//! curriculum learning with the schedule `fixed_linear` (Li et al. 2022, "The stability-efficiency
//! dilemma: investigating sequence length warmup for training GPT models").

use super::growth::Growing;

/// Tokens of a sample that grow to the full length, or are constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRamp(Growing);

impl LengthRamp {
    pub fn constant(full: usize) -> LengthRamp {
        LengthRamp(Growing::constant(full))
    }

    /// Warm-up from `start` to `full` tokens in multiples of `increment`, over the first `samples` samples.
    /// `increment` divides `full - start`.
    pub fn growing(start: usize, increment: usize, samples: u64, full: usize) -> LengthRamp {
        LengthRamp(Growing::new(start, increment, samples, full))
    }

    /// Final length.
    pub fn full(&self) -> usize {
        self.0.last
    }

    /// Every length of the warm-up, ascending.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + use<> {
        self.0.sizes()
    }

    /// Tokens of each sample of a step that ends after `consumed` samples. (DeepSpeed counts steps from 1,
    /// which is the end of a step.)
    pub fn at(&self, consumed: u64) -> usize {
        match self.0.growth {
            Some(growth) if consumed < growth.samples => {
                let share = consumed as f64 / growth.samples as f64;
                let grown = (share * (self.full() - growth.start) as f64) as usize;
                growth.start + grown / growth.increment * growth.increment
            }
            _ => self.full(),
        }
    }

    /// Samples after which the length is final.
    pub fn samples(&self) -> u64 {
        self.0.samples()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that DeepSpeed's own test expects of its scheduler: 2 to 10 in steps of 2, over 8 steps.
    #[test]
    fn lengths_are_deepspeeds() {
        const STEPS: [usize; 10] = [2, 4, 4, 6, 6, 8, 8, 10, 10, 10];
        for batch in [1, 16] {
            let ramp = LengthRamp::growing(2, 2, 8 * batch, 10);
            let lengths: Vec<usize> = (1..=10).map(|step| ramp.at(step * batch)).collect();
            assert_eq!(lengths, STEPS);
        }
    }

    #[test]
    fn a_warm_up_reaches_every_length_and_ends() {
        let ramp = LengthRamp::growing(64, 8, 100_000, 2048);
        let mut reached: Vec<usize> = (0..=100_000).map(|consumed| ramp.at(consumed)).collect();
        assert!(reached.is_sorted());
        reached.dedup();
        assert_eq!(reached, ramp.lengths().collect::<Vec<_>>());
        assert_eq!([0, 99_999, 100_000].map(|at| ramp.at(at)), [64, 2040, 2048]);
        assert_eq!(LengthRamp::growing(8, 8, 0, 64), LengthRamp::constant(64));
        assert_eq!(LengthRamp::constant(64).lengths().collect::<Vec<_>>(), [64]);
    }
}
