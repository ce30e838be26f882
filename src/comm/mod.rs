//! Groups of ranks, behind one trait: alone (`Solo`), threads of one process (`threads`), processes
//! over TCP (`tcp`). Also what watches them: the flight recorder and the verdict on a hang.
//!
//! Does not know what tensor, pipeline or data parallelism mean.
//!
//! **Failure.** A collective returns nothing: the code that computes would have nothing to do with
//! an error, as its buffers are then half written. When a rank dies, enters another collective than
//! its group, or hangs, every rank of the world is told the same `Failed` and its next wait (or the
//! one it is in) unwinds with it. Whoever started the rank wraps it in `catch`, prints the one line
//! and ends with `Failed::EXIT_CODE`. An ordinary panic of a rank fails the others in the same way.

pub mod dry;
mod group;
mod hostlist;
mod inbox;
mod launch;
mod memory;
pub mod nccl;
mod queue;
mod recorder;
mod report;
mod together;
pub mod staged;
pub mod tcp;
pub mod threads;
mod verdict;
mod dump;
mod watch;
mod world;

#[cfg(test)]
pub(crate) mod tests;

pub use dump::Dump;
pub use launch::{Launch, RENDEZVOUS};
pub use recorder::{Event, Recorder};
pub use report::{End, GroupCount, RankReport};
pub use together::Together;
pub use verdict::verdict;
pub use watch::Watch;
pub use world::{Traffic, World};

use crate::device::Tensor;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Ranks that compute together. Every member makes the same calls in the same order. Ops are in
/// order with the device's ops; sums are in rank order, the same bits whatever carries them.
pub trait Group {
    fn size(&self) -> usize;
    fn rank(&self) -> usize;
    /// Whether a device can learn its collectives by heart (`Backend::repeat`): they are asked of the
    /// device alone, and no host takes part in them.
    fn repeats(&self) -> bool {
        false
    }
    /// x = Σ over ranks of x. f32 is summed in f64, bf16 in f32; rounded once.
    fn all_reduce(&self, x: Tensor);
    /// whole = every rank's part, in rank order. In place where part lies at its place in whole.
    fn all_gather(&self, part: Tensor, whole: Tensor);
    /// part = this rank's share of Σ over ranks of whole, the bits that `all_reduce` would give.
    /// In place where part lies at its place in whole.
    fn reduce_scatter(&self, whole: Tensor, part: Tensor);
    /// To another rank of the group. Messages of one rank to another arrive in the order sent.
    fn send(&self, to: usize, x: Tensor) {
        self.exchange(&[Message::Send { to, x }]);
    }
    fn recv(&self, from: usize, x: Tensor) {
        self.exchange(&[Message::Recv { from, x }]);
    }
    /// All of these at once: messages that cross cannot wait for each other.
    fn exchange(&self, messages: &[Message]);
    /// A collective on the communication queue: it sees what was computed before `begin`, and what
    /// is asked after `finish` sees its result; compute between the two overlaps with it. A group
    /// without such a queue does it at once.
    fn begin(&self, what: Collective) -> Pending {
        match what {
            Collective::AllReduce(x) => self.all_reduce(x),
            Collective::AllGather { part, whole } => self.all_gather(part, whole),
            Collective::ReduceScatter { whole, part } => self.reduce_scatter(whole, part),
        }
        Pending { job: 0, event: 0 }
    }
    fn finish(&self, _: Pending) {}
}

/// What `begin` can be asked for.
#[derive(Clone, Copy, Debug)]
pub enum Collective {
    AllReduce(Tensor),
    AllGather { part: Tensor, whole: Tensor },
    ReduceScatter { whole: Tensor, part: Tensor },
}

/// One of the messages of an `exchange`.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    Send { to: usize, x: Tensor },
    Recv { from: usize, x: Tensor },
}

/// A collective that was begun.
#[derive(Debug)]
#[must_use = "only after `finish` may the result be used and the tensors changed"]
pub struct Pending {
    /// Its number on the queue, from 1; 0 is done already.
    job: u64,
    /// Its number in the recorder.
    event: u64,
}

/// What a rank does with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Op {
    AllReduce,
    AllGather,
    ReduceScatter,
    Send,
    Recv,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::AllReduce => "all_reduce",
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::Send => "send",
            Op::Recv => "recv",
        })
    }
}

/// The ranks of this world cannot go on together: one line that names the one at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub line: String,
    /// Whether this process is to print it: of many, one does.
    pub speak: bool,
}

impl Failed {
    /// A rank that ends because the ranks cannot go on together ends with this.
    pub const EXIT_CODE: u8 = 3;

    pub fn new(line: impl Into<String>) -> Failed {
        Failed { line: line.into(), speak: true }
    }

    /// Unwinds this rank, silently: `catch` is where it ends.
    pub(crate) fn raise(self) -> ! {
        std::panic::resume_unwind(Box::new(self))
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Failed {}

/// Runs a rank; a failure of its world becomes an error. Other panics go on.
pub fn catch<T>(rank: impl FnOnce() -> T) -> Result<T, Failed> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(rank)).map_err(|panic| {
        match panic.downcast::<Failed>() {
            Ok(failed) => *failed,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// A group of one: every collective is already done, so callers never ask "am I alone?".
pub struct Solo;

impl Group for Solo {
    fn size(&self) -> usize {
        1
    }
    fn rank(&self) -> usize {
        0
    }
    fn repeats(&self) -> bool {
        true
    }
    fn all_reduce(&self, _: Tensor) {}
    fn all_gather(&self, part: Tensor, whole: Tensor) {
        assert_eq!(part.addr(), whole.addr(), "a group of one gathers in place");
    }
    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        assert_eq!(part.addr(), whole.addr(), "a group of one scatters in place");
    }
    fn exchange(&self, messages: &[Message]) {
        assert!(messages.is_empty(), "a group of one has nobody to talk to");
    }
}
