//! Checkpoints written while training continues. Between two steps every rank copies its states
//! into a snapshot, which its writer thread writes to disk. When all ranks have written (which is
//! determined between two later steps), the writer thread of rank 0 writes the index and renames
//! the folder. These threads also wait for storage that fails temporarily (`retry`).
//!
//! Methods that take a `Rank` are collectives: all ranks call them at the same step.

pub mod retry;
mod writer;

use super::mirror::MirrorQueue;
use super::node_memory::{self, MemorySaves};
use super::report::SyncReceipt;
use super::time_limit::expected_save;
use super::watch::{self, Ended, Event, Idle, RequestCounts, Requests, RunView, StepSpec, Watcher};
use base::{Bytes, Deadline, Moment, push_recent};
use checkpoint::disk::Disk;
use checkpoint::{self, Group, PastStep, Progress, Rng, Snapshot, State};
use data::MixturePlan;
use engine::Engine;
use launch::rank::{CollectiveError, Rank};
use launch::storage::Storage;
use manifest::{Loaded, Manifest};
use model::{Layout, ModelShard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
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
    storage: Arc<Storage>,
    /// On rank 0: whether the user was informed that other ranks wait for their storage.
    reported_waiting: bool,
    writer: Writer,
    /// None without `checkpoint.memory_interval`.
    memory: Option<MemorySaves>,
    /// On rank 0: results of creating the folders of the saves whose parts are not yet sent to the
    /// writers, oldest first.
    begun: VecDeque<anyhow::Result<()>>,
    /// Saves in flight, oldest first; the same on all ranks, except for `part`.
    in_flight: VecDeque<PendingSave>,
    most_in_flight: usize,
    wait: bool,
    /// Checkpoints whose index is being written, on rank 0.
    publishing: usize,
    state: State,
    history: VecDeque<PastStep>,
    /// On rank 0: seconds of the slowest save from its start until it was durable; before the first
    /// save, the expected seconds.
    slowest: Rc<Cell<f64>>,
    /// Whether a save of this process was published.
    measured: bool,
    /// Step of the last save.
    saved: Option<u64>,
    /// Whether the run rolled back and has not been saved since.
    unsaved: bool,
}

/// Save in flight.
struct PendingSave {
    staging: PathBuf,
    state: State,
    begun: Moment,
    /// Seconds that training waited.
    stall: f64,
    /// States of this rank, until the folder exists and the writer receives them.
    snapshot: Option<Snapshot>,
    /// Part of this rank once it is written, or the error.
    part: Option<anyhow::Result<checkpoint::WrittenPart>>,
    /// On rank 0: receipt of the lines of `metrics.jsonl`, which must be on disk before the index.
    record: Option<SyncReceipt>,
}

/// Maximum time of a wait for the writer, before training continues or the ranks exchange their
/// results.
const POLL: Duration = Duration::from_secs(1);

impl Saver {
    /// Reserves the snapshots and starts the writer thread. `state` is the run's state at its start, and
    /// `is_saved` whether it is on disk.
    pub fn open(
        m: &Manifest,
        rank: usize,
        engine: &Engine,
        state: State,
        is_saved: bool,
        storage: &Arc<Storage>,
        mirror: Option<Arc<MirrorQueue>>,
        memory: Option<MemorySaves>,
    ) -> anyhow::Result<Saver> {
        let most_in_flight = m.checkpoint.in_flight.max(1);
        let saved_bytes = engine::saved_bytes(m);
        let expected = expected_save(saved_bytes, m.topology.ranks());
        Ok(Saver {
            checkpoints: folder(m),
            free: (0..most_in_flight)
                .map(|_| Snapshot::reserve(engine))
                .collect(),
            saved_bytes,
            scaled: m.loss_scale.is_some(),
            writer: writer::start(m, rank, storage.clone(), mirror)?,
            storage: storage.clone(),
            memory,
            begun: VecDeque::new(),
            reported_waiting: false,
            in_flight: VecDeque::new(),
            most_in_flight,
            wait: m.checkpoint.in_flight == 0,
            publishing: 0,
            slowest: Rc::new(Cell::new(expected)),
            measured: false,
            unsaved: false,
            history: state.history.iter().copied().collect(),
            saved: is_saved.then_some(state.progress.step),
            state,
        })
    }

    /// Host memory of the snapshots.
    pub fn bytes(&self) -> Bytes {
        let free = self.free.iter().map(Snapshot::bytes);
        let in_memory = self.memory.as_ref().map(MemorySaves::snapshot_bytes);
        Bytes(free.chain(in_memory).map(|bytes| bytes.0).sum())
    }

    /// Seconds of the slowest save, as `slowest`.
    pub fn slowest(&self) -> Rc<Cell<f64>> {
        self.slowest.clone()
    }

    /// Records a finished step in the history.
    fn record_step(&mut self, past: PastStep, lr: f64) {
        push_recent(&mut self.history, past, HISTORY);
        self.state.lr = lr;
    }

    /// Begins a checkpoint. It contains one copy of each weight, so the replicas are compared first.
    /// A run that must roll back saves none. A collective, on an idle device.
    fn save(&mut self, run: &RunView) -> anyhow::Result<()> {
        if run.watchers.must_roll_back() {
            return Ok(());
        }
        self.unsaved = false;
        if run.manifest.train.audit_interval.is_some() {
            watch::compare(run)?;
        }
        run.signals.clear_save();
        let _span = tracing::trace_span!("save", track = "save").entered();
        let began = Moment::now();
        let record = Cell::new(None);
        run.notice(&Event::SaveBegins(&record))?;
        self.begin_save(run, record.take())?;
        run.notice(&Event::Saved(began.elapsed()))
    }

    fn is_due(&self, run: &RunView, spec: &StepSpec) -> bool {
        self.unsaved || spec.ends(run.manifest.checkpoint.interval)
    }

    fn is_due_in_memory(&self, spec: &StepSpec) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|memory| memory.is_due(|every| spec.ends(every)))
    }

    /// Starts saving the engine's state, unless this step is saved already. Waits for the oldest
    /// save if the maximum number is in flight.
    fn begin_save(&mut self, run: &RunView, record: Option<SyncReceipt>) -> anyhow::Result<()> {
        let RunView { engine, progress, .. } = *run;
        let rank = run.rank;
        if self.saved == Some(progress.step) {
            return Ok(());
        }
        let begun = Moment::now();
        rank.set_phase("saving");
        while self.in_flight.len() >= self.most_in_flight {
            self.publish_oldest(rank)?;
        }
        let step = progress.step;
        let bytes = self.saved_bytes;
        let staging =
            rank.on_first(|| Ok(checkpoint::temporary_folder(&self.checkpoints, step)))?;
        if rank.is_first() {
            let staging = staging.clone();
            self.writer.send(Job::Begin { staging, step, bytes })?;
        }
        let mut snapshot = self
            .free
            .pop()
            .expect("a part that was written frees its snapshot");
        snapshot.take(engine);
        self.saved = Some(step);
        let state = self.current_state(run);
        let snapshot = Some(snapshot);
        let stall = begun.elapsed().as_secs_f64();
        let save = PendingSave { staging, state, begun, stall, snapshot, part: None, record };
        self.in_flight.push_back(save);
        if self.wait_for_folder(rank)? {
            self.write_oldest(rank)?;
        }
        let last = self.in_flight.back_mut().expect("pushed above");
        last.stall = begun.elapsed().as_secs_f64();
        if self.wait { self.finish(rank) } else { Ok(()) }
    }

    /// State of the run after its last step.
    fn current_state(&self, run: &RunView) -> State {
        let progress = run.progress;
        let mut state = State { progress, next_batch: run.next_batch(), ..self.state.clone() };
        run.watchers.store(&mut state);
        state.consumed_tokens = run.manifest.schedule().tokens(progress.consumed_samples);
        state.history = self.history.iter().copied().collect();
        let scale = run.engine.scale();
        state.loss_scale = self.scaled.then_some(scale);
        state.skipped_updates = scale.skipped;
        for group in &mut state.optimizer.groups {
            group.step = scale.updates;
        }
        state
    }

    /// Begins a save into the memory of the nodes. Loading it compares the replicas. On an idle device.
    fn save_to_memory(&mut self, run: &RunView) -> anyhow::Result<()> {
        if run.watchers.must_roll_back() {
            return Ok(());
        }
        let _span = tracing::trace_span!("save into memory", track = "save").entered();
        let began = Moment::now();
        run.rank.set_phase("saving into memory");
        let record = Cell::new(None);
        run.notice(&Event::SaveBegins(&record))?;
        let state = self.current_state(run);
        if let Some(memory) = &mut self.memory {
            memory.begin(run.engine, state, record.take())?;
        }
        run.notice(&Event::Saved(began.elapsed()))
    }

    /// Waits briefly on rank 0 until the folder of the oldest save without one is created, or fails
    /// to be. Returns on every rank whether it did.
    fn wait_for_folder(&mut self, rank: &Rank) -> anyhow::Result<bool> {
        let end = Deadline::after(POLL);
        while rank.is_first() && !self.has_folder_result() {
            let Some(done) = self.writer.wait_for(end.left())? else { break };
            self.handle(done)?;
        }
        let [results] = rank.count_ranks([self.has_folder_result()]);
        Ok(results > 0)
    }

    /// On rank 0: whether the folder of a save was created, or failed to be.
    fn has_folder_result(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Writes this rank's part of the oldest save without one, after rank 0 has created the folder.
    fn write_oldest(&mut self, rank: &Rank) -> anyhow::Result<()> {
        let oldest = self
            .in_flight
            .iter()
            .position(|save| save.snapshot.is_some())
            .expect("a save without a folder");
        if let Err(error) = rank.agree(self.begun.pop_front().unwrap_or(Ok(()))) {
            let save = self.in_flight.remove(oldest);
            self.free.extend(save.and_then(|save| save.snapshot));
            return Err(error);
        }
        let save = &mut self.in_flight[oldest];
        let snapshot = save.snapshot.take().expect("found by it");
        let staging = save.staging.clone();
        let state = save.state.clone();
        self.writer.send(Job::Part { snapshot, staging, state })
    }

    /// Reports on rank 0 that `ranks` ranks wait for their storage: once, as long as there are any.
    fn report_waiting(&mut self, ranks: usize) {
        if ranks > 0 && !self.reported_waiting && !self.storage.is_waiting() {
            tracing::warn!("{ranks} ranks cannot write to the run's folder, and wait for it");
        }
        self.reported_waiting = ranks > 0;
    }

    /// Whether this rank has written its part of the oldest save in flight.
    fn oldest_is_written(&mut self) -> anyhow::Result<bool> {
        while let Some(done) = self.writer.poll() {
            self.handle(done)?;
        }
        let oldest = self.in_flight.front();
        Ok(oldest.is_some_and(|save| save.part.is_some()))
    }

    /// Waits until all ranks have written their part of the oldest save in flight; rank 0 then
    /// publishes it.
    fn publish_oldest(&mut self, rank: &Rank) -> anyhow::Result<()> {
        loop {
            let written = self.wait_for_part()?;
            let [folders, written] = rank.count_ranks([self.has_folder_result(), written]);
            if folders > 0 {
                self.write_oldest(rank)?;
            }
            if written == rank.grid.size() {
                break;
            }
        }
        let save = self.in_flight.pop_front().expect("a save is in flight");
        let PendingSave { staging, state, begun, stall, part, record, .. } = save;
        let disk = Disk::default();
        let step = state.progress.step;
        let part = part
            .expect("written")
            .map_err(|error| checkpoint::not_saved(&staging, step, error));
        let part = rank.agree(part).inspect_err(|_| {
            if rank.is_first() {
                checkpoint::discard(&disk, &staging);
            }
        })?;
        let parts = rank.gather(&part)?;
        if rank.is_first() {
            let publish = Publish { staging, parts, record, state, begun, stall };
            self.writer.send(Job::Publish(publish))?;
            self.publishing += 1;
        }
        Ok(())
    }

    /// Waits until `oldest_is_written`, for at most a second, and only until another event that ranks
    /// must exchange. Returns whether it is.
    fn wait_for_part(&mut self) -> anyhow::Result<bool> {
        let end = Deadline::after(POLL);
        while !self.oldest_is_written()? && !self.has_folder_result() {
            let Some(done) = self.writer.wait_for(end.left())? else { break };
            self.handle(done)?;
        }
        self.oldest_is_written()
    }

    /// Waits for all saves in flight.
    fn finish(&mut self, rank: &Rank) -> anyhow::Result<()> {
        rank.set_phase("saving");
        while !self.in_flight.is_empty() {
            self.publish_oldest(rank)?;
        }
        rank.wait_until(|| {
            if self.publishing > 0
                && let Some(done) = self.writer.wait_for(POLL)?
            {
                self.handle(done)?;
            }
            Ok(self.publishing == 0)
        })
    }

    /// Handles a result of the writer.
    fn handle(&mut self, done: Done) -> anyhow::Result<()> {
        match done {
            Done::Begun(begun) => self.begun.push_back(begun),
            Done::Part(snapshot, part) => {
                self.free.push(snapshot);
                let mut saves = self.in_flight.iter_mut();
                let save = saves.find(|save| save.part.is_none());
                save.expect("parts are written in order").part = Some(part);
            }
            Done::Published(outcome) => {
                self.publishing -= 1;
                let Published { seconds, message, .. } = outcome?;
                let before = if self.measured { self.slowest.get() } else { 0.0 };
                self.slowest.set(before.max(seconds));
                self.measured = true;
                tracing::info!("{message}");
            }
        }
        Ok(())
    }
}

impl Watcher for Saver {
    fn name(&self) -> &'static str {
        "saver"
    }

    fn requests(&mut self, _: &RunView) -> anyhow::Result<Requests> {
        let written = Requests::WRITTEN.when(self.oldest_is_written()?);
        let begun = Requests::BEGUN.when(self.has_folder_result());
        let in_memory = self.memory.as_mut().is_some_and(MemorySaves::is_written);
        let written = written | Requests::IN_MEMORY.when(in_memory);
        Ok(written | begun | Requests::WAITING.when(self.storage.is_waiting()))
    }

    fn act_on(&mut self, run: &RunView, counts: &RequestCounts) -> anyhow::Result<()> {
        let rank = run.rank;
        if rank.is_first() {
            self.report_waiting(counts.count(Requests::WAITING));
        }
        if counts.any(Requests::BEGUN) {
            self.write_oldest(rank)?;
        }
        if counts.count(Requests::WRITTEN) == rank.grid.size() {
            self.publish_oldest(rank)?;
        }
        if counts.count(Requests::IN_MEMORY) == rank.grid.size()
            && let Some(memory) = &mut self.memory
        {
            memory.complete_pending(rank)?;
        }
        if counts.any(Requests::SAVE) { self.save(run) } else { Ok(()) }
    }

    fn idle(&self, run: &RunView, spec: &StepSpec) -> Idle {
        Idle::after(self.is_due(run, spec) || self.is_due_in_memory(spec))
    }

    fn notice(&mut self, run: &RunView, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Step(done) => {
                let loss = done.outcome.loss;
                let grad_norm = done.outcome.grad_norm;
                self.record_step(PastStep { step: done.step, loss, grad_norm }, done.lr);
            }
            Event::RollingBack => {
                self.finish(run.rank)?;
                if let Some(memory) = &mut self.memory {
                    memory.discard(run.rank)?;
                }
            }
            Event::RolledBack(state) => {
                // The step of the checkpoint is saved already.
                self.history = state.history.iter().copied().collect();
                self.saved = Some(state.progress.step);
                self.unsaved = true;
                self.state = (*state).clone();
            }
            _ => {}
        }
        Ok(())
    }

    fn due(&mut self, run: &RunView, spec: &StepSpec) -> anyhow::Result<()> {
        if self.is_due(run, spec) {
            self.save(run)?;
        }
        if self.is_due_in_memory(spec) { self.save_to_memory(run) } else { Ok(()) }
    }

    fn complete(&mut self, run: &RunView, _: Ended) -> anyhow::Result<()> {
        self.save(run)?;
        self.finish(run.rank)?;
        self.memory
            .as_mut()
            .map_or(Ok(()), |memory| memory.end(run.rank))
    }

    /// Waits for pending checkpoints if the ranks still communicate.
    fn on_end(&mut self, run: &RunView, ended: &anyhow::Result<Ended>) {
        let Err(error) = ended else { return };
        let rank = run.rank;
        if error.is::<CollectiveError>() || rank.grid.size() == 1 {
            let phase = rank.current_phase();
            // A second error would hide the one that ends the run.
            let _ = self.finish(rank);
            rank.set_phase(&phase);
        }
        self.storage.cancel_waits();
    }
}

impl Drop for Saver {
    /// Cancels waits for storage, because the run ends.
    fn drop(&mut self) {
        self.storage.cancel_waits();
    }
}

/// Folder of a run's checkpoints.
pub fn folder(m: &Manifest) -> PathBuf {
    m.log.folder.join("checkpoints")
}

/// Step of the newest checkpoint on disk; 0 without one.
pub fn newest_on_disk(m: &Manifest) -> u64 {
    let published = checkpoint::published(&folder(m)).unwrap_or_default();
    published.last().map_or(0, |found| found.step)
}

/// Step of the newest checkpoint, on disk or in the memory of the nodes; 0 without one.
pub fn newest_step(m: &Manifest) -> u64 {
    newest_on_disk(m).max(node_memory::newest_step(&m.log.folder))
}

/// Optimizer of the manifest, before its first update.
pub fn initial_optimizer(m: &Manifest) -> checkpoint::Optimizer {
    let whole = Layout::new(&m.model, ModelShard::whole(&m.model));
    let group = |decay: bool| Group {
        weight_decay: if decay { m.optimizer.weight_decay() } else { 0.0 },
        step: 0,
        tensors: whole
            .params()
            .filter(|param| param.spec.decay == decay)
            .map(|param| param.name.clone())
            .collect(),
    };
    checkpoint::Optimizer {
        rule: m.optimizer.name().to_string(),
        began: 0,
        ahead: 0,
        numbers: m.optimizer.numbers(),
        groups: vec![group(true), group(false)],
    }
}

/// State of a new run, before its first step.
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
            initial_seed: None,
        },
        optimizer: initial_optimizer(m),
        history: Vec::new(),
        data,
        mixture: MixturePlan::from_data(&m.data, m.train.samples),
        spikes: None,
        imported: None,
        imported_types: Default::default(),
        manifest: loaded.effective.clone(),
    }
}
