//! Checkpoints written while training continues. Between two steps every rank copies its states
//! into a snapshot, which its writer thread writes to disk. When all ranks have written (they learn
//! of it between two later steps), the writer thread of rank 0 writes the index and renames the
//! folder.
//!
//! Methods that take a `Rank` are collectives: all ranks call them at the same step.

mod writer;

use super::rank::Rank;
use super::time_limit::expected_save;
use base::Bytes;
use checkpoint::disk::Disk;
use checkpoint::{self, Group, Past, Progress, Rng, Snapshot, State};
use data::MixturePlan;
use engine::Engine;
use manifest::{Loaded, Manifest};
use model::{Layout, ModelShard, Param};
use plan::spikes::SpikeWatch;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Instant;
use writer::{Done, Job, Publish, Published, Writer};

/// Steps whose loss and gradient norm are stored in a checkpoint.
const HISTORY: usize = 16;

/// Saves a run's state. Reserves one snapshot for each save that may be in flight.
pub struct Saver {
    checkpoints: PathBuf,
    free: Vec<Snapshot>,
    /// Bytes of one checkpoint, all ranks together.
    saved_bytes: u64,
    /// Whether the loss scale is saved (fp16).
    scaled: bool,
    writer: Writer,
    /// Saves in flight, oldest first; the same on all ranks, except for `part`.
    in_flight: VecDeque<PendingSave>,
    most_in_flight: usize,
    wait: bool,
    /// Checkpoints whose index is being written, on rank 0.
    publishing: usize,
    state: State,
    history: VecDeque<Past>,
    /// Seconds that a save is expected to take, and that the slowest took.
    expected: f64,
    slowest: Option<f64>,
    /// Step of the last save.
    saved: Option<u64>,
}

/// A save in flight.
struct PendingSave {
    fresh: PathBuf,
    state: State,
    begun: Instant,
    /// Seconds for which training waited.
    stall: f64,
    /// This rank's part once it is written, or the error.
    part: Option<anyhow::Result<checkpoint::WrittenPart>>,
}

impl Saver {
    /// Reserves the snapshots and starts the writer thread. `state`: of the run at its start.
    pub fn open(m: &Manifest, rank: usize, engine: &Engine, state: State) -> anyhow::Result<Saver> {
        let most_in_flight = m.checkpoint.in_flight.max(1);
        Ok(Saver {
            checkpoints: folder(m),
            free: (0..most_in_flight).map(|_| Snapshot::reserve(engine)).collect(),
            saved_bytes: checkpoint::saved_bytes(m),
            scaled: m.loss_scale.is_some(),
            writer: writer::start(m, rank)?,
            in_flight: VecDeque::new(),
            most_in_flight,
            wait: m.checkpoint.in_flight == 0,
            publishing: 0,
            slowest: None,
            expected: expected_save(checkpoint::saved_bytes(m), m.topology.ranks()),
            history: state.history.iter().copied().collect(),
            saved: (state.progress.step > 0).then_some(state.progress.step),
            state,
        })
    }

    /// Host memory of the snapshots.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.free.iter().map(|snapshot| snapshot.bytes().0).sum())
    }

    /// Seconds that the slowest save took from its begin until it was durable; before the first, what
    /// it is expected to take. Of rank 0.
    pub fn slowest_save(&self) -> f64 {
        self.slowest.unwrap_or(self.expected)
    }

    /// Of the run, as the next save writes it but for what changes from step to step.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the next save is to say of loss spikes.
    pub fn note_spikes(&mut self, watch: Option<SpikeWatch>) {
        self.state.spikes = watch;
    }

    /// The run went back to a checkpoint, whose step is saved.
    pub fn go_on_from(&mut self, state: State) {
        self.history = state.history.iter().copied().collect();
        self.saved = Some(state.progress.step);
        self.state = state;
    }

    /// Records a finished step in the history.
    pub fn step(&mut self, past: Past, lr: f64) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(past);
        self.state.lr = lr;
    }

    /// The mean loss of the last `HISTORY` steps, once there are so many.
    pub fn mean_loss(&self) -> Option<f64> {
        let losses = self.history.iter().map(|past| past.loss);
        (self.history.len() == HISTORY).then(|| losses.sum::<f64>() / HISTORY as f64)
    }

    /// Begins to save the engine's state, unless this step is saved already. Waits for the oldest
    /// save if the maximum number is in flight.
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
        rank.set_phase("saving");
        while self.in_flight.len() >= self.most_in_flight {
            self.publish_oldest(rank)?;
        }
        let (disk, step, bytes) = (Disk::default(), progress.step, self.saved_bytes);
        let fresh = rank.on_first(|| checkpoint::begin(&disk, &self.checkpoints, step, bytes))?;
        let mut snapshot = self.free.pop().expect("a part that was written frees its snapshot");
        snapshot.take(engine);
        self.saved = Some(step);
        let mut state = State { progress, next_batch, ..self.state.clone() };
        state.consumed_tokens = progress.consumed_samples * seq_len as u64;
        state.history = self.history.iter().copied().collect();
        let scale = engine.scale();
        state.pending = snapshot.pending();
        state.loss_scale = self.scaled.then_some(scale);
        state.skipped_updates = scale.skipped;
        state.optimizer.groups.iter_mut().for_each(|group| group.step = scale.updates);
        let (to, of) = (fresh.clone(), state.clone());
        self.writer.send(Job::Part { snapshot, fresh: to, state: of })?;
        let stall = begun.elapsed().as_secs_f64();
        self.in_flight.push_back(PendingSave { fresh, state, begun, stall, part: None });
        if self.wait { self.finish(rank) } else { Ok(()) }
    }

    /// Whether this rank has written its part of the oldest save in flight.
    pub fn oldest_is_written(&mut self) -> anyhow::Result<bool> {
        while let Some(done) = self.writer.poll() {
            self.record(done)?;
        }
        Ok(self.in_flight.front().is_some_and(|save| save.part.is_some()))
    }

    /// Waits until all ranks have written their part of the oldest save in flight; rank 0 then
    /// publishes it.
    pub fn publish_oldest(&mut self, rank: &Rank) -> anyhow::Result<()> {
        while !self.oldest_is_written()? {
            let done = self.writer.wait()?;
            self.record(done)?;
        }
        let save = self.in_flight.pop_front().expect("a save is in flight");
        let PendingSave { fresh, state, begun, stall, part } = save;
        let (disk, step) = (Disk::default(), state.progress.step);
        let part = part.expect("written");
        let part = rank.agree(part.map_err(|error| checkpoint::not_saved(&fresh, step, error)));
        let part = part.inspect_err(|_| {
            if rank.is_first() {
                checkpoint::discard(&disk, &fresh);
            }
        })?;
        let parts = rank.gather(&part)?;
        if rank.is_first() {
            self.writer.send(Job::Publish(Publish { fresh, parts, state, begun, stall }))?;
            self.publishing += 1;
        }
        Ok(())
    }

    /// Waits for all saves in flight.
    pub fn finish(&mut self, rank: &Rank) -> anyhow::Result<()> {
        rank.set_phase("saving");
        while !self.in_flight.is_empty() {
            self.publish_oldest(rank)?;
        }
        rank.agree(self.wait_published())
    }

    fn wait_published(&mut self) -> anyhow::Result<()> {
        while self.publishing > 0 {
            let done = self.writer.wait()?;
            self.record(done)?;
        }
        Ok(())
    }

    fn record(&mut self, done: Done) -> anyhow::Result<()> {
        match done {
            Done::Part(snapshot, part) => {
                self.free.push(snapshot);
                let mut saves = self.in_flight.iter_mut();
                let save = saves.find(|save| save.part.is_none());
                save.expect("parts are written in order").part = Some(part);
            }
            Done::Published(outcome) => {
                self.publishing -= 1;
                let Published { seconds, message } = outcome?;
                self.slowest = Some(self.slowest.unwrap_or(0.0).max(seconds));
                tracing::info!("{message}");
            }
        }
        Ok(())
    }
}

/// The folder of a run's checkpoints.
pub fn folder(m: &Manifest) -> PathBuf {
    m.log.folder.join("checkpoints")
}

/// The manifest's optimizer, before its first update.
pub fn optimizer(m: &Manifest) -> checkpoint::Optimizer {
    let whole = Layout::new(&m.model, ModelShard::whole(&m.model));
    let params: Vec<&Param> = whole.params().collect();
    let names = |decay| params.iter().filter(move |param| param.spec.decay == decay);
    let group = |decay: bool| Group {
        weight_decay: if decay { m.optimizer.weight_decay() } else { 0.0 },
        step: 0,
        tensors: names(decay).map(|param| param.name.clone()).collect(),
    };
    checkpoint::Optimizer {
        rule: m.optimizer.name().to_string(),
        began: 0,
        numbers: m.optimizer.numbers(),
        groups: vec![group(true), group(false)],
    }
}

/// The state of a new run, before its first step.
pub fn initial_state(loaded: &Loaded, data: Vec<checkpoint::DataId>) -> State {
    let m = &loaded.manifest;
    State {
        run: checkpoint::nonce(),
        progress: Progress::default(),
        consumed_tokens: 0,
        next_batch: m.batch.ramp().batch_at(0) as u64,
        lr: 0.0,
        loss_scale: None,
        skipped_updates: 0,
        pending: None,
        rng: Rng {
            generator: "philox4x32-10".to_string(),
            seed: m.train.seed,
            data_seed: m.data.seed,
        },
        optimizer: optimizer(m),
        history: Vec::new(),
        data,
        mixture: MixturePlan::of(&m.data, m.train.samples),
        spikes: None,
        imported: None,
        manifest: loaded.effective.clone(),
    }
}
