//! The training loop of one rank, which calls the watchers around each step.

use super::loader::Loader;
use super::not_finite;
use super::status;
use super::watch::{
    Ended, Event, Idle, Requests, RunContext, RunView, StepRecord, StepSpec, Watchers,
};
use base::Moment;
use checkpoint::Progress;
use engine::{Engine, lr};
use std::ops::Range;
use std::time::Duration;

/// State of a rank during training.
pub struct Run<'a> {
    pub cx: RunContext<'a>,
    pub engine: Engine<'a>,
    pub loader: Loader,
    /// Step and samples after the last step that was queued on the device.
    pub progress: Progress,
    pub in_flight: InFlight,
    pub watchers: Watchers<'a>,
}

/// Work of the device that the host has not waited for.
pub struct InFlight {
    /// Step whose outcome was not read yet.
    pending: Option<PendingStep>,
    /// Time at which the outcome of the previous step arrived.
    last_ended: Moment,
}

impl Default for InFlight {
    fn default() -> InFlight {
        InFlight { pending: None, last_ended: Moment::now() }
    }
}

/// Step that is queued on the device. Its outcome is read after the next step has been queued, so that
/// the device never waits for the host, and before the weights are used for anything else.
struct PendingStep {
    step: u64,
    samples: Range<u64>,
    lr: f64,
    started: Moment,
    data_wait: Duration,
    /// Seconds that the rank's thread waited for others while it queued the step.
    waited: f64,
}

impl<'a> Run<'a> {
    pub fn train(&mut self) -> anyhow::Result<Ended> {
        loop {
            let next = self.next_step();
            let complete = next.samples.end > self.cx.manifest.train.samples;
            let stop = self.poll_requests()?;
            let ended = complete.then_some(Ended::Complete).or(stop);
            if ended.is_some() {
                self.drain()?;
            }
            if self.watchers.must_roll_back() {
                self.roll_back()?;
            } else if let Some(ended) = ended {
                self.watchers
                    .try_for_each(|watcher| watcher.complete(&self.view(), ended))?;
                return Ok(ended);
            } else {
                self.watchers
                    .try_for_each(|watcher| watcher.before_step(&self.view(), next.step))?;
                self.step(&next)?;
                self.watchers
                    .try_for_each(|watcher| watcher.after_step(&self.view(), next.step))?;
            }
        }
    }

    /// Executes a step, and the work of watchers that is due after it.
    fn step(&mut self, spec: &StepSpec) -> anyhow::Result<()> {
        let _step = tracing::error_span!("step", step = spec.step).entered();
        let idle = self.watchers.idle(&self.view(), spec);
        if idle == Idle::Around {
            self.drain()?;
        }
        self.watchers
            .try_for_each(|watcher| watcher.prepare(&self.view(), spec))?;
        self.queue(spec)?;
        if idle >= Idle::After {
            self.drain()?;
        }
        self.watchers
            .try_for_each(|watcher| watcher.due(&self.view(), spec))
    }

    /// State of the run, for watchers.
    fn view(&self) -> RunView<'_, 'a> {
        let Run { cx, engine, progress, watchers, .. } = self;
        RunView { cx, engine, progress: *progress, watchers }
    }

    fn next_step(&self) -> StepSpec {
        let steps = &self.cx.steps;
        let samples = steps.after(self.progress.consumed_samples);
        let last = steps.after(samples.end).end > self.cx.manifest.train.samples;
        StepSpec { step: self.progress.step + 1, samples, last }
    }

    /// Exchanges requests of the watchers and signals between all ranks, which act on them at the
    /// same step. Returns the reason if the run ends here, which depends on rank 0's losses and job.
    fn poll_requests(&mut self) -> anyhow::Result<Option<Ended>> {
        let rank = self.cx.rank;
        let signals = self.cx.signals;
        rank.set_phase("between two steps");
        let mut requests = Requests::STOP.when(signals.stop_requested())
            | Requests::SAVE.when(signals.save_requested());
        self.watchers.try_for_each(|watcher| {
            requests = requests | watcher.requests(&self.view())?;
            Ok(())
        })?;
        let counts = requests.count(rank);
        if counts.any(Requests::SAVE) {
            self.drain()?;
        }
        self.watchers
            .try_for_each(|watcher| watcher.act_on(&self.view(), &counts))?;
        let ends = [
            (Requests::REACHED, Ended::Reached),
            (Requests::STOP, Ended::Stopped),
            (Requests::LEAVE, Ended::JobEnds),
        ];
        Ok(ends
            .into_iter()
            .find(|(request, _)| counts.any(*request))
            .map(|(_, ended)| ended))
    }

    /// Queues one step on the device, and finishes the step before it meanwhile.
    fn queue(&mut self, spec: &StepSpec) -> anyhow::Result<()> {
        let m = self.cx.manifest;
        let rank = self.cx.rank;
        let be = self.cx.be;
        let recorder = rank.world().recorder();
        let started = Moment::now();
        let waited = self.loader.wait();
        let others = recorder.waited().host;
        #[cfg(feature = "testing")]
        super::testing::delay_step();
        let StepSpec { step, ref samples, .. } = *spec;
        let lr = lr::for_step(&m.lr, samples);
        let global = samples.end - samples.start;
        let micro = self.cx.steps.micro(samples);
        self.engine.set_micro(micro)?;
        self.cx.signals.set_step(step);
        let computing = format!("computing step {step}");
        let loader = &mut self.loader;
        let mut input = 0.0;
        self.engine.queue(
            &mut |inputs| {
                rank.set_phase("reading data");
                let _span = tracing::trace_span!("read data", track = "data").entered();
                let began = Moment::now();
                let loaded = loader.load(be, inputs, global);
                input += began.elapsed().as_secs_f64();
                rank.set_phase(&computing);
                loaded
            },
            self.cx.shard.with_micro(micro.samples).rounds(global) as usize,
            lr,
        )?;
        self.watchers
            .notice(&self.view(), &Event::Queued(step, input))?;
        self.progress = Progress { step, consumed_samples: samples.end };
        let data_wait = self.loader.wait() - waited;
        let waited = recorder.waited().host - others;
        let samples = samples.clone();
        let queued = PendingStep { step, samples, lr, started, data_wait, waited };
        let previous = self.in_flight.pending.replace(queued);
        previous.map_or(Ok(()), |previous| self.finish_step(previous))
    }

    /// Waits for the pending step: afterwards the device is idle and the weights are checked.
    fn drain(&mut self) -> anyhow::Result<()> {
        self.in_flight
            .pending
            .take()
            .map_or(Ok(()), |last| self.finish_step(last))
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
        let seconds = ended
            .since(started.max(self.in_flight.last_ended))
            .as_secs_f64();
        self.in_flight.last_ended = ended;
        let record = StepRecord { step, samples, lr, seconds, data_wait, waited, outcome };
        self.watchers.notice(&self.view(), &Event::Step(&record))
    }

    /// Continues with the state to which a watcher rolls the run back. A collective.
    fn roll_back(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        self.watchers.notice(&self.view(), &Event::RollingBack)?;
        let mut back = None;
        self.watchers.try_for_each(|watcher| {
            back = back.take().or(watcher.roll_back(&self.view())?);
            Ok(())
        })?;
        let Some((state, message)) = back else { return Ok(()) };
        self.progress = state.progress;
        let RunContext { rank, data, steps, shard, manifest, .. } = &self.cx;
        let from = self.progress.consumed_samples;
        let end = manifest.train.samples;
        self.loader = rank.run_phase("starting the data loader", || {
            Loader::training(&data.train, steps.clone(), *shard, from, end)
        })?;
        self.watchers
            .notice(&self.view(), &Event::RolledBack(&state))?;
        self.in_flight.last_ended = Moment::now();
        tracing::warn!(target: launch::events::DIVERGENCE, "{message}");
        Ok(())
    }

    /// Ends the watchers, which close the report last.
    pub fn end(&mut self, ended: &anyhow::Result<Ended>) {
        let how = match ended {
            Ok(Ended::Complete | Ended::NothingLeft) => status::COMPLETE.to_string(),
            Ok(Ended::Stopped) => "stopped on request, and saved".to_string(),
            Ok(Ended::JobEnds) => "saved, as its job ended".to_string(),
            Ok(Ended::Reached) => status::REACHED.to_string(),
            Err(error) => format!("{}: {error:#}", status::FAILED),
        };
        self.watchers
            .for_each(|watcher| watcher.on_end(&self.view(), ended));
        self.watchers
            .for_each(|watcher| watcher.finish(&self.view(), &how));
    }
}
