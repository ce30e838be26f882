//! End of a run at a loss (`train.stop_at_loss`): the loss on the first validation set if there is one,
//! else the mean of the last steps. Rank 0's loss decides.

use super::{Event, Requests, RunView, Watcher};
use base::push_recent;
use checkpoint::State;
use std::collections::VecDeque;

/// Number of last steps whose mean loss counts.
const STEPS: usize = 16;

/// Losses of a run.
pub struct StopAtLoss {
    /// Loss at the last evaluation.
    validated: Option<f64>,
    /// Losses of the last steps.
    recent: VecDeque<f64>,
}

impl StopAtLoss {
    /// Starts with the losses of a checkpoint.
    pub fn new(state: &State) -> StopAtLoss {
        let recent = state.history.iter().map(|past| past.loss).collect();
        StopAtLoss { validated: None, recent }
    }

    /// Mean loss of the last steps; None before there are enough.
    fn mean(&self) -> Option<f64> {
        let sum: f64 = self.recent.iter().sum();
        (self.recent.len() == STEPS).then(|| sum / STEPS as f64)
    }
}

impl Watcher for StopAtLoss {
    fn name(&self) -> &'static str {
        "stop at loss"
    }

    fn requests(&mut self, run: &RunView) -> anyhow::Result<Requests> {
        let loss = if run.data.valid.is_empty() { self.mean() } else { self.validated };
        let reached = run
            .manifest
            .train
            .stop_at_loss
            .zip(loss)
            .is_some_and(|(limit, loss)| loss <= limit);
        Ok(Requests::REACHED.when(run.rank.is_first() && reached))
    }

    fn notice(&mut self, run: &RunView, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Step(done) => push_recent(&mut self.recent, done.outcome.loss, STEPS),
            Event::Validated(_, name, loss) if run.data.valid[0].0 == *name => {
                self.validated = Some(*loss);
            }
            Event::RolledBack(state) => self.recent = StopAtLoss::new(state).recent,
            _ => {}
        }
        Ok(())
    }
}
