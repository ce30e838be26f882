//! Record of a run on rank 0: log lines, metrics and events of the report, and the status.

use super::{Ended, Event, RunContext, RunView, StepRecord, Watcher};
use crate::energy::{Energy, EnergyMeter, EnergySum, RankEnergy};
use crate::memory::{FullestRank, RankMemory, pick_fullest};
use crate::report::Report;
use crate::report::metrics::Metrics;
use crate::report::numbers::{Source, StepRow};
use crate::status::StatusWriter;
use base::{Count, Seconds};
use std::time::Duration;

/// Expected seconds of a run above which its expected duration is printed after the first step.
const FORETOLD_S: f64 = 20.0;

/// Report and status, on rank 0 only.
pub struct Record {
    files: Option<(Report, StatusWriter)>,
    /// Whether a step of this process was recorded.
    begun: bool,
    /// Last reading of the ranks' memory.
    memory: Option<FullestRank>,
    meter: EnergyMeter,
    /// Sum of the ranks' energy on rank 0, and its last reading.
    sum: EnergySum,
    energy: Energy,
}

impl Record {
    /// `spent` is the energy of the run's earlier processes.
    pub fn new(files: Option<(Report, StatusWriter)>, meter: EnergyMeter, spent: Energy) -> Record {
        let sum = EnergySum::new(spent);
        Record { files, begun: false, memory: None, meter, sum, energy: Energy::default() }
    }

    /// Records a step. At a log line and at the first step, a collective.
    fn step(&mut self, run: &RunView, done: &StepRecord) -> anyhow::Result<()> {
        let manifest = run.manifest;
        let first = !std::mem::replace(&mut self.begun, true);
        let logged = done.step.is_multiple_of(manifest.log.interval);
        let monitor = run.monitor.as_deref();
        let mut memory = None;
        let mut energy = Energy::default();
        if logged || first {
            let mine = (RankMemory::read(run.engine, monitor), self.meter.read());
            let all: Vec<(RankMemory, RankEnergy)> = run.rank.gather(&mine)?;
            let (memories, energies): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            memory = pick_fullest(run.rank, memories);
            if run.rank.is_first() {
                energy = self.sum.add(&energies);
            }
            (self.memory, self.energy) = (memory, energy);
        }
        let Some((report, status)) = &mut self.files else { return Ok(()) };
        let health = monitor.filter(|_| logged).map(|monitor| monitor.health());
        let gpu = health.unwrap_or_default();
        let row = StepRow::new(&Source { manifest, done, gpu, memory, energy });
        report.step(&row)?;
        // The status has the last reading until the next one.
        let last = Source { manifest, done, gpu, memory: self.memory, energy: self.energy };
        status.step(&StepRow::new(&last));
        if first {
            foretell(run.cx, &row);
        }
        Ok(())
    }

    /// Waits until the whole report is in its files. A collective.
    fn wait(&mut self, run: &RunView) -> anyhow::Result<()> {
        run.rank.set_phase("writing the last lines of metrics");
        run.rank.wait_until(|| {
            let Some((report, _)) = &mut self.files else { return Ok(true) };
            let written = report.is_written()?;
            if !written {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(written)
        })
    }
}

/// Prints the expected duration after the first step of a long run.
fn foretell(cx: &RunContext, first: &StepRow) {
    let samples = cx.manifest.train.samples;
    let schedule = &cx.steps.schedule;
    let remaining = schedule.tokens(samples).saturating_sub(first.tokens);
    let seconds = remaining as f64 / first.tokens_per_s;
    if seconds >= FORETOLD_S {
        let steps = schedule.ramp.steps(samples) - first.step;
        let first = Seconds(first.sec);
        let rest = Seconds(seconds);
        let steps = Count(steps).with_noun("step");
        tracing::info!("the first step took {first}: {steps} more take about {rest}");
    }
}

impl Watcher for Record {
    fn name(&self) -> &'static str {
        "record"
    }

    fn notice(&mut self, run: &RunView, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Step(done) => return self.step(run, done),
            Event::RollingBack => return self.wait(run),
            _ => {}
        }
        let Some((report, status)) = &mut self.files else { return Ok(()) };
        match event {
            Event::Validated(at, set, loss) => {
                report.eval(at.step, at.consumed_samples, set, *loss)?
            }
            Event::Scored(at, task, accuracy) => {
                report.task(at.step, at.consumed_samples, task, *accuracy)?
            }
            Event::Parts(table) => {
                report.parts(table)?;
                status.parts(table);
            }
            Event::SaveBegins(receipt) => receipt.set(Some(report.sync_metrics())),
            Event::Saving(each_step) => status.saved(*each_step),
            Event::RolledBack(state) => {
                report.roll_back(state.progress.step)?;
                let kept = Metrics::read(&run.manifest.log.folder);
                status.roll_back(kept.map_or(0.0, |kept| kept.useful_seconds()));
            }
            _ => {}
        }
        Ok(())
    }

    fn complete(&mut self, run: &RunView, _: Ended) -> anyhow::Result<()> {
        self.wait(run)?;
        let energies = run.rank.gather(&self.meter.read())?;
        if let Some((_, status)) = &mut self.files {
            status.energy(self.sum.add(&energies), run.manifest.plan.carbon);
        }
        Ok(())
    }

    fn finish(&mut self, _: &RunView, how: &str) {
        if let Some((report, status)) = &mut self.files {
            report.finish();
            tracing::info!("{}", status.end(how).goodput_line());
        }
    }
}
