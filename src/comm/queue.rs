//! Communication queue of a rank: a thread that runs collectives or sends messages in the order in
//! which they were started, concurrently with the computing thread.

use super::Failed;
use base::Worker;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

type Job = Box<dyn FnOnce() -> Result<(), Failed> + Send>;

/// Maximum number of queued jobs. A step starts a few per layer.
const CAPACITY: usize = 4096;

/// Kind of queue. Messages have their own, because they are needed sooner than earlier collectives.
#[derive(Clone, Copy)]
pub enum QueueKind {
    Collectives,
    Messages,
}

impl QueueKind {
    pub const COUNT: usize = 2;

    fn name(self) -> &'static str {
        match self {
            QueueKind::Collectives => "queue",
            QueueKind::Messages => "messages",
        }
    }
}

/// Handle of a queue's thread.
pub struct Queue {
    worker: Worker<Job, ()>,
    /// Number of jobs that were queued.
    begun: u64,
    done: Arc<Done>,
}

/// Progress of a queue, shared with its thread.
#[derive(Default)]
pub struct Done {
    state: Mutex<DoneState>,
    changed: Condvar,
}

#[derive(Default)]
struct DoneState {
    /// Number of jobs that have ended.
    jobs: u64,
    /// Failure of a job. After it the remaining jobs are not run.
    failed: Option<Failed>,
}

impl Queue {
    /// Starts the queue. Fails if the thread cannot be started.
    pub fn new(kind: QueueKind, rank: usize) -> anyhow::Result<Queue> {
        let done = Arc::new(Done::default());
        let report = done.clone();
        let span = tracing::error_span!(parent: None, "rank", rank);
        let worker = Worker::start(
            &format!("{} of rank {rank}", kind.name()),
            CAPACITY,
            move |job: Job| {
                let _span = span.enter();
                let failed = report.state.lock().failed.is_some();
                let outcome = if failed { Ok(()) } else { job() };
                let mut state = report.state.lock();
                state.jobs += 1;
                if let Err(failed) = outcome {
                    state.failed = Some(failed);
                }
                report.changed.notify_all();
                None
            },
        )?;
        Ok(Queue { worker, begun: 0, done })
    }

    /// Queues a job and returns its number, from 1.
    pub fn begin(&mut self, job: Job) -> u64 {
        self.begun += 1;
        self.worker.send(job).expect("jobs return their failures");
        self.begun
    }

    pub fn done(&self) -> Arc<Done> {
        self.done.clone()
    }
}

impl Done {
    /// Sleeps until a job has ended.
    pub fn wait(&self, job: u64) -> Result<(), Failed> {
        let mut state = self.state.lock();
        while state.jobs < job {
            self.changed.wait(&mut state);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }
}
