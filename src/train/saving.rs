//! Saving while training goes on. Every rank copies what it holds between two steps; a thread of its
//! own writes that. Once all have written, which they learn of between two later steps, the first
//! rank's thread writes the index and gives the checkpoint its name.
//!
//! Methods that take a `Rank` are called by all ranks at the same step.

mod writer;

use super::rank::Rank;
use crate::base::Bytes;
use crate::checkpoint::disk::Disk;
use crate::checkpoint::{self, Group, Past, Progress, Rng, Snapshot, State};
use crate::data::Plan;
use crate::engine::Engine;
use crate::manifest::{Loaded, Manifest, Optimizer};
use crate::model::{Layout, Part, Slot};
use anyhow::Context;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;
use writer::{Done, Job, Publish, Writer};

/// Steps whose loss and gradient norm a checkpoint remembers.
const REMEMBERED: usize = 16;

/// Saves a run's state. Holds as many snapshots as saves may be in flight, and no more.
pub struct Saver {
    checkpoints: PathBuf,
    free: Vec<Snapshot>,
    /// Of all ranks, in one checkpoint.
    saved_bytes: u64,
    /// Whether the loss has a scale to be saved.
    scaled: bool,
    writer: Writer,
    /// Oldest first; the same on all ranks, but for the parts.
    in_flight: VecDeque<Flight>,
    most_in_flight: usize,
    wait: bool,
    /// Checkpoints that are being given their name.
    publishing: usize,
    /// What was finished since it was last asked for.
    notes: Vec<String>,
    state: State,
    history: VecDeque<Past>,
    /// The step of the last save that was begun.
    saved: Option<u64>,
}

/// A save that was begun.
struct Flight {
    fresh: PathBuf,
    state: State,
    begun: Instant,
    /// How long training stood still for it.
    stall: f64,
    /// What this rank has written, or why it could not.
    part: Option<anyhow::Result<checkpoint::Part>>,
}

impl Saver {
    /// Reserves the snapshots and starts the writer. `state` is where the run stands.
    pub fn open(m: &Manifest, rank: &Rank, engine: &Engine, state: State) -> anyhow::Result<Saver> {
        let most_in_flight = m.checkpoint.in_flight.max(1);
        Ok(Saver {
            checkpoints: folder(m),
            free: (0..most_in_flight).map(|_| Snapshot::reserve(engine)).collect(),
            saved_bytes: checkpoint::saved_bytes(&m.model),
            scaled: m.loss_scale.is_some(),
            writer: Writer::start(m, rank.number())?,
            in_flight: VecDeque::new(),
            most_in_flight,
            wait: m.checkpoint.in_flight == 0,
            publishing: 0,
            notes: Vec::new(),
            history: state.history.iter().copied().collect(),
            saved: (state.progress.step > 0).then_some(state.progress.step),
            state,
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

    /// Begins to save the engine's state, unless that was done after the same step already. Waits
    /// for an older save where as many are in flight as may be.
    pub fn save(
        &mut self,
        rank: &Rank,
        engine: &Engine,
        progress: Progress,
        next_batch: u64,
        seq_len: usize,
    ) -> anyhow::Result<()> {
        if self.saved == Some(progress.step) {
            return Ok(());
        }
        let begun = Instant::now();
        rank.doing("saving");
        while self.in_flight.len() >= self.most_in_flight {
            self.settle(rank)?;
        }
        let (disk, step, bytes) = (Disk::default(), progress.step, self.saved_bytes);
        let fresh = rank.first(|| checkpoint::begin(&disk, &self.checkpoints, step, bytes))?;
        let mut snapshot = self.free.pop().expect("a part that was written frees its snapshot");
        snapshot.take(engine);
        self.saved = Some(step);
        let mut state = State { progress, next_batch, ..self.state.clone() };
        state.consumed_tokens = progress.consumed_samples * seq_len as u64;
        state.history = self.history.iter().copied().collect();
        let scale = engine.scale();
        state.loss_scale = self.scaled.then_some(scale);
        state.optimizer.groups.iter_mut().for_each(|group| group.step = scale.updates);
        let (to, of) = (fresh.clone(), state.clone());
        self.writer.give(Job::Part { snapshot, fresh: to, state: of })?;
        let stall = begun.elapsed().as_secs_f64();
        self.in_flight.push_back(Flight { fresh, state, begun, stall, part: None });
        if self.wait { self.finish(rank) } else { Ok(()) }
    }

    /// Whether this rank has written its part of the oldest save in flight.
    pub fn written(&mut self) -> anyhow::Result<bool> {
        while let Some(done) = self.writer.done() {
            self.note(done)?;
        }
        Ok(self.in_flight.front().is_some_and(|flight| flight.part.is_some()))
    }

    /// Waits until all ranks have written their part of the oldest save in flight, and has it
    /// published.
    pub fn settle(&mut self, rank: &Rank) -> anyhow::Result<()> {
        while !self.written()? {
            let done = self.writer.wait()?;
            self.note(done)?;
        }
        let flight = self.in_flight.pop_front().expect("something is in flight");
        let Flight { fresh, state, begun, stall, part } = flight;
        let (disk, step) = (Disk::default(), state.progress.step);
        let part = part.expect("written").with_context(|| {
            let intact = self.checkpoints.display();
            format!("checkpoint of step {step} was not saved; those in {intact} are as they were")
        });
        let part = rank.all(part).inspect_err(|_| {
            if rank.is_first() {
                let _ = disk.remove_folder(&fresh); // what is left of it must not fill the disk
            }
        })?;
        let parts = rank.gather(&part)?;
        if rank.is_first() {
            self.writer.give(Job::Publish(Publish { fresh, parts, state, begun, stall }))?;
            self.publishing += 1;
        }
        Ok(())
    }

    /// Waits for everything in flight.
    pub fn finish(&mut self, rank: &Rank) -> anyhow::Result<()> {
        rank.doing("saving");
        while !self.in_flight.is_empty() {
            self.settle(rank)?;
        }
        rank.all(self.wait_published())
    }

    /// What was finished since the last call.
    pub fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn wait_published(&mut self) -> anyhow::Result<()> {
        while self.publishing > 0 {
            let done = self.writer.wait()?;
            self.note(done)?;
        }
        Ok(())
    }

    fn note(&mut self, done: Done) -> anyhow::Result<()> {
        match done {
            Done::Part(snapshot, part) => {
                self.free.push(snapshot);
                let mut flights = self.in_flight.iter_mut();
                let flight = flights.find(|flight| flight.part.is_none());
                flight.expect("parts are written in order").part = Some(part);
            }
            Done::Published(outcome) => {
                self.publishing -= 1;
                self.notes.push(outcome?);
            }
        }
        Ok(())
    }
}

/// Where a run's checkpoints are.
pub fn folder(m: &Manifest) -> PathBuf {
    m.log.folder.join("checkpoints")
}

/// The state of a run that has not begun.
pub fn blank(loaded: &Loaded, data: Vec<checkpoint::DataId>) -> State {
    let m = &loaded.manifest;
    let whole = Layout::new(&m.model, Part::whole(&m.model));
    let Optimizer::AdamW { beta1, beta2, eps, weight_decay, .. } = m.optimizer;
    let slots: Vec<&Slot> = whole.slots().collect();
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
