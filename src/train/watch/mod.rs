//! Watchers of a run: features that observe its steps and may ask it to stop, save or leave. The
//! training loop calls each of them at the same few moments, in the order of one list.

mod drift;
mod mirror;
mod record;

pub use crate::report::numbers::StepRecord;
pub use drift::Drift;
pub use mirror::Mirror;
pub use record::Record;

use super::loader::DataShard;
use checkpoint::Progress;
use data::Datasets;
use data::eval::{Accuracy, Task};
use device::Backend;
use device::cuda::nvml::Monitor;
use estimate::parts::PartTable;
use launch::guard::Signals;
use launch::rank::Rank;
use manifest::{Loaded, Manifest};
use plan::ramp::Ramp;
use std::ops::BitOr;
use std::sync::Arc;
use std::time::Duration;

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// It was complete before this start.
    NothingLeft,
    /// A signal stopped it, after saving.
    Stopped,
    /// It left before the end of its Slurm job, after saving.
    JobEnds,
    /// Its loss reached train.stop_at_loss, after saving.
    Reached,
}

/// Constants of a run.
pub struct RunContext<'a> {
    pub loaded: &'a Loaded,
    pub manifest: &'a Manifest,
    pub rank: &'a Rank<'a>,
    pub shard: DataShard,
    pub ramp: Ramp,
    pub be: &'a dyn Backend,
    pub data: Arc<Datasets>,
    /// Tasks of evaluations, by name.
    pub tasks: Arc<Vec<(String, Task)>>,
    pub signals: &'a Signals,
    /// Monitor of the rank's GPU, if NVML is available.
    pub monitor: Option<Monitor>,
}

/// Requests of a rank between two steps. Ranks count them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asks(u8);

impl Asks {
    pub const NONE: Asks = Asks(0);
    /// Stops the run after saving.
    pub const STOP: Asks = Asks(1);
    /// Saves a checkpoint.
    pub const SAVE: Asks = Asks(1 << 1);
    /// The folder of the oldest save was created, or cannot be.
    pub const BEGUN: Asks = Asks(1 << 2);
    /// This rank has written its part of the oldest save.
    pub const WRITTEN: Asks = Asks(1 << 3);
    /// The loss has reached train.stop_at_loss.
    pub const REACHED: Asks = Asks(1 << 4);
    /// Leaves the job before it ends.
    pub const LEAVE: Asks = Asks(1 << 5);
    /// This rank waits for its storage.
    pub const AWAY: Asks = Asks(1 << 6);
    const ALL: [Asks; 7] = [
        Asks::STOP,
        Asks::SAVE,
        Asks::BEGUN,
        Asks::WRITTEN,
        Asks::REACHED,
        Asks::LEAVE,
        Asks::AWAY,
    ];

    /// These requests if `condition` holds.
    pub fn when(self, condition: bool) -> Asks {
        if condition { self } else { Asks::NONE }
    }

    fn has(self, ask: Asks) -> bool {
        self.0 & ask.0 != 0
    }

    /// Counts the requests of all ranks. A collective.
    pub fn count(self, rank: &Rank) -> Counts {
        Counts(rank.count(Asks::ALL.map(|ask| self.has(ask))))
    }
}

impl BitOr for Asks {
    type Output = Asks;

    fn bitor(self, other: Asks) -> Asks {
        Asks(self.0 | other.0)
    }
}

/// Number of ranks with each request.
pub struct Counts([usize; 7]);

impl Counts {
    pub fn of(&self, ask: Asks) -> usize {
        self.0[ask.0.trailing_zeros() as usize]
    }

    pub fn any(&self, ask: Asks) -> bool {
        self.of(ask) > 0
    }
}

/// Event of a run, after which every watcher is notified.
pub enum Event<'e> {
    Step(&'e StepRecord),
    /// Loss of the validation set of this name.
    Validated(Progress, &'e str, f64),
    /// Accuracy on the task of this name.
    Scored(Progress, &'e str, Accuracy),
    /// An evaluation took this time.
    Evaluated(Duration),
    /// Parts of a step, planned and measured.
    Parts(&'e PartTable),
    /// Seconds per step in which saves have stopped the steps.
    Saved(f64),
    /// The run rolled back to this step.
    RolledBack(u64),
}

/// Feature of a run. Every rank has the same watchers, so their calls may be collectives.
pub trait Watcher {
    /// Name in `ORDER`.
    fn name(&self) -> &'static str;

    /// Requests between two steps. `save` is the duration of the slowest save in seconds.
    fn asks(&mut self, _: &RunContext, _save: f64) -> Asks {
        Asks::NONE
    }

    /// Called before a step is queued.
    fn before_step(&mut self, _: &RunContext, _step: u64) {}

    fn notice(&mut self, _: &RunContext, _: &Event) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether the device is to be idle after a step, for `after_step`.
    fn needs_idle(&self, _step: u64) -> bool {
        false
    }

    /// Called after a step, and after the evaluations and saves that follow it.
    fn after_step(&mut self, _: &RunContext, _step: u64) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether all output is in its files.
    fn is_written(&mut self) -> anyhow::Result<bool> {
        Ok(true)
    }

    /// Called when a run ends well, after its last save.
    fn complete(&mut self, _: &RunContext, _: Ended) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called first when a run ends, well or not.
    fn ending(&mut self, _: &RunContext) {}

    /// Called last. `how` is the final phase of the status.
    fn finish(&mut self, _: &RunContext, _how: &str) {}
}

/// Order of the watchers. Stragglers and faults are recorded before the line of a step is written;
/// the mirror completes after the report, whose last lines it may add.
pub const ORDER: [&str; 6] =
    ["stragglers", "GPU faults", "time limit", "record", "mirror", "trace"];

/// Watchers in the order of `ORDER`.
pub struct Watchers<'a>(Vec<Box<dyn Watcher + 'a>>);

impl<'a> Watchers<'a> {
    pub fn new(list: Vec<Box<dyn Watcher + 'a>>) -> Watchers<'a> {
        let names: Vec<_> = list.iter().map(|watcher| watcher.name()).collect();
        assert_eq!(names, ORDER, "the order of watchers");
        Watchers(list)
    }

    pub fn each(&mut self) -> impl Iterator<Item = &mut (dyn Watcher + 'a)> {
        self.0.iter_mut().map(|watcher| &mut **watcher)
    }

    pub fn asks(&mut self, cx: &RunContext, save: f64) -> Asks {
        self.each().fold(Asks::NONE, |asks, watcher| asks | watcher.asks(cx, save))
    }

    pub fn notice(&mut self, cx: &RunContext, event: &Event) -> anyhow::Result<()> {
        self.each().try_for_each(|watcher| watcher.notice(cx, event))
    }

    pub fn needs_idle(&mut self, step: u64) -> bool {
        self.each().any(|watcher| watcher.needs_idle(step))
    }

    /// Whether the output of all is in its files.
    pub fn is_written(&mut self) -> anyhow::Result<bool> {
        self.each().try_fold(true, |all, watcher| Ok(all && watcher.is_written()?))
    }
}

#[cfg(test)]
mod tests;
