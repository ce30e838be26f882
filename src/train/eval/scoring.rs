//! Scores samples on all ranks together. Replicas take micro-batches in turn, as in training. Rank 0
//! receives every sample's values in the samples' order, so that sums do not depend on the grid.

use super::super::loader::DataShard;
use base::progress::Progress;
use data::Batch;
use data::eval::{Accuracy, Samples, Task};
use device::Backend;
use engine::LossSource;
use launch::rank::Rank;
use model::Inputs;
use plan::grid::Axis;

/// Micro-batches of each replica per exchange with rank 0: enough to fill a pipeline, few enough to
/// be sent at once.
const ROUNDS: u64 = 32;

/// Model on the ranks of a grid.
pub struct Scoring<'a> {
    pub rank: &'a Rank<'a>,
    pub be: &'a dyn Backend,
    pub model: &'a dyn LossSource,
    pub shard: DataShard,
    pub seq_len: usize,
    /// Progress over the tokens of all samples; None on ranks that show none.
    pub progress: Option<&'a Progress>,
}

/// Number of a sample, and its values as bits: JSON has no NaN.
type SampleValues = (u64, Vec<u64>);

impl Scoring<'_> {
    /// Calls `take` on rank 0 with the values of each sample, in order. A collective.
    pub fn score_each(
        &self,
        samples: &dyn Samples,
        take: &mut dyn FnMut(u64, &[f64]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let rounds = self.shard.rounds(samples.count());
        let mut batch = Batch::default();
        for first in (0..rounds).step_by(ROUNDS as usize) {
            let mine = self.score_rounds(samples, first..rounds.min(first + ROUNDS), &mut batch)?;
            let mut all: Vec<SampleValues> = self.rank.gather(&mine)?.concat();
            all.sort_by_key(|(number, _)| *number);
            let taken = all.iter().try_for_each(|(number, values)| {
                let values: Vec<f64> = values.iter().map(|bits| f64::from_bits(*bits)).collect();
                take(*number, &values)
            });
            self.rank.agree(taken)?;
        }
        Ok(())
    }

    /// Scores this rank's share of some rounds. If the samples end within a round, the rest of it is
    /// empty. Returns the values on the first tensor-parallel rank of a replica's last stage.
    fn score_rounds(
        &self,
        samples: &dyn Samples,
        rounds: std::ops::Range<u64>,
        batch: &mut Batch,
    ) -> anyhow::Result<Vec<SampleValues>> {
        let DataShard { micro, replicas, replica } = self.shard;
        let first_of = |round: u64| round * (micro * replicas) as u64 + (replica * micro) as u64;
        let mut loading = rounds.clone();
        let mut scored = rounds.clone();
        let mut values = Vec::new();
        let micros = (rounds.end - rounds.start) as usize;
        self.model.score(
            &mut |inputs: &Inputs| {
                let first = first_of(loading.next().expect("one for each micro-batch"));
                batch.reshape(first, micro, self.seq_len);
                for (number, mut sample) in (first..).zip(batch.samples_mut()) {
                    if number < samples.count() {
                        samples.fill(number, &mut sample)?;
                    } else {
                        sample.clear_from(0);
                    }
                }
                inputs.upload(self.be, batch);
                let computed = (first + (micro * replicas) as u64)
                    .min(samples.count())
                    .saturating_sub(first);
                if let Some(progress) = self.progress {
                    progress.add(computed * self.seq_len as u64);
                }
                Ok(())
            },
            micros,
            &mut |losses: &[f32]| {
                let first = first_of(scored.next().expect("one for each micro-batch"));
                for (number, losses) in (first..samples.count()).zip(losses.chunks(self.seq_len)) {
                    let bits = samples.values(number, losses).into_iter().map(f64::to_bits);
                    values.push((number, bits.collect()));
                }
            },
        )?;
        Ok(if self.rank.coord[Axis::Tensor] == 0 { values } else { Vec::new() })
    }

    /// Accuracy on a task's questions, on rank 0. A collective.
    pub fn score_task(&self, task: &Task) -> anyhow::Result<Option<Accuracy>> {
        let mut losses = Vec::new();
        self.score_each(&task.packed, &mut |_, values| {
            losses.extend_from_slice(values);
            Ok(())
        })?;
        Ok(self.rank.is_first().then(|| task.accuracy(&losses)))
    }
}
