//! Comparison of the first steps of a run with its plan, part by part.

use super::RunContext;
use crate::step_parts::StepParts;
use engine::Engine;
use estimate::gptrain::drift::{self, FirstSteps};
use estimate::parts::PartTable;
use plan::grid::Axis;
use tracing::subscriber::NoSubscriber;

/// Number of first steps whose median time is compared with the estimate.
const COMPARED_STEPS: usize = 5;

/// Measurements of the first steps.
pub struct Drift {
    /// Seconds of the first steps.
    seconds: Vec<f64>,
    pub parts: StepParts,
}

impl Drift {
    pub fn new(parts: StepParts) -> Drift {
        Drift { seconds: Vec::new(), parts }
    }

    /// Records a finished step.
    pub fn step(&mut self, seconds: f64) {
        if self.seconds.len() < COMPARED_STEPS {
            self.seconds.push(seconds);
        }
    }

    /// Ends the measurement of a step, whose outcome was the last. Compares on rank 0 once all first
    /// steps are measured.
    pub fn measured(
        &mut self,
        cx: &RunContext,
        engine: &Engine,
        step: u64,
        batch: usize,
    ) -> Option<PartTable> {
        let last = self.seconds.last().copied().unwrap_or_default();
        self.parts.end(cx.be, cx.rank, step, last);
        if self.seconds.len() < COMPARED_STEPS || !cx.rank.is_first() {
            return None;
        }
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        let (reserved, seconds) = (engine.memory_plan().total(), seconds[COMPARED_STEPS / 2]);
        let first = FirstSteps { batch, seconds, parts: self.parts.median() };
        let stage = cx.rank.at[Axis::Pipeline];
        let compare = || drift::compare(cx.manifest, stage, reserved, &first);
        // Excludes the spans of the dry engine from the trace.
        let compared = tracing::subscriber::with_default(NoSubscriber::new(), compare)?;
        tracing::info!("{}", compared.line);
        compared.table
    }
}
