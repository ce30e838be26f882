//! Work of a run at an interval of steps and at its end, on an idle device.

use super::{Idle, RunView, StepSpec, Watcher};

pub struct Periodic {
    /// Name in `ORDER`.
    pub name: &'static str,
    /// Interval in steps; None if it is off.
    pub interval: Option<u64>,
    /// Collective that does the work.
    pub work: fn(&RunView) -> anyhow::Result<()>,
}

impl Watcher for Periodic {
    fn name(&self) -> &'static str {
        self.name
    }

    fn idle(&self, _: &RunView, spec: &StepSpec) -> Idle {
        Idle::after(spec.closes(self.interval))
    }

    fn due(&mut self, run: &RunView, spec: &StepSpec) -> anyhow::Result<()> {
        if spec.closes(self.interval) { (self.work)(run) } else { Ok(()) }
    }
}
