//! Record of a run on rank 0: log lines, metrics and events of the report, and the status.

use super::{Ended, Event, Now, RunContext, StepRecord, Watcher};
use crate::report::Report;
use crate::report::metrics::Metrics;
use crate::report::numbers::{Source, StepRow};
use crate::status::Board;
use base::{Count, Seconds};
use device::cuda::nvml::Monitor;
use std::time::Duration;

/// Expected seconds of a run above which its expected duration is printed after the first step.
const FORETOLD_S: f64 = 20.0;

/// Report and status, on rank 0 only.
pub struct Record {
    files: Option<(Report, Board)>,
    /// Whether a step of this process was recorded.
    begun: bool,
}

impl Record {
    pub fn new(files: Option<(Report, Board)>) -> Record {
        Record { files, begun: false }
    }

    fn step(&mut self, cx: &RunContext, done: &StepRecord) -> anyhow::Result<()> {
        let m = cx.manifest;
        let first = !std::mem::replace(&mut self.begun, true);
        let Some((report, board)) = &mut self.files else { return Ok(()) };
        let logged = done.step.is_multiple_of(m.log.interval);
        let monitor = cx.monitor.as_ref().filter(|_| logged);
        let gpu = monitor.map(Monitor::read).unwrap_or_default();
        let row = StepRow::new(&Source { manifest: m, done, gpu });
        report.step(&row)?;
        board.step(&row);
        if first {
            foretell(cx, &row);
        }
        Ok(())
    }

    /// Waits until the whole report is in its files. A collective.
    fn wait(&mut self, now: &Now) -> anyhow::Result<()> {
        now.rank.set_phase("writing the last lines of metrics");
        now.rank.wait_until(|| {
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
    let remaining = samples.saturating_sub(first.consumed_samples);
    let seconds = remaining as f64 * first.sec / first.global_batch as f64;
    if seconds >= FORETOLD_S {
        let steps = cx.ramp.steps(samples) - first.step;
        let (first, rest) = (Seconds(first.sec), Seconds(seconds));
        let steps = Count(steps).with_noun("step");
        tracing::info!("the first step took {first}: {steps} more take about {rest}");
    }
}

impl Watcher for Record {
    fn name(&self) -> &'static str {
        "record"
    }

    fn notice(&mut self, now: &Now, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Step(done) => return self.step(now.cx, done),
            Event::GoingBack => return self.wait(now),
            _ => {}
        }
        let Some((report, board)) = &mut self.files else { return Ok(()) };
        match event {
            Event::Validated(at, set, loss) => {
                report.eval(at.step, at.consumed_samples, set, *loss)?
            }
            Event::Scored(at, task, accuracy) => {
                report.task(at.step, at.consumed_samples, task, *accuracy)?
            }
            Event::Parts(table) => {
                report.parts(table)?;
                board.parts(table);
            }
            Event::Saving(each_step) => board.saved(*each_step),
            Event::RolledBack(state) => {
                report.go_back(state.progress.step)?;
                let kept = Metrics::read(&now.manifest.log.folder);
                board.go_back(kept.map_or(0.0, |kept| kept.useful_seconds()));
            }
            _ => {}
        }
        Ok(())
    }

    fn complete(&mut self, now: &Now, _: Ended) -> anyhow::Result<()> {
        self.wait(now)
    }

    fn finish(&mut self, _: &Now, how: &str) {
        if let Some((report, board)) = &mut self.files {
            report.finish();
            tracing::info!("{}", board.end(how).goodput_line());
        }
    }
}
