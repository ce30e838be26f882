//! Micro-batches from the reader thread to the device.

use super::rank::Rank;
use crate::data::{Reader, Request, Source};
use crate::device::Backend;
use crate::manifest::Manifest;
use crate::model::Inputs;
use crate::plan::ramp::Ramp;
use std::sync::Arc;
use std::time::Duration;

/// Micro-batches read ahead of training.
const AHEAD: usize = 4;

/// Which samples a replica reads: `micro` in its turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub micro: usize,
    pub replicas: usize,
    pub replica: usize,
}

impl Turn {
    pub fn of(rank: &Rank, m: &Manifest) -> Turn {
        Turn { micro: m.batch.micro, replicas: rank.grid.data, replica: rank.at.data }
    }

    /// Of the only replica.
    pub fn alone(m: &Manifest) -> Turn {
        Turn { micro: m.batch.micro, replicas: 1, replica: 0 }
    }

    /// Micro-batches of each replica that together cover `samples`.
    pub fn rounds(&self, samples: u64) -> u64 {
        samples.div_ceil((self.micro * self.replicas) as u64)
    }

    fn requests(self, from: u64, to: u64) -> impl Iterator<Item = Request> + Send + 'static {
        Request::of_rank(from, to, self.micro, self.replicas, self.replica)
    }
}

/// A source read in the order a run wants it.
pub struct Feed {
    reader: Reader,
    /// Samples from this one on count nothing.
    until: u64,
    /// Micro-batches left that count.
    counting: u64,
}

impl Feed {
    /// A replica's micro-batches of every step from `consumed` samples to the end of the run.
    pub fn training(
        source: &Arc<Source>,
        ramp: Ramp,
        turn: Turn,
        consumed: u64,
        end: u64,
    ) -> anyhow::Result<Feed> {
        let mut first = consumed;
        let steps = std::iter::from_fn(move || {
            let step = first..first + ramp.batch_at(first) as u64;
            first = step.end;
            (step.end <= end).then_some(step)
        });
        let requests = steps.flat_map(move |step| turn.requests(step.start, step.end));
        let reader = Reader::start(source.clone(), requests, AHEAD)?;
        Ok(Feed { reader, until: u64::MAX, counting: u64::MAX })
    }

    /// A replica's micro-batches of the first `samples` of a validation set. A last round that does
    /// not reach all of them is filled up with samples that count nothing.
    pub fn evaluation(source: &Arc<Source>, turn: Turn, samples: u64) -> anyhow::Result<Feed> {
        let whole = turn.rounds(samples) * (turn.micro * turn.replicas) as u64;
        let counting = turn.requests(0, whole).filter(|r| r.first_sample < samples).count() as u64;
        let fill = move |request: Request| match request.first_sample < samples {
            true => request,
            false => Request { first_sample: 0, ..request },
        };
        let requests = turn.requests(0, whole).map(fill);
        let reader = Reader::start(source.clone(), requests, AHEAD)?;
        Ok(Feed { reader, until: samples, counting })
    }

    /// Loads the next micro-batch; each sample counts 1 / `of` in the loss.
    pub fn load(&mut self, be: &dyn Backend, inputs: &Inputs, of: u64) -> anyhow::Result<()> {
        let mut batch = self.reader.next()?;
        let until = if self.counting == 0 { 0 } else { self.until };
        self.counting = self.counting.saturating_sub(1);
        let samples = batch.first_sample..;
        for (sample, weights) in samples.zip(batch.weights.chunks_mut(batch.seq_len)) {
            let share = if sample < until { 1.0 / of as f32 } else { 0.0 };
            weights.iter_mut().for_each(|w| *w *= share);
        }
        inputs.upload(be, &batch);
        self.reader.recycle(batch);
        Ok(())
    }

    /// Time spent waiting for the reader so far.
    pub fn wait(&self) -> Duration {
        self.reader.wait()
    }
}
