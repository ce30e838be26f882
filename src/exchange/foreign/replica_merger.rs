//! Merges the copies that tensor ranks hold of one parameter: their mean or the first, and the largest
//! difference.

use super::{AdamState, Replicated};
use std::collections::BTreeMap;

#[derive(Default)]
pub struct ReplicaMerger {
    pub taken: Replicated,
    /// Largest difference between copies of a state, with the names it occurs in.
    differences: BTreeMap<&'static str, Vec<(String, f64)>>,
    /// Largest difference between the tied copies of the embedding.
    tied: Option<f64>,
}

impl ReplicaMerger {
    pub fn new(taken: Replicated) -> ReplicaMerger {
        ReplicaMerger { taken, ..ReplicaMerger::default() }
    }

    /// The copies of all tensor ranks as one.
    pub fn merge(&mut self, name: &str, state: AdamState, copies: Vec<Vec<f32>>) -> Vec<f32> {
        let ranks = copies.len();
        let mut copies = copies.into_iter();
        let first = copies.next().unwrap_or_default();
        let most = copies
            .as_slice()
            .iter()
            .map(|copy| largest_difference(&first, copy))
            .fold(0.0, f64::max);
        if most > 0.0 {
            self.differences
                .entry(state.name())
                .or_default()
                .push((name.to_string(), most));
        }
        if most == 0.0 || self.taken == Replicated::First {
            return first;
        }
        if let Replicated::Rank(rank) = self.taken {
            let mut copies = std::iter::once(first).chain(copies);
            return copies.nth(rank).unwrap_or_default();
        }
        let mut sums: Vec<f64> = first.into_iter().map(f64::from).collect();
        for copy in copies {
            sums.iter_mut()
                .zip(copy)
                .for_each(|(sum, value)| *sum += f64::from(value));
        }
        sums.into_iter()
            .map(|sum| (sum / ranks as f64) as f32)
            .collect()
    }

    /// Compares the last stage's copy of the embedding with the first's.
    pub fn compare_tied(&mut self, first: &[f32], last: &[f32]) {
        let most = largest_difference(first, last);
        self.tied = Some(self.tied.unwrap_or(0.0).max(most));
    }

    /// Sentences about what differed.
    pub fn remarks(&mut self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (state, mut found) in std::mem::take(&mut self.differences) {
            found.sort_by(|a, b| b.1.total_cmp(&a.1));
            let (name, most) = &found[0];
            let count = found.len();
            let taken = match self.taken {
                Replicated::Mean => "their mean is taken".to_string(),
                Replicated::First => "tensor rank 0's is taken".to_string(),
                Replicated::Rank(rank) => format!("tensor rank {rank}'s is taken"),
            };
            remarks.push(format!(
                "copies of {count} parameters on the tensor ranks differ in the {state}, at most by \
                 {most:.3e} ({name}): {taken}"
            ));
        }
        if let Some(most) = self.tied.take().filter(|most| *most > 0.0) {
            remarks.push(format!(
                "the last stage's copy of the embedding differs from the first's by at most {most:.3e}: \
                 the first's is taken"
            ));
        }
        remarks
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    let pairs = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b));
    pairs.map(f64::abs).fold(0.0, f64::max)
}
