//! Comparison of the weights that must be equal on several ranks (`train.audit_interval`).

use super::{Idle, RunView, StepSpec, Watcher};
use anyhow::Context;

/// Interval in steps; None if it is off.
pub struct Replicas(pub Option<u64>);

impl Watcher for Replicas {
    fn name(&self) -> &'static str {
        "replicas"
    }

    fn idle(&self, _: &RunView, spec: &StepSpec) -> Idle {
        Idle::after(spec.closes(self.0))
    }

    fn due(&mut self, run: &RunView, spec: &StepSpec) -> anyhow::Result<()> {
        if spec.closes(self.0) { compare(run) } else { Ok(()) }
    }
}

/// Fails if weights that must be equal on several ranks differ. A collective, on an idle device.
pub fn compare(run: &RunView) -> anyhow::Result<()> {
    let _span = tracing::trace_span!("replica check").entered();
    let (rank, step) = (run.rank, run.progress.step);
    rank.set_phase("comparing weights");
    let Err(drifted) = run.engine.check_replicas() else { return Ok(()) };
    let found = if drifted.found.is_empty() { Ok(()) } else { Err(drifted) };
    rank.agree(found.with_context(|| {
        format!(
            "audit after step {step}: a rank has computed or stored something wrong; look at \
             its hardware, and continue from a checkpoint before the last audit that passed"
        )
    }))
}
