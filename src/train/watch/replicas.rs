//! Comparison of the weights that must be equal on several ranks (`train.audit_interval`).

use super::{Idle, Now, StepAt, Watcher};
use anyhow::Context;

/// Interval in steps; None if it is off.
pub struct Replicas(pub Option<u64>);

impl Watcher for Replicas {
    fn name(&self) -> &'static str {
        "replicas"
    }

    fn idle(&self, _: &Now, at: &StepAt) -> Idle {
        Idle::after(at.closes(self.0))
    }

    fn due(&mut self, now: &Now, at: &StepAt) -> anyhow::Result<()> {
        if at.closes(self.0) { compare(now) } else { Ok(()) }
    }
}

/// Fails if weights that must be equal on several ranks differ. A collective, on an idle device.
pub fn compare(now: &Now) -> anyhow::Result<()> {
    let _span = tracing::trace_span!("replica check").entered();
    let (rank, step) = (now.rank, now.progress.step);
    rank.set_phase("comparing weights");
    let Err(drifted) = now.engine.check_replicas() else { return Ok(()) };
    let found = if drifted.found.is_empty() { Ok(()) } else { Err(drifted) };
    rank.agree(found.with_context(|| {
        format!(
            "audit after step {step}: a rank has computed or stored something wrong; look at \
             its hardware, and continue from a checkpoint before the last audit that passed"
        )
    }))
}
