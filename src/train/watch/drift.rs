//! Comparison of the first steps of a run with its plan, part by part.

use super::{Event, Idle, RunView, StepSpec, Watcher};
use crate::step_parts::StepParts;
use estimate::gptrain::drift::{self, FirstSteps};
use estimate::hardware::Hardware;
use estimate::parts::PartTable;
use plan::grid::Axis;
use tracing::subscriber::NoSubscriber;

/// Number of first steps whose median time is compared with the estimate.
const COMPARED_STEPS: usize = 5;

/// Measurements of the first steps.
pub struct Drift {
    /// Seconds of the first steps.
    seconds: Vec<f64>,
    parts: StepParts,
    /// Machine of the plan; None if it is unknown, and on other ranks than the first.
    planned_on: Option<&'static Hardware>,
}

impl Drift {
    pub fn new(parts: StepParts, planned_on: Option<&'static Hardware>) -> Drift {
        Drift { seconds: Vec::new(), parts, planned_on }
    }

    /// Ends the measurement of a step, whose outcome was the last. Compares on rank 0 once all first
    /// steps are measured.
    fn end_measurement(&mut self, run: &RunView, spec: &StepSpec) -> Option<PartTable> {
        let last = self.seconds.last().copied().unwrap_or_default();
        self.parts.end(run.be, run.rank, spec.step, last);
        if self.seconds.len() < COMPARED_STEPS || !run.rank.is_first() {
            return None;
        }
        let batch = (spec.samples.end - spec.samples.start) as usize;
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        let reserved = run.engine.memory_plan().total();
        let seconds = seconds[COMPARED_STEPS / 2];
        let micro = run.steps.micro(&spec.samples);
        let first = FirstSteps { batch, micro, seconds, parts: self.parts.median() };
        let stage = run.rank.coord[Axis::Pipeline];
        // Excludes the spans of the dry engine from the trace.
        let compared = tracing::subscriber::with_default(NoSubscriber::new(), || {
            drift::compare(run.manifest, self.planned_on, stage, reserved, &first)
        })?;
        tracing::info!("{}", compared.line);
        compared.table
    }
}

impl Watcher for Drift {
    fn name(&self) -> &'static str {
        "drift"
    }

    fn idle(&self, _: &RunView, _: &StepSpec) -> Idle {
        if self.parts.next_is_due() { Idle::Around } else { Idle::Never }
    }

    fn prepare(&mut self, run: &RunView, _: &StepSpec) -> anyhow::Result<()> {
        self.parts.begin(run.be, run.rank);
        Ok(())
    }

    fn notice(&mut self, run: &RunView, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Queued(step, input) => self.parts.add_queued(*step, *input),
            Event::Step(done) if self.seconds.len() < COMPARED_STEPS => {
                self.seconds.push(done.seconds);
            }
            Event::Saved(time) => {
                let each_step = self.parts.add_save(time.as_secs_f64());
                run.notice(&Event::Saving(each_step))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn due(&mut self, run: &RunView, spec: &StepSpec) -> anyhow::Result<()> {
        if !self.parts.is_due() {
            return Ok(());
        }
        match self.end_measurement(run, spec) {
            Some(table) => run.notice(&Event::Parts(&table)),
            None => Ok(()),
        }
    }
}
