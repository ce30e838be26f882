//! A thread that reads batches ahead of training, so that a slow disk stalls no step.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::source::{Slot, Source};

/// Some samples, ready for the device. All are [samples · seq_len], row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Number of the first sample; the others follow it.
    pub first_sample: u64,
    pub samples: usize,
    pub seq_len: usize,
    /// Input ids.
    pub tokens: Vec<i32>,
    /// The id that follows each input.
    pub targets: Vec<i32>,
    /// How much each position's loss counts; a causal sample's weights sum to 1.
    pub weights: Vec<f32>,
    /// Position numbers, from 0 in each sample (in each document where positions are reset).
    pub positions: Vec<i32>,
    /// The half-open range of keys each position may see, as positions within its own sample,
    /// [samples · seq_len, 2].
    pub visible: Vec<i32>,
}

/// A batch to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub first_sample: u64,
    pub samples: usize,
}

impl Request {
    /// What one of `ranks` data-parallel ranks reads of samples `consumed .. total`, as Megatron's
    /// default sampler deals them out: `micro` samples to each rank in turn, a last round that does
    /// not reach all of them dropped. Which samples a run reads does not depend on `ranks`.
    pub fn of_rank(
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

impl Batch {
    /// Reads a batch into this one, reusing its memory.
    pub fn fill(&mut self, source: &Source, request: Request) -> Result<()> {
        let seq_len = source.seq_len();
        let count = request.samples * seq_len;
        (self.first_sample, self.samples) = (request.first_sample, request.samples);
        self.seq_len = seq_len;
        self.tokens.resize(count, 0);
        self.targets.resize(count, 0);
        self.weights.resize(count, 0.0);
        self.positions.resize(count, 0);
        self.visible.resize(2 * count, 0);
        let numbers = request.first_sample..request.first_sample + request.samples as u64;
        for sample in numbers.clone() {
            source.prefetch(sample);
        }
        for (i, sample) in numbers.enumerate() {
            let row = i * seq_len..(i + 1) * seq_len;
            let mut slot = Slot {
                tokens: &mut self.tokens[row.clone()],
                targets: &mut self.targets[row.clone()],
                weights: &mut self.weights[row.clone()],
                positions: &mut self.positions[row.clone()],
                visible: &mut self.visible[2 * row.start..2 * row.end],
            };
            source.read(sample, &mut slot)?;
        }
        Ok(())
    }
}

/// Batches in the order they were requested, read ahead by a thread of its own.
pub struct Reader {
    ready: Option<Receiver<Result<Batch>>>,
    used: SyncSender<Batch>,
    thread: Option<JoinHandle<()>>,
    waited: Duration,
}

impl Reader {
    /// Starts reading `requests`, at most `ahead` batches beyond the one being used.
    pub fn start(
        source: Arc<Source>,
        requests: impl Iterator<Item = Request> + Send + 'static,
        ahead: usize,
    ) -> Result<Reader> {
        let (send, ready) = sync_channel(ahead.max(1));
        let (used, recycled) = sync_channel::<Batch>(ahead + 2);
        let work = move || {
            for request in requests {
                let mut batch = recycled.try_recv().unwrap_or_default();
                let read = batch.fill(&source, request).map(|()| batch);
                let failed = read.is_err();
                if send.send(read).is_err() || failed {
                    return; // nobody listens any more, or there is nothing more to say
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("data reader".into())
            .spawn(work)
            .context("cannot start the thread that reads data")?;
        Ok(Reader { ready: Some(ready), used, thread: Some(thread), waited: Duration::ZERO })
    }

    /// The next batch, waiting for it if it is not there yet. Fails if reading it failed, or if
    /// every request has been answered.
    #[expect(clippy::should_implement_trait, reason = "failing, it is no Iterator")]
    pub fn next(&mut self) -> Result<Batch> {
        let start = Instant::now();
        let batch = self.ready.as_ref().and_then(|ready| ready.recv().ok());
        self.waited += start.elapsed();
        let Some(batch) = batch else {
            let died = self.thread.take().is_some_and(|thread| thread.join().is_err());
            ensure!(!died, "the thread that reads data died");
            bail!("the data reader has no more batches: all requests have been answered");
        };
        batch
    }

    /// Gives a batch's memory back, to be filled again.
    pub fn recycle(&mut self, batch: Batch) {
        match self.used.try_send(batch) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Total time `next` has blocked.
    pub fn wait(&self) -> Duration {
        self.waited
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.ready.take()); // the thread's next send fails, which ends it
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
