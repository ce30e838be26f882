//! The loop around the step: open everything, resume, train, evaluate, save, stop in good order. All
//! ranks of a run walk through it together, the first one reports.

mod attempts;
mod feed;
mod guard;
pub mod generate;
pub mod import;
pub mod launch;
mod rank;
pub mod report;
pub mod replay;
mod resume;
mod saving;
mod start;
mod together;

pub use launch::Followed;

use crate::checkpoint::{Past, Progress};
use crate::data::Source;
use crate::device::Backend;
use crate::engine::{Engine, lr};
use crate::estimate::drift;
use crate::manifest::{Loaded, Manifest};
use crate::plan::ramp::Ramp;
use anyhow::Context;
use feed::{Feed, Turn};
use guard::Signals;
use rank::{Agreed, Rank};
use report::{Report, StepLine};
use saving::Saver;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// By a signal, after saving.
    Stopped,
}

/// What the command line asks for beside the manifest.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name of a checkpoint to go on from, in place of the newest.
    pub resume_from: Option<PathBuf>,
    /// Recorded steps to take again first, to prove that resuming repeats them.
    pub verify_resume: Option<u64>,
}

/// Trains the manifest from where its folder stands to its end, or to a signal. Of several processes
/// that share a run, one says how it ended.
pub fn run(loaded: &Loaded, options: &Options) -> anyhow::Result<Option<Ended>> {
    loaded.manifest.runnable()?;
    let mut crew = launch::Crew::meet(loaded, &format!("{options:?}"))?;
    let process = start::Process::new(loaded, options, &crew)?;
    let ended = crew.run(&loaded.manifest, |rank, device| {
        let _lock = start::lock(rank, &loaded.manifest)?;
        let mut run = start::open(&process, rank, device)?;
        let ended = run.train();
        run.end(&ended);
        if rank.is_first() && ended.is_ok() {
            attempts::forget(&loaded.manifest.log.folder);
        }
        Ok((rank.is_first(), ended?))
    });
    ended.map(|(first, ended)| first.then_some(ended))
}

/// Steps from a start on whose median time is compared with the plan.
const COMPARED: usize = 5;

/// One rank of a run under way.
struct Run<'a> {
    manifest: &'a Manifest,
    rank: &'a Rank<'a>,
    turn: Turn,
    ramp: Ramp,
    engine: Engine<'a>,
    be: &'a dyn Backend,
    valid: Vec<(String, Arc<Source>)>,
    feed: Feed,
    /// On the first rank.
    report: Option<Report>,
    /// After the last step that was asked for.
    progress: Progress,
    /// That step, while its outcome is not known.
    under_way: Option<UnderWay>,
    /// When the outcome before that arrived.
    last_ended: Instant,
    saver: Saver,
    signals: &'a Signals,
    /// Seconds of the first steps, until they are compared with the plan.
    first_steps: Vec<f64>,
}

/// A step that the device is at. Its outcome is looked at when the next one has been asked for, so
/// that the device never waits for the host; and before anything else is done with its weights.
struct UnderWay {
    step: u64,
    samples: Range<u64>,
    lr: f64,
    started: Instant,
    data_wait: Duration,
}

impl Run<'_> {
    fn train(&mut self) -> anyhow::Result<Ended> {
        let (m, rank) = (self.manifest, self.rank);
        let due = |every: u64, step: u64| every > 0 && step.is_multiple_of(every);
        loop {
            let global = self.ramp.batch_at(self.progress.consumed_samples);
            let complete = self.progress.consumed_samples + global as u64 > m.train.samples;
            let stop = self.agree()?;
            if complete || stop {
                self.save()?;
                self.saver.finish(rank)?;
                return Ok(if complete { Ended::Complete } else { Ended::Stopped });
            }
            self.step(global)?;
            let step = self.progress.step;
            let last = self.progress.consumed_samples + global as u64 > m.train.samples;
            if m.train.audit_interval.is_some_and(|every| last || due(every, step)) {
                self.audit()?;
            }
            if m.train.eval_interval.is_some_and(|every| last || due(every, step)) {
                self.evaluate()?;
            }
            if due(m.checkpoint.interval, step) {
                self.save()?;
            }
        }
    }

    /// What any rank was asked for or has finished, all do or know before the same step. Whether to
    /// stop.
    fn agree(&mut self) -> anyhow::Result<bool> {
        let (rank, signals) = (self.rank, self.signals);
        rank.doing("between two steps");
        let written = self.saver.written()?;
        let [stop, save, written] = rank.count([signals.stop(), signals.save(), written]);
        if written == rank.grid.size() {
            self.saver.settle(rank)?;
        }
        if save > 0 {
            self.save()?;
        }
        let notes = self.notes();
        if let Some(report) = &mut self.report {
            notes.iter().for_each(|note| report.note(note));
        }
        Ok(stop > 0)
    }

    /// What became known since this was asked last, for a person.
    fn notes(&mut self) -> Vec<String> {
        [self.saver.notes(), self.engine.backend().notes()].concat()
    }

    /// Asks for a step, and sees to the one before while the device is at it.
    fn step(&mut self, global: usize) -> anyhow::Result<()> {
        let (started, waited) = (Instant::now(), self.feed.wait());
        let (m, rank) = (self.manifest, self.rank);
        let first = self.progress.consumed_samples;
        let (step, consumed) = (self.progress.step + 1, first + global as u64);
        let lr = lr::at(&m.lr, consumed);
        let (feed, be) = (&mut self.feed, self.be);
        let computing = format!("computing step {step}");
        self.engine.queue(
            &mut |inputs| {
                rank.doing("reading data");
                let loaded = feed.load(be, inputs, global as u64);
                rank.doing(&computing);
                loaded
            },
            self.turn.rounds(global as u64) as usize,
            lr,
        )?;
        self.progress = Progress { step, consumed_samples: consumed };
        let data_wait = self.feed.wait() - waited;
        let now = UnderWay { step, samples: first..consumed, lr, started, data_wait };
        let before = self.under_way.replace(now);
        before.map_or(Ok(()), |before| self.see_to(before))
    }

    /// Nothing is under way any more, and every step so far was sound.
    fn catch_up(&mut self) -> anyhow::Result<()> {
        self.under_way.take().map_or(Ok(()), |last| self.see_to(last))
    }

    /// Waits for the outcome of a step, and records it; or ends the run.
    fn see_to(&mut self, done: UnderWay) -> anyhow::Result<()> {
        let UnderWay { step, samples, lr, started, data_wait } = done;
        self.rank.doing(&format!("computing step {step}"));
        let (outcome, ended) = self.engine.outcome()?;
        guard::check(self.rank, &outcome, &self.engine, step, samples.clone())?;
        self.saver.step(Past { step, loss: outcome.loss, grad_norm: outcome.grad_norm }, lr);
        let seconds = (ended - started.max(self.last_ended)).as_secs_f64();
        self.last_ended = ended;
        let global = (samples.end - samples.start) as usize;
        let scaled = self.manifest.loss_scale.is_some();
        let Some(report) = &mut self.report else { return Ok(()) };
        report.step(&StepLine {
            step,
            consumed_samples: samples.end,
            lm_loss: outcome.loss,
            grad_norm: outcome.grad_norm,
            lr,
            global_batch: global,
            seconds,
            data_wait_seconds: data_wait.as_secs_f64(),
            loss_scale: scaled.then_some(outcome.loss_scale),
            skipped: outcome.skipped,
        })?;
        if self.first_steps.len() < COMPARED {
            self.first_steps.push(seconds);
            self.compare_with_plan(global);
        }
        Ok(())
    }

    /// Once the first steps are over: what was planned, and what it turned out to be.
    fn compare_with_plan(&mut self, global: usize) {
        let Some(report) = self.report.as_mut().filter(|_| self.first_steps.len() == COMPARED)
        else {
            return;
        };
        let mut seconds = self.first_steps.clone();
        seconds.sort_by(f64::total_cmp);
        let (reserved, median) = (self.engine.bill().total(), seconds[COMPARED / 2]);
        let stage = self.rank.at.pipeline;
        if let Some(line) = drift::line(self.manifest, stage, reserved, (global, median)) {
            report.note(&line);
        }
    }

    /// Ends the run if weights that must be equal on several ranks are not.
    fn audit(&mut self) -> anyhow::Result<()> {
        self.catch_up()?;
        let step = self.progress.step;
        self.rank.doing("comparing weights");
        let Err(drifted) = self.engine.audit() else { return Ok(()) };
        let found = if drifted.found.is_empty() { Ok(()) } else { Err(drifted) };
        self.rank.all(found.with_context(|| {
            format!(
                "audit after step {step}: a rank has computed or stored something wrong; look at \
                 its hardware, and go on from a checkpoint before the last audit that passed"
            )
        }))
    }

    fn evaluate(&mut self) -> anyhow::Result<()> {
        self.catch_up()?;
        let (m, be) = (self.manifest, self.be);
        let samples = m.train.eval_samples;
        let Progress { step, consumed_samples } = self.progress;
        for (name, source) in &self.valid {
            self.rank.doing(&format!("evaluating {name}"));
            let mut feed = Feed::evaluation(source, self.turn, samples)?;
            let load = &mut |inputs: &_| feed.load(be, inputs, samples);
            let loss = self.engine.evaluate(load, self.turn.rounds(samples))?;
            if let Some(report) = &mut self.report {
                report.eval(step, consumed_samples, name, loss)?;
            }
        }
        Ok(())
    }

    /// What is saved is one copy of each weight: the others must be like it.
    fn save(&mut self) -> anyhow::Result<()> {
        self.catch_up()?;
        if self.manifest.train.audit_interval.is_some() {
            self.audit()?;
        }
        let next_batch = self.ramp.batch_at(self.progress.consumed_samples) as u64;
        let seq_len = self.manifest.model.seq_len;
        self.signals.saved();
        self.saver.save(self.rank, &self.engine, self.progress, next_batch, seq_len)
    }

    /// Lets saves under way come to their end, where the ranks still go together, and says so.
    fn end(&mut self, ended: &anyhow::Result<Ended>) {
        let doing = self.rank.now_doing();
        let agreed = |error: &anyhow::Error| error.is::<Agreed>() || self.rank.grid.size() == 1;
        if ended.as_ref().err().is_some_and(agreed) {
            // Another error than the one that ends the run is not what its user needs to hear.
            let _ = self.saver.finish(self.rank);
            self.rank.doing(&doing); // when it failed
        }
        let notes = self.notes();
        if let Some(report) = &mut self.report {
            notes.iter().for_each(|note| report.note(note));
            report.finish();
        }
    }
}
