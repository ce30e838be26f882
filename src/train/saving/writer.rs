//! The thread of a rank that writes its part of checkpoints, and on the first rank publishes them.

use crate::base::Seconds;
use crate::checkpoint::disk::Disk;
use crate::checkpoint::{self, Keep, Part, Snapshot, State};
use crate::manifest::Manifest;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

pub struct Writer {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

pub enum Job {
    /// This rank's part of a save, into the folder `fresh`.
    Part {
        snapshot: Snapshot,
        fresh: PathBuf,
        state: State,
    },
    Publish(Publish),
}

/// A checkpoint of which all parts are written.
pub struct Publish {
    pub fresh: PathBuf,
    /// By rank.
    pub parts: Vec<Part>,
    pub state: State,
    pub begun: Instant,
    /// How long training stood still for it, in seconds.
    pub stall: f64,
}

pub enum Done {
    Part(Snapshot, anyhow::Result<Part>),
    /// What to tell, or what went wrong.
    Published(anyhow::Result<String>),
}

impl Writer {
    pub fn start(m: &Manifest, rank: usize) -> anyhow::Result<Writer> {
        let keep = Keep { last: m.checkpoint.keep_last, every: m.checkpoint.keep_every };
        let (jobs, queue) = channel();
        let (tell, done) = channel();
        let work = move || {
            for job in queue {
                let done = match job {
                    Job::Part { snapshot, fresh, state } => {
                        let (disk, shares) = (Disk::default(), snapshot.shares());
                        let part = checkpoint::write_part(&disk, &fresh, rank, &shares, &state);
                        drop(shares);
                        Done::Part(snapshot, part)
                    }
                    Job::Publish(what) => Done::Published(what.run(keep)),
                };
                if tell.send(done).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("checkpoints".into()).spawn(work);
        let thread = thread.context("cannot start the thread that writes checkpoints")?;
        Ok(Writer { jobs: Some(jobs), done, thread: Some(thread) })
    }

    pub fn give(&self, job: Job) -> anyhow::Result<()> {
        let jobs = self.jobs.as_ref().expect("the queue is open until the writer is dropped");
        jobs.send(job).ok().context("the thread that writes checkpoints has died")
    }

    /// What is done, if anything is.
    pub fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// What is done next.
    pub fn wait(&self) -> anyhow::Result<Done> {
        self.done.recv().context("the thread that writes checkpoints has died")
    }
}

impl Drop for Writer {
    /// A run that ends in an error still lets what is under way come to its end.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Publish {
    /// Then removes what need not be kept.
    fn run(self, keep: Keep) -> anyhow::Result<String> {
        let Publish { fresh, parts, state, begun, stall } = self;
        let disk = Disk::default();
        let folder = checkpoint::publish(&disk, &fresh, parts, &state)
            .map_err(|error| checkpoint::abandon(&disk, &fresh, state.progress.step, error))?;
        let checkpoints = folder.parent().unwrap_or(Path::new("."));
        checkpoint::write_hint(&disk, checkpoints, state.progress.step)?;
        checkpoint::prune(&disk, checkpoints, keep)?;
        let (stall, seconds) = (Seconds(stall), Seconds(begun.elapsed().as_secs_f64()));
        Ok(format!("saved {} in {seconds} (training waited {stall})", folder.display()))
    }
}
