//! Worker threads: jobs in, results out.

use crate::threads;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Named worker thread. It processes jobs in order and queues their results. Dropping it waits for
/// the jobs already sent, and joins the thread.
pub struct Worker<J, R> {
    name: String,
    // None during drop: the channels are closed before the thread is joined.
    channels: Option<(SyncSender<J>, Receiver<R>)>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static, R: Send + 'static> Worker<J, R> {
    /// Starts the thread. Each queue holds at most `room` entries and allocates no more later.
    /// `work` returns None for a job without a result.
    pub fn start(
        name: &str,
        room: usize,
        mut work: impl FnMut(J) -> Option<R> + Send + 'static,
    ) -> Result<Worker<J, R>> {
        let (jobs, todo) = sync_channel::<J>(room);
        let (done, results) = sync_channel(room);
        let thread = Some(threads::spawn(name, move || {
            for job in todo {
                if let Some(result) = work(job) {
                    // During drop no receiver is left; the remaining jobs still run.
                    done.send(result).ok();
                }
            }
        })?);
        Ok(Worker { name: name.to_string(), channels: Some((jobs, results)), thread })
    }
}

impl<J, R> Worker<J, R> {
    /// Sends a job. Fails if the thread has panicked.
    pub fn send(&self, job: J) -> Result<()> {
        self.channels()
            .0
            .send(job)
            .ok()
            .with_context(|| self.death_message())
    }

    /// Waits for the next result. Fails if the thread has panicked.
    pub fn wait(&self) -> Result<R> {
        self.channels()
            .1
            .recv()
            .ok()
            .with_context(|| self.death_message())
    }

    /// Waits for the next result for at most `time`; None on timeout.
    pub fn wait_for(&self, time: Duration) -> Result<Option<R>> {
        match self.channels().1.recv_timeout(time) {
            Ok(result) => Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!(self.death_message()),
        }
    }

    /// Next result, if it is ready.
    pub fn poll(&self) -> Option<R> {
        self.channels().1.try_recv().ok()
    }

    fn channels(&self) -> &(SyncSender<J>, Receiver<R>) {
        self.channels.as_ref().expect("open until dropped")
    }

    fn death_message(&self) -> String {
        format!("the thread \"{}\" died", self.name)
    }
}

impl<J, R> Drop for Worker<J, R> {
    fn drop(&mut self) {
        drop(self.channels.take());
        if let Some(thread) = self.thread.take() {
            // The panic was printed where it happened, and `send` or `wait` returned an error.
            thread.join().ok();
        }
    }
}

/// Runs `work` on several threads, each with its own `state`, and passes the results to `sink` in
/// the order of the jobs. The caller's thread draws jobs and runs `sink`; at most `room` jobs are
/// in between. Stops at the first error of `sink`, or if threads cannot be started. A panic of
/// `work` propagates to the caller.
pub fn in_order<J: Send, S, R: Send>(
    threads: usize,
    room: usize,
    jobs: impl IntoIterator<Item = J>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, J) -> R + Sync,
    mut sink: impl FnMut(R) -> Result<()>,
) -> Result<()> {
    let (give, todo) = channel();
    let todo = Mutex::new(todo);
    std::thread::scope(|scope| {
        let (done, results) = channel();
        for number in 1..=threads {
            let done = done.clone();
            let todo = &todo;
            let state = &state;
            let work = &work;
            let name = format!("{number} of {threads}");
            threads::spawn_scoped(scope, &name, move || {
                let mut state = state();
                let next = || todo.lock().recv().ok();
                while let Some((number, job)) = next() {
                    let result = catch_unwind(AssertUnwindSafe(|| work(&mut state, job)));
                    if done.send((number, result)).is_err() {
                        return; // the sink has failed
                    }
                }
            })?;
        }
        // Both ends close when this returns, which ends the threads.
        let give = give;
        let results = results;
        let mut jobs = jobs.into_iter().fuse();
        let mut waiting = BTreeMap::new();
        let mut given = 0;
        let mut taken = 0;
        loop {
            while given - taken < room
                && let Some(job) = jobs.next()
            {
                give.send((given, job)).expect("the receiver is above");
                given += 1;
            }
            if taken == given {
                return Ok(());
            }
            while !waiting.contains_key(&taken) {
                let (number, result) = results.recv().expect("every job is answered");
                waiting.insert(number, result);
            }
            let result = waiting.remove(&taken).expect("it has just been found");
            taken += 1;
            sink(result.unwrap_or_else(|panic| resume_unwind(panic)))?;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs_and_the_first_error_ends_it() {
        let mut taken = Vec::new();
        let sum = |sum: &mut u64, job: u64| {
            *sum += 1;
            std::thread::yield_now();
            (job, *sum)
        };
        let ended = in_order(
            3,
            10,
            0..1000,
            || 0,
            sum,
            |(job, sum): (u64, u64)| {
                assert!((1..=1000).contains(&sum));
                taken.push(job);
                anyhow::ensure!(job < 900, "enough");
                Ok(())
            },
        );
        assert_eq!(ended.unwrap_err().to_string(), "enough");
        assert_eq!(taken, (0..=900).collect::<Vec<u64>>());
    }

    #[test]
    #[should_panic(expected = "job 7")]
    fn a_panic_is_the_callers() {
        in_order(
            2,
            4,
            0..100,
            || (),
            |_: &mut (), job| assert!(job != 7, "job {job}"),
            |()| Ok(()),
        )
        .unwrap();
    }

    #[test]
    fn a_worker_ends_its_jobs_and_says_that_it_died() {
        let (send, ended) = channel();
        let worker = Worker::start("counter", 8, move |job: u32| {
            assert!(job < 3, "too large");
            send.send(job).unwrap();
            job.is_multiple_of(2).then_some(10 * job)
        })
        .unwrap();
        (0..3).for_each(|job| worker.send(job).unwrap());
        assert_eq!((worker.wait().unwrap(), worker.wait().unwrap()), (0, 20));
        assert!(worker.poll().is_none());
        assert_eq!(worker.wait_for(Duration::ZERO).unwrap(), None);
        worker.send(5).unwrap();
        assert_eq!(worker.wait().unwrap_err().to_string(), "the thread \"counter\" died");
        drop(worker);
        assert_eq!(ended.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }
}
