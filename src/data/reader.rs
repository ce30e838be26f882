//! Thread that reads batches ahead of training, so that a slow disk does not delay a step.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::batch::Batch;
use super::source::Source;
use base::{Moment, Worker};

/// Batch to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub first_sample: u64,
    pub samples: usize,
}

impl Request {
    /// Requests of one of `ranks` data-parallel ranks for samples `consumed .. total`, in the order
    /// of Megatron's default sampler: `micro` samples to each rank in turn. A last round that does
    /// not reach all ranks is dropped. The samples that a run reads do not depend on `ranks`.
    pub fn for_rank(
        consumed: u64,
        total: u64,
        micro: usize,
        ranks: usize,
        rank: usize,
    ) -> impl Iterator<Item = Request> + Send + 'static {
        let round = (micro * ranks) as u64;
        let rounds = total.saturating_sub(consumed) / round;
        (0..rounds).map(move |i| Request {
            first_sample: consumed + i * round + (rank * micro) as u64,
            samples: micro,
        })
    }
}

/// Batch to read whose samples may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutRequest {
    pub request: Request,
    /// Tokens of each sample; None for whole samples.
    pub tokens: Option<usize>,
}

impl From<Request> for CutRequest {
    fn from(request: Request) -> CutRequest {
        CutRequest { request, tokens: None }
    }
}

impl Batch {
    /// Reads a batch into this one, reusing its memory.
    pub fn fill(&mut self, source: &Source, request: impl Into<CutRequest>) -> Result<()> {
        let CutRequest { request, tokens } = request.into();
        let tokens = tokens.unwrap_or(source.seq_len());
        self.reshape(request.first_sample, request.samples, tokens);
        let numbers = request.first_sample..request.first_sample + request.samples as u64;
        for number in numbers.clone() {
            source.prefetch(number);
        }
        for (mut sample, number) in self.samples_mut().zip(numbers) {
            source.read(number, &mut sample)?;
        }
        Ok(())
    }
}

/// Reads batches ahead on its own thread, in the order of the requests. A fixed number of buffers
/// circulates: the thread fills them, training returns them.
pub struct Reader {
    thread: Worker<Batch, Result<Batch>>,
    /// Returned buffers, to be filled again.
    spare: Vec<Batch>,
    waited: Duration,
}

impl Reader {
    /// Starts reading `requests`, at most `ahead` batches beyond the one in use.
    pub fn start<R: Into<CutRequest>>(
        source: Arc<Source>,
        requests: impl Iterator<Item = R> + Send + 'static,
        ahead: usize,
    ) -> Result<Reader> {
        let ahead = ahead.max(1);
        let mut requests = requests.fuse();
        let thread = Worker::start("data reader", ahead + 1, move |mut batch: Batch| {
            let Some(request) = requests.next() else {
                let why = "the data reader has no more batches: all requests have been answered";
                return Some(Err(anyhow::anyhow!(why)));
            };
            Some(batch.fill(&source, request).map(|()| batch))
        })?;
        for _ in 0..ahead {
            thread.send(Batch::default())?;
        }
        Ok(Reader { thread, spare: Vec::with_capacity(ahead + 1), waited: Duration::ZERO })
    }

    /// Waits for the next batch. Fails if reading it failed, or if every request has been answered.
    #[expect(clippy::should_implement_trait, reason = "it can fail, unlike an Iterator")]
    pub fn next(&mut self) -> Result<Batch> {
        let start = Moment::now();
        let batch = self.thread.wait();
        self.waited += start.elapsed();
        self.thread.send(self.spare.pop().unwrap_or_default())?;
        batch?
    }

    /// Returns a batch's memory, to be filled again.
    pub fn recycle(&mut self, batch: Batch) {
        if self.spare.len() < self.spare.capacity() {
            self.spare.push(batch);
        }
    }

    /// Total time that `next` has blocked.
    pub fn wait(&self) -> Duration {
        self.waited
    }
}
