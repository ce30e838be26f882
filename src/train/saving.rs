//! Saving while training goes on: a snapshot between two steps, written by a thread of its own.

use crate::base::{Bytes, Seconds};
use crate::checkpoint::disk::Disk;
use crate::checkpoint::{self, Group, Keep, Past, Progress, Rng, Snapshot, State};
use crate::data::Plan;
use crate::engine::Engine;
use crate::manifest::{Checkpoint, Loaded, Manifest, Optimizer};
use crate::model::Slot;
use anyhow::Context;
use signal_hook::consts::SIGUSR1;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Steps whose loss and gradient norm a checkpoint remembers.
const REMEMBERED: usize = 16;

/// Saves a run's state. Holds as many snapshots as saves may be in flight, and no more.
pub struct Saver {
    free: Vec<Snapshot>,
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    writer: Option<JoinHandle<()>>,
    in_flight: usize,
    wait: bool,
    state: State,
    history: VecDeque<Past>,
    asked: Arc<AtomicBool>,
    /// The step of the last save that was begun.
    saved: Option<u64>,
}

struct Job {
    snapshot: Snapshot,
    state: State,
    /// How long training stood still for it, in seconds.
    stall: f64,
}

struct Done {
    snapshot: Snapshot,
    /// What to tell, or what went wrong.
    outcome: anyhow::Result<String>,
}

impl Saver {
    /// Reserves the snapshots and starts the writer. `state` is where the run stands; SIGUSR1 asks
    /// for a save from now on.
    pub fn open(m: &Manifest, engine: &Engine, state: State) -> anyhow::Result<Saver> {
        let checkpoints = folder(m);
        let Checkpoint { keep_last: last, keep_every: every, in_flight, .. } = m.checkpoint;
        let free: Vec<_> = (0..in_flight.max(1)).map(|_| Snapshot::reserve(engine)).collect();
        let (jobs, queue) = channel();
        let (tell, done) = channel();
        let keep = Keep { last, every };
        let work = move || {
            for job in queue {
                if tell.send(write(&checkpoints, keep, job)).is_err() {
                    return;
                }
            }
        };
        let writer = std::thread::Builder::new().name("checkpoints".into()).spawn(work);
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, asked.clone()).context("cannot catch SIGUSR1")?;
        Ok(Saver {
            free,
            jobs: Some(jobs),
            done,
            writer: Some(writer.context("cannot start the thread that writes checkpoints")?),
            in_flight: 0,
            wait: in_flight == 0,
            history: state.history.iter().copied().collect(),
            saved: (state.progress.step > 0).then_some(state.progress.step),
            state,
            asked,
        })
    }

    /// Host memory reserved for snapshots.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.free.iter().map(|snapshot| snapshot.bytes().0).sum())
    }

    /// Remembers a finished step.
    pub fn step(&mut self, past: Past, lr: f64) {
        if self.history.len() == REMEMBERED {
            self.history.pop_front();
        }
        self.history.push_back(past);
        self.state.lr = lr;
    }

    /// Whether a save was asked for by SIGUSR1 since the last save.
    pub fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Begins to save the engine's state, unless that was done after the same step already. Waits
    /// for an older save where as many are in flight as may be. Returns what was finished.
    pub fn save(
        &mut self,
        engine: &Engine,
        progress: Progress,
        next_batch: u64,
        seq_len: usize,
    ) -> anyhow::Result<Vec<String>> {
        self.asked.store(false, Ordering::Relaxed);
        if self.saved == Some(progress.step) {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let mut notes = Vec::new();
        let mut snapshot = match self.free.pop() {
            Some(snapshot) => snapshot,
            None => {
                notes.push(self.next()?);
                self.free.pop().expect("a finished save gives its snapshot back")
            }
        };
        snapshot.take(engine);
        self.saved = Some(progress.step);
        let mut state = State { progress, next_batch, ..self.state.clone() };
        state.consumed_tokens = progress.consumed_samples * seq_len as u64;
        state.history = self.history.iter().copied().collect();
        state.optimizer.groups.iter_mut().for_each(|group| group.step = progress.step);
        let job = Job { snapshot, state, stall: started.elapsed().as_secs_f64() };
        let jobs = self.jobs.as_ref().expect("the queue is open until the saver is dropped");
        jobs.send(job).ok().context("the thread that writes checkpoints has died")?;
        self.in_flight += 1;
        if self.wait {
            notes.push(self.next()?);
        }
        Ok(notes)
    }

    /// What was finished since the last call. A save that failed is the error.
    pub fn poll(&mut self) -> anyhow::Result<Vec<String>> {
        let mut notes = Vec::new();
        while let Ok(done) = self.done.try_recv() {
            notes.push(self.take_back(done)?);
        }
        Ok(notes)
    }

    /// Waits for everything in flight.
    pub fn finish(&mut self) -> anyhow::Result<Vec<String>> {
        (0..self.in_flight).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> anyhow::Result<String> {
        let done = self.done.recv().context("the thread that writes checkpoints has died")?;
        self.take_back(done)
    }

    fn take_back(&mut self, done: Done) -> anyhow::Result<String> {
        self.in_flight -= 1;
        self.free.push(done.snapshot);
        done.outcome
    }
}

impl Drop for Saver {
    /// A run that ends in an error still lets a save under way come to its end.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(writer) = self.writer.take() {
            writer.join().ok();
        }
    }
}

/// Where a run's checkpoints are.
pub fn folder(m: &Manifest) -> PathBuf {
    m.log.folder.join("checkpoints")
}

/// Writes one save, then removes what need not be kept.
fn write(checkpoints: &Path, keep: Keep, job: Job) -> Done {
    let started = Instant::now();
    let disk = Disk::default();
    let step = job.state.progress.step;
    let saved = checkpoint::save(&disk, checkpoints, &job.snapshot.shares(), &job.state);
    let outcome = saved.and_then(|folder| {
        checkpoint::write_hint(&disk, checkpoints, step)?;
        checkpoint::prune(&disk, checkpoints, keep)?;
        let (stall, seconds) = (Seconds(job.stall), Seconds(started.elapsed().as_secs_f64()));
        Ok(format!("saved {} in {seconds} (training waited {stall})", folder.display()))
    });
    Done { snapshot: job.snapshot, outcome }
}

/// The state of a run that has not begun.
pub fn blank<'s>(
    loaded: &Loaded,
    slots: impl Iterator<Item = &'s Slot>,
    data: Vec<checkpoint::DataId>,
) -> State {
    let m = &loaded.manifest;
    let Optimizer::AdamW { beta1, beta2, eps, weight_decay, .. } = m.optimizer;
    let slots: Vec<&Slot> = slots.collect();
    let names = |decay| slots.iter().filter(move |slot| slot.spec.decay == decay);
    let group = |decay: bool| Group {
        weight_decay: if decay { weight_decay } else { 0.0 },
        step: 0,
        tensors: names(decay).map(|slot| slot.name.clone()).collect(),
    };
    State {
        run: checkpoint::nonce(),
        progress: Progress::default(),
        consumed_tokens: 0,
        next_batch: m.batch.ramp().batch_at(0) as u64,
        lr: 0.0,
        loss_scale: None,
        rng: Rng {
            generator: "philox4x32-10".to_string(),
            seed: m.train.seed,
            data_seed: m.data.seed,
        },
        optimizer: checkpoint::Optimizer {
            rule: "adamw".to_string(),
            beta1,
            beta2,
            eps,
            groups: vec![group(true), group(false)],
        },
        history: Vec::new(),
        data,
        mixture: Plan::of(&m.data, m.train.samples),
        imported: None,
        manifest: loaded.effective.clone(),
    }
}
