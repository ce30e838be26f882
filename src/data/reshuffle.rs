//! Another order of the samples that a run has not read yet, after its seed has changed.

use base::rng;
use std::ops::Range;

/// Rounds of the Feistel network. Four make it a pseudorandom permutation (Luby and Rackoff 1988).
const ROUNDS: u64 = 4;

/// Permutation of a range of positions: each of them is read once, as before. It takes no memory,
/// whatever the length of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshuffle {
    range: Range<u64>,
    key: u64,
    /// Bits of each half of a position.
    half: u32,
}

impl Reshuffle {
    /// None if the range is empty.
    pub fn new(range: Range<u64>, seed: u64) -> Option<Reshuffle> {
        let count = range
            .end
            .checked_sub(range.start)
            .filter(|count| *count > 0)?;
        let bits = u64::BITS - (count - 1).leading_zeros();
        let key = rng::key(seed, "reshuffle");
        Some(Reshuffle { range, key, half: bits.div_ceil(2).max(1) })
    }

    /// Position in the order before, of position `k` in the order after. Positions outside of the range
    /// are unchanged.
    pub fn position(&self, k: u64) -> u64 {
        if !self.range.contains(&k) {
            return k;
        }
        // The network permutes a power of 4: values beyond the range are permuted again until one is
        // inside, which happens because the network is a permutation.
        let mut place = k - self.range.start;
        loop {
            place = self.permute(place);
            if place < self.range.end - self.range.start {
                return self.range.start + place;
            }
        }
    }

    /// Permutation of the numbers of 2 · `half` bits.
    fn permute(&self, x: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (x >> self.half, x & mask);
        for round in 0..ROUNDS {
            let counter = u128::from(self.range.start) << 64 | u128::from(round << 32 | right);
            let mixed = u64::from(rng::philox(self.key, counter)[0]);
            (left, right) = (right, left ^ mixed & mask);
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_read_once_and_elsewhere() {
        for (first, count) in [(0, 1), (5, 2), (0, 3), (7, 64), (100, 65), (3, 1000)] {
            let order = |seed| -> Vec<u64> {
                let change = Reshuffle::new(first..first + count, seed).unwrap();
                (first..first + count).map(|k| change.position(k)).collect()
            };
            let mut sorted = order(1);
            sorted.sort();
            assert_eq!(sorted, (first..first + count).collect::<Vec<_>>());
            if count >= 64 {
                assert_ne!(order(1), order(2), "the seed decides");
                let unmoved = order(1)
                    .iter()
                    .zip(first..)
                    .filter(|(a, b)| **a == *b)
                    .count();
                // One position is expected to be unmoved; a network that does nothing has all.
                assert!(unmoved < 10, "{unmoved} of {count} are where they were");
            }
        }
    }

    #[test]
    fn positions_outside_of_the_range_are_unchanged() {
        let change = Reshuffle::new(10..20, 1).unwrap();
        assert_eq!([9, 20, 21].map(|k| change.position(k)), [9, 20, 21]);
        assert_eq!(Reshuffle::new(10..10, 1), None);
    }
}
