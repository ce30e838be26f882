//! Collectives and messages between ranks, behind the trait `Group`. Six transports: a single rank
//! (`Solo`), threads of one process (`threads`), processes over TCP (`tcp`), NCCL (`nccl`), GPUs
//! through host memory (`host_staged`), and one that only counts bytes (`dry`). Also the flight
//! recorder and the hang diagnosis. Independent of tensor, pipeline and data parallelism.
//!
//! | file | contents |
//! |---|---|
//! | `launcher`, `hostlist` | the launcher's variables: rank, world, address of rank 0 |
//! | `world`, `endpoint` | one rank; its transport, counters and queues, which its groups share |
//! | `p2p_group`, `inbox`, `memory`, `queue` | groups over any transport of frames: threads and TCP |
//! | `threads`, `tcp` | these two transports |
//! | `nccl`, `host_staged`, `dry` | groups of GPUs; of GPUs through the host; groups that only count |
//! | `host_collectives` | small collectives of values on the host, for control |
//! | `recorder`, `report`, `dump` | the last operations of a rank; its state in heartbeats and on disk |
//! | `hang`, `watchdog` | diagnosis of the rank at fault; its time limits |
//! | `clock` | offsets between the clocks of ranks |
//!
//! **Failure.** A collective returns no error: its buffers are partly written, so the caller could
//! not recover. The process group fails if a rank dies, hangs, or enters another collective than
//! its group. Every rank then receives the same `Failed`, with which its current or next wait
//! unwinds. The code that started the rank wraps it in `catch`, prints the line and exits with
//! `Failed::EXIT_CODE`. A panic of one rank fails the others in the same way.

pub mod dry;
mod p2p_group;
mod hostlist;
mod clock;
mod endpoint;
mod inbox;
mod launcher;
mod memory;
pub mod nccl;
mod queue;
mod recorder;
mod report;
mod host_collectives;
pub mod host_staged;
pub mod tcp;
pub mod threads;
mod hang;
mod dump;
mod watchdog;
mod world;

#[cfg(test)]
mod tests;

pub use clock::{ClockOffset, clock_id, now_ns};
pub use dump::Dump;
pub use endpoint::Traffic;
pub use hang::diagnose;
pub use host_collectives::HostCollectives;
pub use launcher::{LauncherEnv, Place, RENDEZVOUS};
pub use recorder::{Event, Recorder, Waited};
pub use report::{BusyWindow, End, GroupCount, LogLine, RankBusy, RankReport, blamed_node};
pub use watchdog::Watchdog;
pub use world::{Streams, World};

use base::{div_exact, redact};
use device::Tensor;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Ranks that compute together. Every member makes the same calls in the same order. Operations are
/// ordered with the device's ops. Sums are taken in rank order and give the same bits on every
/// transport except NCCL.
pub trait Group {
    fn size(&self) -> usize;
    fn rank(&self) -> usize;
    /// Whether `Backend::graph` can capture its collectives, because they run on the device without
    /// the host.
    fn capturable(&self) -> bool {
        false
    }
    /// Runs a collective, in order with the ops.
    fn run(&self, collective: Collective);
    fn all_reduce(&self, x: Tensor) {
        self.run(Collective::AllReduce(x));
    }
    fn all_gather(&self, part: Tensor, whole: Tensor) {
        self.run(Collective::AllGather { part, whole });
    }
    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        self.run(Collective::ReduceScatter { whole, part });
    }
    /// Sends to another rank of the group. Messages between two ranks arrive in the order sent.
    fn send(&self, to: usize, x: Tensor) {
        self.exchange(&[Message::Send { to, x }]);
    }
    fn recv(&self, from: usize, x: Tensor) {
        self.exchange(&[Message::Recv { from, x }]);
    }
    /// Posts all messages at once, so that crossing messages cannot deadlock.
    fn exchange(&self, messages: &[Message]);
    /// Starts a collective on the communication queue, which runs those of all groups in the order
    /// in which they start. It sees results computed before `begin`, and ops enqueued after `finish`
    /// see its result. Computation in between overlaps with it. A group without such a queue runs
    /// the collective immediately.
    fn begin(&self, collective: Collective) -> Pending {
        self.begin_ahead(collective)
    }
    /// Like `begin`, for a result that the next layer needs: does not wait behind the long collectives of
    /// `begin`, because it uses another queue.
    fn begin_ahead(&self, collective: Collective) -> Pending {
        self.run(collective);
        Pending::DONE
    }
    /// Starts several collectives, in one launch if the group can. Each returned value must be
    /// finished.
    fn begin_all(&self, collectives: &[Collective]) -> Vec<Pending> {
        collectives
            .iter()
            .map(|collective| self.begin(*collective))
            .collect()
    }
    /// Starts a message on a queue. It does not wait for earlier messages in the other direction or
    /// between other ranks, nor for collectives. A group without such queues sends immediately,
    /// without waiting for the receiver, and receives in `finish`.
    fn begin_message(&self, message: Message) -> Pending {
        match message {
            Message::Send { .. } => {
                self.exchange(&[message]);
                Pending::DONE
            }
            Message::Recv { .. } => Pending { message: Some(message), ..Pending::DONE },
        }
    }
    /// Waits for a started operation, before its result is used.
    fn finish(&self, pending: Pending) {
        assert_eq!(pending.job, 0, "begun by another group");
        if let Some(receive) = pending.message {
            self.exchange(&[receive]);
        }
    }
}

/// Operations of a whole group.
#[derive(Clone, Copy, Debug)]
pub enum Collective {
    /// x = Σ over ranks of x. f32 is summed in f64, bf16 in f32; rounded once.
    AllReduce(Tensor),
    /// whole = the parts of all ranks, in rank order. In place if `part` is this rank's slice of
    /// `whole`.
    AllGather { part: Tensor, whole: Tensor },
    /// part = this rank's slice of Σ over ranks of whole, with the same bits as `AllReduce`. In
    /// place if `part` is this rank's slice of `whole`.
    ReduceScatter { whole: Tensor, part: Tensor },
}

impl Collective {
    fn is_sum(&self) -> bool {
        !matches!(self, Collective::AllGather { .. })
    }

    /// Kind of the collective and its whole tensor, in a group of `size` ranks, which must divide it evenly.
    fn op_and_whole_tensor(&self, size: usize) -> (Op, Tensor) {
        let (op, part, whole) = match *self {
            Collective::AllReduce(x) => return (Op::AllReduce, x),
            Collective::AllGather { part, whole } => (Op::AllGather, part, whole),
            Collective::ReduceScatter { whole, part } => (Op::ReduceScatter, part, whole),
        };
        assert_eq!(part.numel(), div_exact(whole.numel(), size), "a rank's part");
        assert_eq!(part.dtype, whole.dtype, "part and whole");
        (op, whole)
    }
}

/// Message of an `exchange`.
#[derive(Clone, Copy, Debug)]
pub enum Message {
    Send { to: usize, x: Tensor },
    Recv { from: usize, x: Tensor },
}

impl Message {
    pub fn tensor(&self) -> Tensor {
        match *self {
            Message::Send { x, .. } | Message::Recv { x, .. } => x,
        }
    }

    pub fn op(&self) -> Op {
        match self {
            Message::Send { .. } => Op::Send,
            Message::Recv { .. } => Op::Recv,
        }
    }

    /// Rank at the other end.
    pub fn peer(&self) -> usize {
        match *self {
            Message::Send { to, .. } => to,
            Message::Recv { from, .. } => from,
        }
    }

    /// Message with another tensor between the same ranks.
    pub fn with_tensor(&self, x: Tensor) -> Message {
        match *self {
            Message::Send { to, .. } => Message::Send { to, x },
            Message::Recv { from, .. } => Message::Recv { from, x },
        }
    }
}

/// Group of a pipeline's stages, which exchange messages.
pub const PIPELINE: &str = "pipeline";

/// Groups of the same ranks for asynchronous messages: to the next rank in the ring, and to the
/// previous one.
pub const FORWARD_MESSAGES: &str = "pipeline_forward";
pub const BACKWARD_MESSAGES: &str = "pipeline_backward";

/// Group of the ranks that hold the same weights, which sum their gradients.
pub const GRAD_SUM: &str = "grad_sum";

/// Groups of `GRAD_SUM` at two levels: the neighbours that divide one copy of the weights, and the ranks
/// that hold the same shard.
pub const SHARD: &str = "shard";
pub const SHARD_COPIES: &str = "copies";

/// Collective or message in flight.
#[derive(Debug)]
#[must_use = "only after `finish` may the result be used and the tensors changed"]
pub struct Pending {
    /// Number of its job on the queue, from 1; 0 if it is already complete.
    job: u64,
    /// Number of its event in the flight recorder.
    event: u64,
    /// Whether it is a sum on a GPU, whose end is to be counted.
    is_gpu_sum: bool,
    /// The message; None for a collective.
    message: Option<Message>,
}

impl Pending {
    const DONE: Pending = Pending { job: 0, event: 0, is_gpu_sum: false, message: None };
}

/// Kind of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Op {
    AllReduce,
    AllGather,
    ReduceScatter,
    Send,
    Recv,
}

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Op::AllReduce => "all_reduce",
            Op::AllGather => "all_gather",
            Op::ReduceScatter => "reduce_scatter",
            Op::Send => "send",
            Op::Recv => "recv",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Failure of the process group: one line that names the rank at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    pub line: String,
    /// Whether this process prints the line. Exactly one process does.
    pub print: bool,
}

impl Failed {
    /// Exit code of every rank of a failed process group.
    pub const EXIT_CODE: u8 = 3;

    pub fn new(line: impl Into<String>) -> Failed {
        Failed { line: redact(&line.into()).into_owned(), print: true }
    }

    /// Unwinds this rank without a panic message, up to `catch`.
    pub fn raise(self) -> ! {
        std::panic::resume_unwind(Box::new(self))
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for Failed {}

/// Runs a rank. Returns a failure of the process group as an error; other panics propagate.
pub fn catch<T>(rank: impl FnOnce() -> T) -> Result<T, Failed> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(rank)).map_err(|panic| {
        match panic.downcast::<Failed>() {
            Ok(failed) => *failed,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Group of one rank, whose collectives do nothing. Callers need no special case.
pub struct Solo;

impl Group for Solo {
    fn size(&self) -> usize {
        1
    }
    fn rank(&self) -> usize {
        0
    }
    fn capturable(&self) -> bool {
        true
    }
    fn run(&self, collective: Collective) {
        match collective {
            Collective::AllReduce(_) => {}
            Collective::AllGather { part, whole } | Collective::ReduceScatter { whole, part } => {
                assert_eq!(part.addr(), whole.addr(), "a group of one works in place");
            }
        }
    }
    fn exchange(&self, messages: &[Message]) {
        assert!(messages.is_empty(), "a group of one rank has no peers");
    }
}
