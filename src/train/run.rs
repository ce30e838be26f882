//! The training loop of one rank: step, replica check, evaluation, checkpoint.

use super::eval::Scoring;
use super::loader::Loader;
use super::not_finite;
use super::saving::Saver;
use super::spikes::Spikes;
use super::status;
use super::watch::{Asks, Drift, Ended, Event, RunContext, StepRecord, Watchers};
use anyhow::Context;
use checkpoint::{Past, Progress};
use engine::{Engine, lr};
use launch::rank::CollectiveError;
use plan::spikes::Taken;
use std::ops::Range;
use std::time::{Duration, Instant};

/// State of a rank during training.
pub struct Run<'a> {
    pub cx: RunContext<'a>,
    pub engine: Engine<'a>,
    pub loader: Loader,
    /// Step and samples after the last step that was queued on the device.
    pub progress: Progress,
    pub in_flight: InFlight,
    pub saver: Saver,
    /// None if `divergence` is off.
    pub spikes: Option<Spikes>,
    pub drift: Drift,
    pub watchers: Watchers<'a>,
    /// Loss on the first validation set, at the last evaluation.
    pub evaluated: Option<f64>,
}

/// Work of the device that the host has not waited for.
pub struct InFlight {
    /// Step whose outcome was not read yet.
    pending: Option<PendingStep>,
    /// Time at which the outcome of the previous step arrived.
    pub last_ended: Instant,
}

impl Default for InFlight {
    fn default() -> InFlight {
        InFlight { pending: None, last_ended: Instant::now() }
    }
}

/// Step that is queued on the device. Its outcome is read after the next step has been queued, so that
/// the device never waits for the host, and before the weights are used for anything else.
struct PendingStep {
    step: u64,
    samples: Range<u64>,
    lr: f64,
    started: Instant,
    data_wait: Duration,
    /// Seconds that the rank's thread waited for others while it queued the step.
    waited: f64,
}

impl Run<'_> {
    pub fn train(&mut self) -> anyhow::Result<Ended> {
        loop {
            let global = self.next_batch();
            let complete = self.is_last(global);
            let stop = self.poll_requests()?;
            if complete || stop.is_some() {
                self.drain()?;
            }
            if self.has_diverged() {
                self.roll_back()?;
                continue;
            }
            if let Some(ended) = complete.then_some(Ended::Complete).or(stop) {
                self.save()?;
                self.saver.finish(self.cx.rank)?;
                self.write_report()?;
                self.watchers.each().try_for_each(|watcher| watcher.complete(&self.cx, ended))?;
                return Ok(ended);
            }
            let step = self.progress.step + 1;
            self.watchers.each().for_each(|watcher| watcher.before_step(&self.cx, step));
            self.step_and_after(step, global)?;
            self.watchers.each().try_for_each(|watcher| watcher.after_step(&self.cx, step))?;
        }
    }

    /// Samples of the next step.
    fn next_batch(&self) -> usize {
        self.cx.ramp.batch_at(self.progress.consumed_samples)
    }

    /// Whether the run has too few samples left for a step of so many.
    fn is_last(&self, global: usize) -> bool {
        self.progress.consumed_samples + global as u64 > self.cx.manifest.train.samples
    }

    /// Executes a step, and evaluations and saves that are due after it.
    fn step_and_after(&mut self, step: u64, global: usize) -> anyhow::Result<()> {
        let _step = tracing::error_span!("step", step).entered();
        self.step(global)?;
        let m = self.cx.manifest;
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        let last = self.is_last(global);
        if m.train.audit_interval.is_some_and(|every| last || due(every)) {
            self.audit()?;
        }
        if m.train.eval_interval.is_some_and(|every| last || due(every)) {
            self.evaluate()?;
        }
        let unsaved = self.spikes.as_ref().is_some_and(|spikes| spikes.unsaved);
        if due(m.checkpoint.interval) || unsaved {
            self.save()?;
        }
        if self.watchers.needs_idle(step) { self.drain() } else { Ok(()) }
    }

    /// Exchanges signals and finished writes between all ranks, which act on them at the same step.
    /// Returns the reason if the run ends here, which depends on rank 0's losses and job.
    fn poll_requests(&mut self) -> anyhow::Result<Option<Ended>> {
        let (rank, signals) = (self.cx.rank, self.cx.signals);
        rank.set_phase("between two steps");
        let watched = self.watchers.asks(&self.cx, self.saver.slowest_save());
        let asks = watched
            | Asks::STOP.when(signals.stop())
            | Asks::SAVE.when(signals.save())
            | Asks::REACHED.when(rank.is_first() && self.reached())
            | self.saver.asks()?;
        let asked = asks.count(rank);
        if rank.is_first() {
            self.saver.report_waiting(asked.of(Asks::AWAY));
        }
        if asked.any(Asks::BEGUN) {
            self.saver.write_oldest(rank)?;
        }
        if asked.of(Asks::WRITTEN) == rank.grid.size() {
            self.saver.publish_oldest(rank)?;
        }
        if asked.any(Asks::SAVE) {
            self.save()?;
        }
        let ends = [
            (Asks::REACHED, Ended::Reached),
            (Asks::STOP, Ended::Stopped),
            (Asks::LEAVE, Ended::JobEnds),
        ];
        Ok(ends.into_iter().find(|(ask, _)| asked.any(*ask)).map(|(_, ended)| ended))
    }

    /// Whether the loss has reached train.stop_at_loss: that of the validation set if there is one,
    /// else that of the last steps.
    fn reached(&self) -> bool {
        let validated = !self.cx.data.valid.is_empty();
        let loss = if validated { self.evaluated } else { self.saver.mean_loss() };
        self.cx.manifest.train.stop_at_loss.zip(loss).is_some_and(|(at, loss)| loss <= at)
    }

    /// Queues one step on the device, and finishes the step before it meanwhile.
    fn step(&mut self, global: usize) -> anyhow::Result<()> {
        let (m, rank, be) = (self.cx.manifest, self.cx.rank, self.cx.be);
        let recorder = rank.world().recorder();
        let measured = self.drift.parts.next_is_due();
        if measured {
            self.drain()?;
            self.drift.parts.begin(be, rank);
        }
        let (started, waited) = (Instant::now(), self.loader.wait());
        let others = recorder.waited().host;
        #[cfg(feature = "testing")]
        super::testing::delay_step();
        let first = self.progress.consumed_samples;
        let (step, consumed) = (self.progress.step + 1, first + global as u64);
        let lr = lr::of_step(&m.lr, &(first..consumed));
        let limits = self.spikes.as_ref().and_then(|of| of.limits(step, &(first..consumed)));
        self.engine.set_limits(limits);
        let (loader, parts) = (&mut self.loader, &mut self.drift.parts);
        self.cx.signals.computing(step);
        let computing = format!("computing step {step}");
        self.engine.queue(
            &mut |inputs| {
                rank.set_phase("reading data");
                let _span = tracing::trace_span!("read data", track = "data").entered();
                let began = Instant::now();
                let loaded = loader.load(be, inputs, global as u64);
                parts.add_input(began.elapsed().as_secs_f64());
                rank.set_phase(&computing);
                loaded
            },
            self.cx.shard.rounds(global as u64) as usize,
            lr,
        )?;
        self.drift.parts.write_ops(step);
        self.progress = Progress { step, consumed_samples: consumed };
        let data_wait = self.loader.wait() - waited;
        let waited = recorder.waited().host - others;
        let now = PendingStep { step, samples: first..consumed, lr, started, data_wait, waited };
        let before = self.in_flight.pending.replace(now);
        before.map_or(Ok(()), |before| self.finish_step(before))?;
        if measured {
            self.drain()?;
            if let Some(table) = self.drift.measured(&self.cx, &self.engine, step, global) {
                self.watchers.notice(&self.cx, &Event::Parts(&table))?;
            }
        }
        Ok(())
    }

    /// Waits for the pending step: afterwards the device is idle and the weights are checked.
    pub fn drain(&mut self) -> anyhow::Result<()> {
        self.in_flight.pending.take().map_or(Ok(()), |last| self.finish_step(last))
    }

    fn has_diverged(&self) -> bool {
        self.spikes.as_ref().is_some_and(Spikes::has_diverged)
    }

    /// Waits for the outcome of a step and records it. Fails if it is not finite.
    fn finish_step(&mut self, done: PendingStep) -> anyhow::Result<()> {
        let PendingStep { step, samples, lr, started, data_wait, waited } = done;
        let rank = self.cx.rank;
        rank.set_phase(&format!("computing step {step}"));
        let waiting = tracing::trace_span!("wait for outcome").entered();
        let (outcome, ended) = self.engine.outcome()?;
        drop(waiting);
        not_finite::check(rank, &outcome, &self.engine, step, samples.clone())?;
        self.saver.step(Past { step, loss: outcome.loss, grad_norm: outcome.grad_norm }, lr);
        if let Some(spikes) = &mut self.spikes {
            let (loss, norm) = (outcome.loss, outcome.grad_norm);
            spikes.see(Taken { step, loss, norm, skipped: outcome.skipped }, &samples);
        }
        let seconds = (ended - started.max(self.in_flight.last_ended)).as_secs_f64();
        self.in_flight.last_ended = ended;
        self.drift.step(seconds);
        let record = StepRecord { step, samples, lr, seconds, data_wait, waited, outcome };
        self.watchers.notice(&self.cx, &Event::Step(&record))
    }

    /// Fails if weights that must be equal on several ranks differ (replica check).
    fn audit(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        let _span = tracing::trace_span!("replica check").entered();
        let (rank, step) = (self.cx.rank, self.progress.step);
        rank.set_phase("comparing weights");
        let Err(drifted) = self.engine.check_replicas() else { return Ok(()) };
        let found = if drifted.found.is_empty() { Ok(()) } else { Err(drifted) };
        rank.agree(found.with_context(|| {
            format!(
                "audit after step {step}: a rank has computed or stored something wrong; look at \
                 its hardware, and continue from a checkpoint before the last audit that passed"
            )
        }))
    }

    fn evaluate(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        let _span = tracing::trace_span!("evaluate").entered();
        let begun = Instant::now();
        let Run { cx, engine, watchers, progress, evaluated, .. } = self;
        let cx = &*cx;
        let RunContext { manifest: m, rank, be, shard, data, .. } = cx;
        let samples = m.train.eval_samples;
        for (i, (name, source)) in data.valid.iter().enumerate() {
            rank.set_phase(&format!("evaluating {name}"));
            let mut loader = Loader::evaluation(source, *shard, samples)?;
            let load = &mut |inputs: &_| loader.load(*be, inputs, samples);
            let loss = engine.evaluate(load, shard.rounds(samples))?;
            if i == 0 {
                *evaluated = Some(loss);
            }
            watchers.notice(cx, &Event::Validated(*progress, name, loss))?;
        }
        let (shard, seq_len) = (*shard, m.model.seq_len);
        let scoring = Scoring { rank, be: *be, model: engine, shard, seq_len, progress: None };
        for (name, task) in cx.tasks.iter() {
            rank.set_phase(&format!("evaluating task {name}"));
            if let Some(accuracy) = scoring.task(task)? {
                watchers.notice(cx, &Event::Scored(*progress, name, accuracy))?;
            }
        }
        watchers.notice(cx, &Event::Evaluated(begun.elapsed()))
    }

    /// Begins a checkpoint. It contains one copy of each weight, so the replicas are compared first. A
    /// run with a pending rollback saves none.
    fn save(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        if self.has_diverged() {
            return Ok(());
        }
        if let Some(spikes) = &mut self.spikes {
            spikes.unsaved = false;
            self.saver.note_spikes(Some(spikes.watch.clone()));
        }
        let m = self.cx.manifest;
        if m.train.audit_interval.is_some() {
            self.audit()?;
        }
        let (next_batch, seq_len) = (self.next_batch() as u64, m.model.seq_len);
        self.cx.signals.saved();
        let _span = tracing::trace_span!("save", track = "save").entered();
        let began = Instant::now();
        self.saver.save(self.cx.rank, &self.engine, self.progress, next_batch, seq_len)?;
        let each_step = self.drift.parts.saved(began.elapsed().as_secs_f64());
        self.watchers.notice(&self.cx, &Event::Saved(each_step))
    }

    /// Waits until the whole report is in its files. A collective.
    pub fn write_report(&mut self) -> anyhow::Result<()> {
        self.cx.rank.set_phase("writing the last lines of metrics");
        let watchers = &mut self.watchers;
        self.cx.rank.wait_until(|| watchers.is_written())
    }

    /// Waits for pending checkpoints if the ranks still communicate, then closes the report.
    pub fn end(&mut self, ended: &anyhow::Result<Ended>) {
        let rank = self.cx.rank;
        let doing = rank.current_phase();
        self.watchers.each().for_each(|watcher| watcher.ending(&self.cx));
        let agreed = |error: &anyhow::Error| error.is::<CollectiveError>() || rank.grid.size() == 1;
        if ended.as_ref().err().is_some_and(agreed) {
            // A second error would hide the one that ends the run.
            let _ = self.saver.finish(rank);
            rank.set_phase(&doing); // what it did when it failed
        }
        if ended.is_err() {
            self.saver.leave();
        }
        let how = match ended {
            Ok(Ended::Complete | Ended::NothingLeft) => status::COMPLETE.to_string(),
            Ok(Ended::Stopped) => "stopped by a signal, and saved".to_string(),
            Ok(Ended::JobEnds) => "saved, as its job ended".to_string(),
            Ok(Ended::Reached) => "saved, with train.stop_at_loss reached".to_string(),
            Err(error) => format!("{}: {error:#}", status::FAILED),
        };
        self.watchers.each().for_each(|watcher| watcher.finish(&self.cx, &how));
    }
}
