//! Micro-batches from the reader thread to the device.

use crate::data::{Reader, Request, Source};
use crate::device::Backend;
use crate::model::Inputs;
use crate::plan::ramp::Ramp;
use std::sync::Arc;
use std::time::Duration;

/// Micro-batches read ahead of training.
const AHEAD: usize = 4;

/// A source read in the order a run wants it.
pub struct Feed {
    reader: Reader,
}

impl Feed {
    /// The micro-batches of every step from `consumed` samples to the end of the run.
    pub fn training(
        source: &Arc<Source>,
        ramp: Ramp,
        micro: usize,
        consumed: u64,
        end: u64,
    ) -> anyhow::Result<Feed> {
        let mut first_sample = consumed;
        let mut left = 0;
        let requests = std::iter::from_fn(move || {
            if left == 0 {
                let global = ramp.batch_at(first_sample);
                if first_sample + global as u64 > end {
                    return None;
                }
                left = global / micro;
            }
            left -= 1;
            let request = Request { first_sample, samples: micro };
            first_sample += micro as u64;
            Some(request)
        });
        Ok(Feed { reader: Reader::start(source.clone(), requests, AHEAD)? })
    }

    /// The first `micros` micro-batches of a validation set.
    pub fn evaluation(source: &Arc<Source>, micro: usize, micros: u64) -> anyhow::Result<Feed> {
        let first = (0..micros).map(move |i| i * micro as u64);
        let requests = first.map(move |first_sample| Request { first_sample, samples: micro });
        Ok(Feed { reader: Reader::start(source.clone(), requests, AHEAD)? })
    }

    /// Loads the next micro-batch; each sample counts 1 / `of` in the loss, samples from number
    /// `until` on count nothing.
    pub fn load(
        &mut self,
        be: &dyn Backend,
        inputs: &Inputs,
        of: u64,
        until: u64,
    ) -> anyhow::Result<()> {
        let mut batch = self.reader.next()?;
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
