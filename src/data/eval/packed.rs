//! Packs short sequences into samples. Each sequence sees only itself and has positions from 0, so
//! that its losses equal those of a separate sample without padding.

use super::{Samples, write_sequence};
use crate::batch::Sample;
use anyhow::Result;
use std::ops::Range;

/// Tokens, the last of which are scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// At least two tokens.
    pub tokens: Vec<u32>,
    /// Number of scored targets, from the end.
    pub scored: usize,
}

impl Sequence {
    /// Positions that it takes in a sample: the last token is only a target.
    fn len(&self) -> usize {
        self.tokens.len() - 1
    }
}

/// Sequences, and their grouping into samples.
#[derive(Debug)]
pub struct Packed {
    sequences: Vec<Sequence>,
    /// Consecutive sequences of each sample.
    samples: Vec<Range<usize>>,
}

impl Packed {
    /// Packs sequences of at most `seq_len` + 1 tokens in order into as few samples as possible.
    pub fn new(sequences: Vec<Sequence>, seq_len: usize) -> Packed {
        let mut samples: Vec<Range<usize>> = Vec::new();
        let mut left = 0;
        for (i, sequence) in sequences.iter().enumerate() {
            let len = sequence.len();
            assert!((1..=seq_len).contains(&len), "a sequence of {len} in samples of {seq_len}");
            match samples.last_mut() {
                Some(last) if len <= left => last.end = i + 1,
                _ => {
                    samples.push(i..i + 1);
                    left = seq_len;
                }
            }
            left -= len;
        }
        Packed { sequences, samples }
    }

    /// Sequences of a sample, each with its first position.
    fn sequences_of_sample(&self, number: u64) -> impl Iterator<Item = (usize, &Sequence)> {
        let mut at = 0;
        self.sequences[self.samples[number as usize].clone()]
            .iter()
            .map(move |sequence| {
                let from = at;
                at += sequence.len();
                (from, sequence)
            })
    }
}

impl Samples for Packed {
    fn count(&self) -> u64 {
        self.samples.len() as u64
    }

    fn fill(&self, number: u64, sample: &mut Sample<'_>) -> Result<()> {
        let mut end = 0;
        for (from, sequence) in self.sequences_of_sample(number) {
            let tokens = sequence.tokens.iter().map(|id| *id as i32);
            write_sequence(sample, from, tokens, sequence.scored);
            end = from + sequence.len();
        }
        sample.clear_from(end);
        Ok(())
    }

    /// Sum of losses of each sequence.
    fn values(&self, number: u64, losses: &[f32]) -> Vec<f64> {
        self.sequences_of_sample(number)
            .map(|(from, sequence)| {
                let end = from + sequence.len();
                losses[end - sequence.scored..end]
                    .iter()
                    .map(|loss| f64::from(*loss))
                    .sum()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    #[test]
    fn packed_sequences_see_only_themselves() {
        let sequence = |tokens: &[u32], scored| Sequence { tokens: tokens.to_vec(), scored };
        let all = vec![sequence(&[1, 2, 3], 1), sequence(&[4, 5], 1), sequence(&[6, 7, 8, 9], 2)];
        let packed = Packed::new(all, 5);
        assert_eq!(packed.count(), 2);
        let mut batch = Batch::default();
        batch.reshape(0, 2, 5);
        for (number, mut sample) in (0..).zip(batch.samples_mut()) {
            packed.fill(number, &mut sample).unwrap();
        }
        let samples: Vec<_> = batch.samples_mut().collect();
        assert_eq!(samples[0].tokens, [1, 2, 4, 0, 0]);
        assert_eq!(samples[0].targets, [2, 3, 5, 0, 0]);
        assert_eq!(samples[0].weights, [0.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(samples[0].positions, [0, 1, 0, 0, 0]);
        assert_eq!(samples[0].visible, [0, 1, 0, 2, 2, 3, 3, 4, 4, 5]);
        assert_eq!(
            (&*samples[1].tokens, &*samples[1].targets),
            (&[6, 7, 8, 0, 0][..], &[7, 8, 9, 0, 0][..])
        );
        assert_eq!(packed.values(0, &[9.0, 1.0, 2.0, 0.0, 0.0]), [1.0, 2.0]);
        assert_eq!(packed.values(1, &[9.0, 1.0, 2.0, 0.0, 0.0]), [3.0]);
    }
}
