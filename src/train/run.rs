//! The training loop of one rank: step, replica check, evaluation, checkpoint.

use super::also::Copies;
use super::eval::Scoring;
use super::gpu_faults::GpuFaults;
use super::guard::{self, Signals};
use super::loader::{DataShard, Loader};
use super::rank::{CollectiveError, Rank};
use super::report::{Report, StepLine};
use super::saving::Saver;
use super::spikes::Spikes;
use super::status::{self, Board};
use super::step_parts::StepParts;
use super::stragglers::Stragglers;
use super::time_limit::TimeLimit;
use super::trace::Trace;
use anyhow::Context;
use base::{Count, Seconds};
use checkpoint::{Past, Progress};
use data::eval::Task;
use data::{Datasets, Source};
use device::Backend;
use device::cuda::nvml::Monitor;
use engine::{Engine, lr};
use estimate::gptrain::drift::{self, FirstSteps};
use manifest::{Loaded, Manifest};
use plan::grid::Axis;
use plan::ramp::Ramp;
use plan::spikes::Taken;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::subscriber::NoSubscriber;

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// It was complete before this start.
    NothingLeft,
    /// A signal stopped it, after saving.
    Stopped,
    /// It left before the end of its Slurm job, after saving.
    JobEnds,
    /// Its loss reached train.stop_at_loss, after saving.
    Reached,
}

/// Number of first steps whose median time is compared with the estimate.
const COMPARED_STEPS: usize = 5;

/// Expected seconds of a run above which its expected duration is printed after the first step.
const FORETOLD_S: f64 = 20.0;

/// State of a rank during training.
pub struct Run<'a> {
    pub loaded: &'a Loaded,
    pub manifest: &'a Manifest,
    pub rank: &'a Rank<'a>,
    pub shard: DataShard,
    pub ramp: Ramp,
    pub engine: Engine<'a>,
    pub be: &'a dyn Backend,
    pub data: Arc<Datasets>,
    pub valid: Vec<(String, Arc<Source>)>,
    /// Tasks of evaluations, by name.
    pub tasks: Arc<Vec<(String, Task)>>,
    pub loader: Loader,
    /// On rank 0 only.
    pub report: Option<Report>,
    pub board: Option<Board>,
    /// Step and samples after the last step that was queued on the device.
    pub progress: Progress,
    /// Pending step, until its outcome arrives.
    pub pending: Option<PendingStep>,
    /// Time at which the outcome of the previous step arrived.
    pub last_ended: Instant,
    pub saver: Saver,
    /// Copies of checkpoints, on rank 0 with `checkpoint.also`.
    pub copies: Option<Copies>,
    /// None if `divergence` is off.
    pub spikes: Option<Spikes>,
    pub signals: &'a Signals,
    /// On rank 0 of a Slurm job.
    pub time_limit: Option<TimeLimit>,
    pub trace: Option<&'a Trace>,
    pub faults: GpuFaults,
    pub stragglers: Stragglers,
    /// Seconds of the first steps, for the comparison with the estimate.
    pub first_steps: Vec<f64>,
    pub parts: StepParts,
    /// Loss on the first validation set, at the last evaluation.
    pub evaluated: Option<f64>,
}

/// Step that is queued on the device. Its outcome is read after the next step has been queued, so that
/// the device never waits for the host, and before the weights are used for anything else.
pub struct PendingStep {
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
        let (m, rank) = (self.manifest, self.rank);
        loop {
            let global = self.ramp.batch_at(self.progress.consumed_samples);
            let complete = self.progress.consumed_samples + global as u64 > m.train.samples;
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
                self.saver.finish(rank)?;
                self.write_report()?;
                self.finish_copies(ended)?;
                self.trace.map_or(Ok(()), |trace| trace.finish(rank))?;
                return Ok(ended);
            }
            let step = self.progress.step + 1;
            if let Some(trace) = self.trace {
                trace.before(rank, step, self.engine.backend());
            }
            self.step_and_after(step, global)?;
            if let Some(trace) = self.trace.filter(|trace| trace.ends_with(step)) {
                trace.finish(rank)?;
            }
        }
    }

    /// Executes a step, and evaluations and saves that are due after it.
    fn step_and_after(&mut self, step: u64, global: usize) -> anyhow::Result<()> {
        let _step = tracing::error_span!("step", step).entered();
        self.step(global)?;
        let m = self.manifest;
        let due = |every: u64| every > 0 && step.is_multiple_of(every);
        let last = self.progress.consumed_samples + global as u64 > m.train.samples;
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
        match self.trace.is_some_and(|trace| trace.ends_with(step)) {
            true => self.drain(),
            false => Ok(()),
        }
    }

    /// Exchanges signals and finished writes between all ranks, which act on them at the same step.
    /// Returns the reason if the run ends here, which depends on rank 0's losses and job.
    fn poll_requests(&mut self) -> anyhow::Result<Option<Ended>> {
        let (rank, signals) = (self.rank, self.signals);
        rank.set_phase("between two steps");
        self.stragglers.look(rank);
        let written = self.saver.oldest_is_written()?;
        let begun = self.saver.oldest_has_begun();
        let reached = rank.is_first() && self.reached();
        let save = self.saver.slowest_save();
        let leave = self.time_limit.as_mut().is_some_and(|limit| limit.is_due(save));
        let away = self.saver.is_away();
        let asked = [signals.stop(), signals.save(), begun, written, reached, leave, away];
        let [stop, save, begun, written, reached, leave, away] = rank.count(asked);
        if rank.is_first() {
            self.saver.report_waiting(away);
        }
        if begun > 0 {
            self.saver.write_oldest(rank)?;
        }
        if written == rank.grid.size() {
            self.saver.publish_oldest(rank)?;
        }
        if save > 0 {
            self.save()?;
        }
        let stopped = (stop > 0).then_some(Ended::Stopped);
        let leaves = (leave > 0).then_some(Ended::JobEnds);
        Ok((reached > 0).then_some(Ended::Reached).or(stopped).or(leaves))
    }

    /// Whether the loss has reached train.stop_at_loss: that of the validation set if there is one,
    /// else that of the last steps.
    fn reached(&self) -> bool {
        let loss = if self.valid.is_empty() { self.saver.mean_loss() } else { self.evaluated };
        self.manifest.train.stop_at_loss.zip(loss).is_some_and(|(at, loss)| loss <= at)
    }

    /// Queues one step on the device, and finishes the step before it meanwhile.
    fn step(&mut self, global: usize) -> anyhow::Result<()> {
        let (m, rank) = (self.manifest, self.rank);
        let recorder = rank.world().recorder();
        let measured = self.parts.next_is_due();
        if measured {
            self.drain()?;
            self.parts.begin(self.be, rank);
        }
        let (started, waited) = (Instant::now(), self.loader.wait());
        let others = recorder.waited().host;
        self.stragglers.delay();
        let first = self.progress.consumed_samples;
        let (step, consumed) = (self.progress.step + 1, first + global as u64);
        let lr = lr::of_step(&m.lr, &(first..consumed));
        let limits = self.spikes.as_ref().and_then(|of| of.limits(step, &(first..consumed)));
        self.engine.set_limits(limits);
        self.engine.take_update_norm(self.takes_update_norm(step));
        let (loader, be, parts) = (&mut self.loader, self.be, &mut self.parts);
        self.signals.computing(step);
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
            self.shard.rounds(global as u64) as usize,
            lr,
        )?;
        self.parts.write_ops(step);
        self.progress = Progress { step, consumed_samples: consumed };
        let data_wait = self.loader.wait() - waited;
        let waited = recorder.waited().host - others;
        let now = PendingStep { step, samples: first..consumed, lr, started, data_wait, waited };
        let before = self.pending.replace(now);
        before.map_or(Ok(()), |before| self.finish_step(before))?;
        if measured {
            self.drain()?;
            let seconds = self.first_steps.last().copied().unwrap_or_default();
            self.parts.end(be, rank, step, seconds);
            self.compare_with_plan(global)?;
        }
        Ok(())
    }

    fn takes_update_norm(&self, step: u64) -> bool {
        let m = self.manifest;
        m.has_update_norm() && step.is_multiple_of(m.log.update_norm)
    }

    /// Waits for the pending step: afterwards the device is idle and the weights are checked.
    pub fn drain(&mut self) -> anyhow::Result<()> {
        self.pending.take().map_or(Ok(()), |last| self.finish_step(last))
    }

    fn has_diverged(&self) -> bool {
        self.spikes.as_ref().is_some_and(Spikes::has_diverged)
    }

    /// Waits for the outcome of a step and records it. Fails if it is not finite.
    fn finish_step(&mut self, done: PendingStep) -> anyhow::Result<()> {
        let PendingStep { step, samples, lr, started, data_wait, waited } = done;
        self.rank.set_phase(&format!("computing step {step}"));
        let waiting = tracing::trace_span!("wait for outcome").entered();
        let (outcome, ended) = self.engine.outcome()?;
        drop(waiting);
        guard::check(self.rank, &outcome, &self.engine, step, samples.clone())?;
        self.saver.step(Past { step, loss: outcome.loss, grad_norm: outcome.grad_norm }, lr);
        if let Some(spikes) = &mut self.spikes {
            let (loss, norm) = (outcome.loss, outcome.grad_norm);
            spikes.see(Taken { step, loss, norm, skipped: outcome.skipped }, &samples);
        }
        let updated = self.takes_update_norm(step) && !outcome.skipped;
        let update_norm = updated.then_some(outcome.update_norm);
        if let Some((spikes, norm)) = self.spikes.as_mut().zip(update_norm) {
            spikes.see_update(step, norm, lr);
        }
        let seconds = (ended - started.max(self.last_ended)).as_secs_f64();
        self.last_ended = ended;
        if self.first_steps.len() < COMPARED_STEPS {
            self.first_steps.push(seconds);
        }
        self.stragglers.step(self.rank, seconds, waited, self.faults.monitor());
        self.faults.look(self.rank, false);
        let global = (samples.end - samples.start) as usize;
        let scaled = self.manifest.loss_scale.is_some();
        let logged = step.is_multiple_of(self.manifest.log.interval);
        let monitor = self.faults.monitor().filter(|_| logged);
        let Some(report) = &mut self.report else { return Ok(()) };
        let line = StepLine {
            step,
            consumed_samples: samples.end,
            lm_loss: outcome.loss,
            grad_norm: outcome.grad_norm,
            update_norm,
            lr,
            global_batch: global,
            seconds,
            data_wait_seconds: data_wait.as_secs_f64(),
            z_loss: self.manifest.train.z_loss.map(|_| outcome.z_loss),
            loss_scale: scaled.then_some(outcome.loss_scale),
            skipped: outcome.skipped,
            health: monitor.map(Monitor::read).unwrap_or_default(),
        };
        report.step(&line)?;
        self.board.iter_mut().for_each(|board| board.step(&line));
        if self.first_steps.len() == 1 {
            self.foretell(&line);
        }
        Ok(())
    }

    /// Prints the expected duration after the first step of a long run.
    fn foretell(&self, first: &StepLine) {
        let remaining = self.manifest.train.samples.saturating_sub(first.consumed_samples);
        let seconds = remaining as f64 * first.seconds / first.global_batch as f64;
        if seconds >= FORETOLD_S {
            let steps = self.ramp.steps(self.manifest.train.samples) - first.step;
            let (first, rest) = (Seconds(first.seconds), Seconds(seconds));
            let steps = Count(steps).of("step");
            tracing::info!("the first step took {first}: {steps} more take about {rest}");
        }
    }

    /// Compares estimated with measured memory and time after the first steps, part by part.
    fn compare_with_plan(&mut self, batch: usize) -> anyhow::Result<()> {
        if self.first_steps.len() < COMPARED_STEPS || self.report.is_none() {
            return Ok(());
        }
        let mut seconds = self.first_steps.clone();
        seconds.sort_by(f64::total_cmp);
        let (reserved, seconds) = (self.engine.memory_plan().total(), seconds[COMPARED_STEPS / 2]);
        let first = FirstSteps { batch, seconds, parts: self.parts.median() };
        let stage = self.rank.at[Axis::Pipeline];
        let compare = || drift::compare(self.manifest, stage, reserved, &first);
        // Excludes the spans of the dry engine from the trace.
        let compared = tracing::subscriber::with_default(NoSubscriber::new(), compare);
        let Some(compared) = compared else { return Ok(()) };
        tracing::info!("{}", compared.line);
        if let Some((report, table)) = self.report.as_mut().zip(compared.table) {
            report.parts(&table)?;
            self.board.iter_mut().for_each(|board| board.parts(&table));
        }
        Ok(())
    }

    /// Fails if weights that must be equal on several ranks differ (replica check).
    fn audit(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        let _span = tracing::trace_span!("replica check").entered();
        let step = self.progress.step;
        self.rank.set_phase("comparing weights");
        let Err(drifted) = self.engine.check_replicas() else { return Ok(()) };
        let found = if drifted.found.is_empty() { Ok(()) } else { Err(drifted) };
        self.rank.agree(found.with_context(|| {
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
        let (m, be) = (self.manifest, self.be);
        let samples = m.train.eval_samples;
        let Progress { step, consumed_samples } = self.progress;
        for (name, source) in &self.valid {
            self.rank.set_phase(&format!("evaluating {name}"));
            let mut loader = Loader::evaluation(source, self.shard, samples)?;
            let load = &mut |inputs: &_| loader.load(be, inputs, samples);
            let loss = self.engine.evaluate(load, self.shard.rounds(samples))?;
            if *name == self.valid[0].0 {
                self.evaluated = Some(loss);
            }
            if let Some(report) = &mut self.report {
                report.eval(step, consumed_samples, name, loss)?;
            }
        }
        let (rank, shard, seq_len) = (self.rank, self.shard, m.model.seq_len);
        let scoring = Scoring { rank, be, model: &self.engine, shard, seq_len, progress: None };
        for (name, task) in self.tasks.iter() {
            rank.set_phase(&format!("evaluating task {name}"));
            let accuracy = scoring.task(task)?;
            if let Some((report, accuracy)) = self.report.as_mut().zip(accuracy) {
                report.task(step, consumed_samples, name, accuracy)?;
            }
        }
        self.time_limit.iter_mut().for_each(|limit| limit.evaluated(begun.elapsed()));
        Ok(())
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
        if self.manifest.train.audit_interval.is_some() {
            self.audit()?;
        }
        let next_batch = self.ramp.batch_at(self.progress.consumed_samples) as u64;
        let seq_len = self.manifest.model.seq_len;
        self.signals.saved();
        let _span = tracing::trace_span!("save", track = "save").entered();
        let began = Instant::now();
        self.saver.save(self.rank, &self.engine, self.progress, next_batch, seq_len)?;
        let each_step = self.parts.saved(began.elapsed().as_secs_f64());
        self.board.iter_mut().for_each(|board| board.saved(each_step));
        Ok(())
    }

    /// Waits for the copy of the last checkpoint, with a time limit. A collective.
    fn finish_copies(&mut self, ended: Ended) -> anyhow::Result<()> {
        self.rank.set_phase("copying the last checkpoint");
        let complete = matches!(ended, Ended::Complete | Ended::Reached);
        let (signals, copies) = (self.signals, &mut self.copies);
        let mut is_done = |copies: &mut Copies| copies.is_done(complete, signals.stop());
        self.rank.wait_until(|| Ok(copies.as_mut().is_none_or(&mut is_done)))?;
        copies.iter().for_each(Copies::summary);
        Ok(())
    }

    /// Waits until the whole report is in its files. A collective.
    pub fn write_report(&mut self) -> anyhow::Result<()> {
        self.rank.set_phase("writing the last lines of metrics");
        let report = &mut self.report;
        self.rank.wait_until(|| match report {
            None => Ok(true),
            Some(report) => match report.is_written()? {
                false => {
                    std::thread::sleep(Duration::from_millis(5));
                    Ok(false)
                }
                true => Ok(true),
            },
        })
    }

    /// Waits for pending checkpoints if the ranks still communicate, then closes the report.
    pub fn end(&mut self, ended: &anyhow::Result<Ended>) {
        let doing = self.rank.current_phase();
        self.faults.look(self.rank, true);
        let agreed =
            |error: &anyhow::Error| error.is::<CollectiveError>() || self.rank.grid.size() == 1;
        if ended.as_ref().err().is_some_and(agreed) {
            // A second error would hide the one that ends the run.
            let _ = self.saver.finish(self.rank);
            self.rank.set_phase(&doing); // what it did when it failed
        }
        if ended.is_err() {
            self.saver.leave();
        }
        if let Some(report) = &mut self.report {
            report.finish();
        }
        let how = match ended {
            Ok(Ended::Complete | Ended::NothingLeft) => status::COMPLETE.to_string(),
            Ok(Ended::Stopped) => "stopped by a signal, and saved".to_string(),
            Ok(Ended::JobEnds) => "saved, as its job ended".to_string(),
            Ok(Ended::Reached) => "saved, with train.stop_at_loss reached".to_string(),
            Err(error) => format!("{}: {error:#}", status::FAILED),
        };
        if let Some(status) = self.board.as_mut().map(|board| board.end(&how)) {
            tracing::info!("{}", status.goodput_line());
        }
    }
}
