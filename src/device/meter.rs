//! Seconds of ops by name, for a few steps of a run: a device that runs its ops synchronously starts
//! a timer in each of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Instant;

/// Section of a step that ops belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Section {
    /// Forward and backward passes of the blocks and the embedding.
    #[default]
    Passes,
    /// The head's logits and their loss, in a pass.
    Head,
    /// Once a step, after the passes: sums of gradients and the optimizer.
    Once,
}

/// Name of the head's products, which have another shape than the blocks'.
pub const HEAD_PRODUCT: &str = "head gemm";

impl Section {
    /// Name of an op in this section.
    pub fn op(self, name: &'static str) -> &'static str {
        if self == Section::Head && name == "gemm" { HEAD_PRODUCT } else { name }
    }
}

/// Seconds of ops, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpTimes {
    /// Ops of the passes, the head's included.
    pub passes: BTreeMap<&'static str, f64>,
    /// Ops of `Section::Once`.
    pub once: BTreeMap<&'static str, f64>,
    /// Waits of the device for other ranks, by group.
    pub waits: BTreeMap<String, f64>,
}

impl OpTimes {
    /// Adds the seconds of an op.
    pub fn add(&mut self, section: Section, name: &'static str, seconds: f64) {
        let tally = if section == Section::Once { &mut self.once } else { &mut self.passes };
        *tally.entry(section.op(name)).or_default() += seconds;
    }
}

/// Timer of a device's ops. It costs two readings of the clock per op while it is on.
#[derive(Default)]
pub struct Meter {
    is_on: Cell<bool>,
    section: Cell<Section>,
    times: RefCell<OpTimes>,
}

impl Meter {
    /// Sets the section of the following ops.
    pub fn enter(&self, section: Section) {
        self.section.set(section);
    }

    /// Discards all times and times the following ops.
    pub fn turn_on(&self) {
        self.times.take();
        self.is_on.set(true);
    }

    /// Stops, and returns the times since `turn_on`.
    pub fn take(&self) -> OpTimes {
        self.is_on.set(false);
        self.times.take()
    }

    /// Times an op until the timer is dropped.
    pub fn start(&self, name: &'static str) -> Option<Timer<'_>> {
        self.is_on
            .get()
            .then(|| Timer { meter: self, name, began: Instant::now() })
    }
}

/// Op that runs.
pub struct Timer<'a> {
    meter: &'a Meter,
    name: &'static str,
    began: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let seconds = self.began.elapsed().as_secs_f64();
        self.meter
            .times
            .borrow_mut()
            .add(self.meter.section.get(), self.name, seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_are_timed_by_section_while_the_meter_is_on() {
        let meter = Meter::default();
        assert!(meter.start("gemm").is_none(), "off");
        meter.turn_on();
        drop(meter.start("gemm"));
        meter.enter(Section::Head);
        drop((meter.start("gemm"), meter.start("sum")));
        meter.enter(Section::Once);
        drop(meter.start("gemm"));
        let times = meter.take();
        assert_eq!(times.passes.keys().collect::<Vec<_>>(), [&"gemm", &HEAD_PRODUCT, &"sum"]);
        assert_eq!(times.once.keys().collect::<Vec<_>>(), [&"gemm"]);
        assert!(meter.start("gemm").is_none() && meter.take() == OpTimes::default());
    }
}
