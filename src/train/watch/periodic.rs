//! Work of a run at an interval of steps and at its end, on an idle device.

use super::{Idle, RunView, StepSpec, Watcher};

/// Name in `ORDER`, the interval in steps (None if it is off), and the collective that does the work.
pub struct Periodic(pub &'static str, pub Option<u64>, pub fn(&RunView) -> anyhow::Result<()>);

impl Watcher for Periodic {
    fn name(&self) -> &'static str {
        self.0
    }

    fn idle(&self, _: &RunView, spec: &StepSpec) -> Idle {
        Idle::after(spec.closes(self.1))
    }

    fn due(&mut self, run: &RunView, spec: &StepSpec) -> anyhow::Result<()> {
        let Periodic(_, interval, work) = self;
        if spec.closes(*interval) { work(run) } else { Ok(()) }
    }
}
