//! Transfers micro-batches from the reader thread to the device.

use anyhow::Result;
use data::{CutRequest, Reader, Request, Source};
use device::Backend;
use launch::rank::Rank;
use manifest::Manifest;
use model::Inputs;
use plan::grid::Axis;
use plan::segments::MicroShape;
use plan::step_samples::StepSamples;
use std::sync::Arc;
use std::time::Duration;

/// Micro-batches that the reader thread prepares in advance.
const PREFETCH: usize = 4;

/// Samples of one data-parallel replica: of every `micro * replicas` consecutive samples, the
/// `replica`th `micro`.
#[derive(Clone, Copy, Debug)]
pub struct DataShard {
    pub micro: usize,
    pub replicas: usize,
    pub replica: usize,
}

impl DataShard {
    pub fn for_rank(rank: &Rank, m: &Manifest) -> DataShard {
        let replicas = rank.grid[Axis::Data];
        let replica = rank.coord[Axis::Data];
        DataShard { micro: m.batch.micro, replicas, replica }
    }

    /// All samples, for a single replica.
    pub fn whole(m: &Manifest) -> DataShard {
        DataShard { micro: m.batch.micro, replicas: 1, replica: 0 }
    }

    /// Micro-batches of each replica that together cover `samples`.
    pub fn rounds(&self, samples: u64) -> u64 {
        samples.div_ceil((self.micro * self.replicas) as u64)
    }

    /// The same replica with micro-batches of this number of samples.
    pub fn with_micro(self, micro: usize) -> DataShard {
        DataShard { micro, ..self }
    }

    fn requests(self, from: u64, to: u64) -> impl Iterator<Item = Request> + Send + 'static {
        Request::for_rank(from, to, self.micro, self.replicas, self.replica)
    }
}

/// Reads one dataset's samples in the order in which a run consumes them.
pub struct Loader {
    reader: Reader,
    /// Samples from this number on have a loss weight of 0.
    until: u64,
    /// Remaining micro-batches whose samples have a loss weight.
    counting: u64,
}

impl Loader {
    /// Micro-batches of one replica, for every step from `consumed` samples to the end of the run.
    pub fn training(
        source: &Arc<Source>,
        steps: StepSamples,
        shard: DataShard,
        consumed: u64,
        end: u64,
    ) -> Result<Loader> {
        let mut first = consumed;
        let steps = std::iter::from_fn(move || {
            let step = steps.after(first);
            first = step.end;
            let micro = steps.micro(&step);
            (step.end <= end).then_some((step, micro))
        });
        let requests = steps.flat_map(move |(step, MicroShape { samples, tokens })| {
            let requests = shard.with_micro(samples).requests(step.start, step.end);
            requests.map(move |request| CutRequest { request, tokens: Some(tokens) })
        });
        let reader = Reader::start(source.clone(), requests, PREFETCH)?;
        Ok(Loader { reader, until: u64::MAX, counting: u64::MAX })
    }

    /// Micro-batches of one replica, for the first `samples` of a validation set. The last round is
    /// padded with samples whose loss weight is 0.
    pub fn evaluation(source: &Arc<Source>, shard: DataShard, samples: u64) -> Result<Loader> {
        let whole = shard.rounds(samples) * (shard.micro * shard.replicas) as u64;
        let counting = shard
            .requests(0, whole)
            .filter(|r| r.first_sample < samples)
            .count() as u64;
        let requests = shard.requests(0, whole).map(move |mut request| {
            if request.first_sample >= samples {
                request.first_sample = 0;
            }
            request
        });
        let reader = Reader::start(source.clone(), requests, PREFETCH)?;
        Ok(Loader { reader, until: samples, counting })
    }

    /// Uploads the next micro-batch. Each sample has a weight of 1 / `samples` in the loss.
    pub fn load(&mut self, be: &dyn Backend, inputs: &Inputs, samples: u64) -> Result<()> {
        let mut batch = self.reader.next()?;
        let until = if self.counting == 0 { 0 } else { self.until };
        self.counting = self.counting.saturating_sub(1);
        let first = batch.first_sample();
        for (number, sample) in (first..).zip(batch.samples_mut()) {
            let share = if number < until { 1.0 / samples as f32 } else { 0.0 };
            sample.weights.iter_mut().for_each(|w| *w *= share);
        }
        inputs.upload(be, &batch);
        self.reader.recycle(batch);
        Ok(())
    }

    /// Total time spent waiting for the reader thread.
    pub fn wait(&self) -> Duration {
        self.reader.wait()
    }
}
