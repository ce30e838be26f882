//! Merges the copies that tensor ranks hold of one parameter: their mean or the first, and the largest
//! difference.

use super::{AdamState, Replicated};

/// Copies of a parameter that differ from the first one.
#[derive(Clone, Debug, PartialEq)]
pub struct Drift {
    pub name: String,
    pub state: AdamState,
    /// Rank whose copy differs most, and its largest difference.
    pub rank: usize,
    pub largest: f64,
}

#[derive(Default)]
pub struct ReplicaMerger {
    pub taken: Replicated,
    /// Parameters whose copies differ.
    drifts: Vec<Drift>,
    /// The last stage's copy of the embedding, by tensor rank.
    tied: Option<Drift>,
}

impl ReplicaMerger {
    pub fn new(taken: Replicated) -> ReplicaMerger {
        ReplicaMerger { taken, ..ReplicaMerger::default() }
    }

    /// Compares the copies of all tensor ranks with the first. Returns whether they differ.
    pub fn compare(&mut self, name: &str, state: AdamState, copies: &[Vec<f32>]) -> bool {
        let mut drift = Drift { name: name.into(), state, rank: 0, largest: 0.0 };
        for (rank, copy) in copies.iter().enumerate().skip(1) {
            drift.compare(rank, &copies[0], copy);
        }
        let differ = drift.largest > 0.0;
        if differ {
            self.drifts.push(drift);
        }
        differ
    }

    /// The copies of all tensor ranks as one.
    pub fn merge(&mut self, name: &str, state: AdamState, copies: Vec<Vec<f32>>) -> Vec<f32> {
        let ranks = copies.len();
        let differ = self.compare(name, state, &copies);
        let mut copies = copies.into_iter();
        let first = copies.next().unwrap_or_default();
        if !differ || self.taken == Replicated::First {
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

    /// Compares the copy of the embedding that a tensor rank of the last stage has with the first's.
    pub fn compare_tied(&mut self, name: &str, rank: usize, first: &[f32], last: &[f32]) {
        let state = AdamState::Master;
        let drift = || Drift { name: name.into(), state, rank, largest: 0.0 };
        self.tied
            .get_or_insert_with(drift)
            .compare(rank, first, last);
    }

    /// Copies that differed, without the embedding's.
    pub fn drifts(&self) -> &[Drift] {
        &self.drifts
    }

    /// The last stage's copy of the embedding, if it differed.
    pub fn tied(&self) -> Option<&Drift> {
        self.tied.as_ref().filter(|drift| drift.largest > 0.0)
    }

    /// Sentences about what differed since the last call.
    pub fn remarks(&mut self) -> Vec<String> {
        let mut remarks = Vec::new();
        for state in AdamState::ALL {
            let found = self.drifts.iter().filter(|drift| drift.state == state);
            let count = found.clone().count();
            let Some(Drift { name, rank, largest, .. }) =
                found.max_by(|a, b| a.largest.total_cmp(&b.largest))
            else {
                continue;
            };
            let taken = match self.taken {
                Replicated::Mean => "their mean is taken".to_string(),
                Replicated::First => "tensor rank 0's is taken".to_string(),
                Replicated::Rank(rank) => format!("tensor rank {rank}'s is taken"),
            };
            remarks.push(format!(
                "copies of {count} parameters on the tensor ranks differ in the {}, at most by \
                 {largest:.3e} ({name}, tensor rank {rank}): {taken}",
                state.name()
            ));
        }
        if let Some(Drift { rank, largest, .. }) = self.tied() {
            remarks.push(format!(
                "the last stage's copy of the embedding differs from the first's by at most \
                 {largest:.3e} (tensor rank {rank}): the first's is taken"
            ));
        }
        self.drifts.clear();
        self.tied = None;
        remarks
    }
}

impl Drift {
    fn compare(&mut self, rank: usize, first: &[f32], copy: &[f32]) {
        let largest = largest_difference(first, copy);
        if largest > self.largest {
            self.rank = rank;
            self.largest = largest;
        }
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    let pairs = a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b));
    pairs.map(f64::abs).fold(0.0, f64::max)
}
