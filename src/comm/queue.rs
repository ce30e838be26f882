//! The communication queue of a rank: a thread that runs collectives in the order they were begun,
//! beside the thread that computes.

use super::Failed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() -> Result<(), Failed> + Send>;

pub struct Queue {
    jobs: Option<Sender<Job>>,
    begun: u64,
    done: Arc<Done>,
    thread: Option<JoinHandle<()>>,
}

/// How many jobs have ended; after a failure none are run.
#[derive(Default)]
pub struct Done {
    state: Mutex<(u64, Option<Failed>)>,
    changed: Condvar,
}

impl Queue {
    pub fn new(rank: usize) -> Queue {
        let (jobs, todo) = channel::<Job>();
        let done = Arc::new(Done::default());
        let report = done.clone();
        let run = move || {
            for job in todo {
                let failed = report.lock().1.is_some();
                let outcome = if failed { Ok(()) } else { job() };
                let mut state = report.lock();
                state.0 += 1;
                if let Err(failed) = outcome {
                    state.1 = Some(failed);
                }
                report.changed.notify_all();
            }
        };
        let name = format!("queue of rank {rank}");
        let thread = std::thread::Builder::new().name(name).spawn(run).expect("a thread");
        Queue { jobs: Some(jobs), begun: 0, done, thread: Some(thread) }
    }

    /// The job's number, from 1.
    pub fn begin(&mut self, job: Job) -> u64 {
        self.begun += 1;
        self.jobs.as_ref().expect("open until dropped").send(job).expect("the thread lives");
        self.begun
    }

    pub fn done(&self) -> Arc<Done> {
        self.done.clone()
    }
}

impl Done {
    /// Sleeps until a job has ended.
    pub fn wait(&self, job: u64) -> Result<(), Failed> {
        let mut state = self.lock();
        while state.0 < job {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.1.clone().map_or(Ok(()), Err)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, Option<Failed>)> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("jobs return their failures");
        }
    }
}
