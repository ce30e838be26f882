//! Comparison of the weights that must be equal on several ranks (`train.audit_interval`).

use super::RunView;
use anyhow::Context;

/// Fails if weights that must be equal on several ranks differ. A collective, on an idle device.
pub fn compare(run: &RunView) -> anyhow::Result<()> {
    let _span = tracing::trace_span!("replica check").entered();
    let rank = run.rank;
    let step = run.progress.step;
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
