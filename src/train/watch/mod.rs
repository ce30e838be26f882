//! Watchers of a run: features that observe its steps and may ask it to stop, save or leave. The
//! training loop calls each of them at the same few moments, in the order of one list.

mod drift;
mod evaluation;
mod periodic;
mod record;
mod replicas;
mod stop_at_loss;
mod stop_file;

use crate::report::SyncReceipt;
pub use crate::report::numbers::StepRecord;
pub use drift::Drift;
pub use evaluation::evaluate;
pub use periodic::Periodic;
pub use record::Record;
pub use replicas::compare;
pub use stop_at_loss::StopAtLoss;
pub use stop_file::StopFile;

use super::loader::DataShard;
use checkpoint::{DataId, Progress, State};
use data::Datasets;
use data::eval::{Accuracy, Task};
use device::{Backend, Monitor};
use engine::Engine;
use estimate::parts::PartTable;
use launch::rank::Rank;
use launch::signals::Signals;
use manifest::{Loaded, Manifest};
use plan::step_samples::StepSamples;
use std::cell::{Cell, RefCell};
use std::ops::{BitOr, Deref, Range};
use std::sync::Arc;
use std::time::Duration;

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Complete,
    /// It was complete before this start.
    NothingLeft,
    /// A signal or the file `stop` stopped it, after saving.
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
    pub steps: StepSamples,
    pub be: &'a dyn Backend,
    pub data: Arc<Datasets>,
    /// Identities of the training datasets.
    pub data_ids: Vec<DataId>,
    /// Tasks of evaluations, by name.
    pub tasks: Arc<Vec<(String, Task)>>,
    pub signals: &'a Signals,
    /// Monitor of the rank's GPU, if the vendor's library is available.
    pub monitor: Option<Box<dyn Monitor>>,
}

/// Requests of a rank between two steps. Ranks count them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests(u8);

impl Requests {
    pub const NONE: Requests = Requests(0);
    /// Stops the run after saving.
    pub const STOP: Requests = Requests(1);
    /// Saves a checkpoint.
    pub const SAVE: Requests = Requests(1 << 1);
    /// The folder of the oldest save was created, or cannot be.
    pub const BEGUN: Requests = Requests(1 << 2);
    /// This rank has written its part of the oldest save.
    pub const WRITTEN: Requests = Requests(1 << 3);
    /// The loss has reached train.stop_at_loss.
    pub const REACHED: Requests = Requests(1 << 4);
    /// Leaves the job before it ends.
    pub const LEAVE: Requests = Requests(1 << 5);
    /// This rank waits for its storage.
    pub const WAITING: Requests = Requests(1 << 6);
    /// This rank has written its part of the save into memory.
    pub const IN_MEMORY: Requests = Requests(1 << 7);
    const ALL: [Requests; 8] = [
        Requests::STOP,
        Requests::SAVE,
        Requests::BEGUN,
        Requests::WRITTEN,
        Requests::REACHED,
        Requests::LEAVE,
        Requests::WAITING,
        Requests::IN_MEMORY,
    ];

    /// These requests if `condition` holds.
    pub fn when(self, condition: bool) -> Requests {
        if condition { self } else { Requests::NONE }
    }

    fn has(self, request: Requests) -> bool {
        self.0 & request.0 != 0
    }

    /// Counts the requests of all ranks. A collective.
    pub fn count(self, rank: &Rank) -> RequestCounts {
        RequestCounts(rank.count_ranks(Requests::ALL.map(|request| self.has(request))))
    }
}

impl BitOr for Requests {
    type Output = Requests;

    fn bitor(self, other: Requests) -> Requests {
        Requests(self.0 | other.0)
    }
}

/// Number of ranks with each request.
pub struct RequestCounts([usize; 8]);

impl RequestCounts {
    pub fn count(&self, request: Requests) -> usize {
        self.0[request.0.trailing_zeros() as usize]
    }

    pub fn any(&self, request: Requests) -> bool {
        self.count(request) > 0
    }
}

/// State of a run between two of its operations, for watchers.
pub struct RunView<'r, 'a> {
    pub cx: &'r RunContext<'a>,
    pub engine: &'r Engine<'a>,
    /// Step and samples after the last step that was queued.
    pub progress: Progress,
    pub watchers: &'r Watchers<'a>,
}

impl<'a> Deref for RunView<'_, 'a> {
    type Target = RunContext<'a>;

    fn deref(&self) -> &RunContext<'a> {
        self.cx
    }
}

impl RunView<'_, '_> {
    /// Number of samples of the next step.
    pub fn next_batch(&self) -> u64 {
        self.batch_after(self.progress.consumed_samples)
    }

    /// Number of samples of the step that begins after `consumed` samples.
    pub fn batch_after(&self, consumed: u64) -> u64 {
        let samples = self.steps.after(consumed);
        samples.end - samples.start
    }

    /// Notifies the other watchers.
    pub fn notice(&self, event: &Event) -> anyhow::Result<()> {
        self.watchers.notice(self, event)
    }
}

/// Step that is queued next, or was queued last.
pub struct StepSpec {
    pub step: u64,
    pub samples: Range<u64>,
    /// Whether too few samples remain for another step of this size.
    pub last: bool,
}

impl StepSpec {
    /// Whether something is due after this step that is due after `every` steps; never at 0.
    pub fn ends(&self, every: u64) -> bool {
        every > 0 && self.step.is_multiple_of(every)
    }

    /// Whether this step ends an interval, or the run; never with None.
    pub fn closes(&self, every: Option<u64>) -> bool {
        every.is_some_and(|every| self.last || self.ends(every))
    }
}

/// Time at which a watcher needs an idle device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idle {
    #[default]
    Never,
    After,
    /// Before and after the step.
    Around,
}

impl Idle {
    pub fn after(due: bool) -> Idle {
        if due { Idle::After } else { Idle::Never }
    }
}

/// Event of a run, after which every watcher is notified but the one that causes it.
pub enum Event<'e> {
    /// A step was queued: its number, and the seconds spent waiting for its input.
    Queued(u64, f64),
    Step(&'e StepRecord),
    /// Loss of the validation set of this name.
    Validated(Progress, &'e str, f64),
    /// Accuracy on the task of this name.
    Scored(Progress, &'e str, Accuracy),
    /// An evaluation took this time.
    Evaluated(Duration),
    /// Parts of a step, planned and measured.
    Parts(&'e PartTable),
    /// A save begins. It is published when the record of its steps is on disk.
    SaveBegins(&'e Cell<Option<SyncReceipt>>),
    /// A save stopped the steps for this time.
    Saved(Duration),
    /// Seconds per step in which saves have stopped the steps.
    Saving(f64),
    /// The run is about to roll back.
    RollingBack,
    /// The run continues with this state of a checkpoint.
    RolledBack(&'e State),
}

/// Feature of a run. Every rank has the same watchers, so their calls may be collectives.
pub trait Watcher {
    /// Name in `ORDER`.
    fn name(&self) -> &'static str;

    /// Requests between two steps.
    fn requests(&mut self, _: &RunView) -> anyhow::Result<Requests> {
        Ok(Requests::NONE)
    }

    /// Acts on the requests of all ranks. With `SAVE` among them the device is idle.
    fn act_on(&mut self, _: &RunView, _counts: &RequestCounts) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called before a step begins.
    fn before_step(&mut self, _: &RunView, _step: u64) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether the device is to be idle around a step.
    fn idle(&self, _: &RunView, _: &StepSpec) -> Idle {
        Idle::Never
    }

    /// Called before a step is queued.
    fn prepare(&mut self, _: &RunView, _: &StepSpec) -> anyhow::Result<()> {
        Ok(())
    }

    fn notice(&mut self, _: &RunView, _: &Event) -> anyhow::Result<()> {
        Ok(())
    }

    /// Work after a step was queued, on a device that is idle if `idle` asked for it.
    fn due(&mut self, _: &RunView, _: &StepSpec) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called after a step, and after the work of all watchers that follows it.
    fn after_step(&mut self, _: &RunView, _step: u64) -> anyhow::Result<()> {
        Ok(())
    }

    /// Adds to the state that a checkpoint stores.
    fn store(&self, _: &mut State) {}

    /// Whether the run must roll back. Equal on all ranks.
    fn must_roll_back(&self) -> bool {
        false
    }

    /// Loads a checkpoint into the engine if the run must roll back. Returns the state to continue
    /// with, and the message for the user.
    fn roll_back(&mut self, _: &RunView) -> anyhow::Result<Option<(State, String)>> {
        Ok(None)
    }

    /// Called when a run ends without an error, on an idle device.
    fn complete(&mut self, _: &RunView, _: Ended) -> anyhow::Result<()> {
        Ok(())
    }

    /// Called first when a run ends, with or without an error.
    fn on_end(&mut self, _: &RunView, _: &anyhow::Result<Ended>) {}

    /// Called last. `how` is the final phase of the status.
    fn finish(&mut self, _: &RunView, _how: &str) {}
}

/// Order of the watchers. Spikes, stragglers and faults are reported before the line of a step is
/// written. Parts are measured before other work follows the step. A save follows the comparison of
/// replicas and the evaluation; the report closes after it, and the mirror after the report, whose
/// last lines it may add.
pub const ORDER: [&str; 13] = [
    "spikes",
    "drift",
    "stragglers",
    "GPU faults",
    "time limit",
    "stop file",
    "stop at loss",
    "replicas",
    "evaluation",
    "saver",
    "record",
    "mirror",
    "trace",
];

/// Watchers in the order of `ORDER`. A watcher that is being called receives no other call.
pub struct Watchers<'a>(Vec<RefCell<Box<dyn Watcher + 'a>>>);

impl<'a> Watchers<'a> {
    pub fn new(list: Vec<Box<dyn Watcher + 'a>>) -> Watchers<'a> {
        let names: Vec<_> = list.iter().map(|watcher| watcher.name()).collect();
        assert_eq!(names, ORDER, "the order of watchers");
        Watchers(list.into_iter().map(RefCell::new).collect())
    }

    /// The only watcher of a probe.
    pub fn only(watcher: Box<dyn Watcher + 'a>) -> Watchers<'a> {
        Watchers(vec![RefCell::new(watcher)])
    }

    /// Calls each until one fails.
    pub fn try_for_each(
        &self,
        mut call: impl FnMut(&mut (dyn Watcher + 'a)) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut free = self
            .0
            .iter()
            .filter_map(|watcher| watcher.try_borrow_mut().ok());
        free.try_for_each(|mut watcher| call(&mut **watcher))
    }

    /// Calls each.
    pub fn for_each(&self, mut call: impl FnMut(&mut (dyn Watcher + 'a))) {
        let call = self.try_for_each(|watcher| {
            call(watcher);
            Ok(())
        });
        call.expect("no call fails");
    }

    pub fn notice(&self, run: &RunView, event: &Event) -> anyhow::Result<()> {
        self.try_for_each(|watcher| watcher.notice(run, event))
    }

    pub fn idle(&self, run: &RunView, spec: &StepSpec) -> Idle {
        let mut most = Idle::Never;
        self.for_each(|watcher| most = most.max(watcher.idle(run, spec)));
        most
    }

    pub fn store(&self, state: &mut State) {
        self.for_each(|watcher| watcher.store(state));
    }

    /// Whether one must roll the run back.
    pub fn must_roll_back(&self) -> bool {
        let mut any = false;
        self.for_each(|watcher| any |= watcher.must_roll_back());
        any
    }
}

#[cfg(test)]
mod tests;
