//! Copies of checkpoints in another place (`checkpoint.also`), which a run waits for at its end.

use super::{Ended, Event, Now, Watcher};
use crate::also::Copies;

/// Copies, on rank 0 with `checkpoint.also`.
pub struct Mirror(pub Option<Copies>);

impl Watcher for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn notice(&mut self, _: &Now, event: &Event) -> anyhow::Result<()> {
        if let (Event::RolledBack(state), Some(copies)) = (event, &self.0) {
            copies.shared().go_back(state.progress.step);
        }
        Ok(())
    }

    /// Waits for the copy of the last checkpoint, with a time limit. A collective.
    fn complete(&mut self, now: &Now, ended: Ended) -> anyhow::Result<()> {
        now.rank.set_phase("copying the last checkpoint");
        let complete = matches!(ended, Ended::Complete | Ended::Reached);
        let mut is_done = |copies: &mut Copies| copies.is_done(complete, now.signals.stop());
        now.rank.wait_until(|| Ok(self.0.as_mut().is_none_or(&mut is_done)))?;
        if let Some(copies) = &self.0 {
            copies.summary();
        }
        Ok(())
    }
}
