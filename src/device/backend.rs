//! Trait of a device: its memory, copies, graphs and ops.

use super::op_log::log_op;
use super::{Fp8Scaling, MemoryKind, Op, OpTimes, Section, Tensor};
use base::{Bytes, Moment};
use std::sync::Arc;

/// Error of a reservation larger than the free memory of the device or its host.
#[derive(Clone, Debug)]
pub struct OutOfMemory {
    pub memory: MemoryKind,
    pub asked: Bytes,
    pub available: Option<Bytes>,
}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = if self.memory == MemoryKind::Host { "host memory" } else { "memory" };
        write!(f, "out of {memory}: {} asked for", self.asked)?;
        match self.available {
            Some(available) => write!(f, ", {available} available"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OutOfMemory {}

/// `Backend::logits_chunk` of a CPU.
pub const LOGITS_CHUNK: Bytes = Bytes(64 << 20);

/// Repeated pass with the same ops on the same tensors, which a device may capture. Only the
/// contents of the tensors differ between runs.
pub trait Graph {
    /// Runs `enqueue`, or replays a captured graph of it. `enqueue` enqueues ops and collectives
    /// without waiting for the device, and may be called twice. Returns false if the graph was
    /// replayed and `enqueue` was not called.
    fn run(&mut self, enqueue: &mut dyn FnMut()) -> bool;
}

/// Graph of devices that capture nothing.
struct Eager;

impl Graph for Eager {
    fn run(&mut self, enqueue: &mut dyn FnMut()) -> bool {
        enqueue();
        true
    }
}

/// Timestamps on the clock of an asynchronous device, for traces. Only `read` waits.
pub trait Timeline: Send + Sync {
    /// Marks the completion of everything enqueued so far, and returns the index of the mark. None
    /// during a capture.
    fn mark(&self) -> Option<usize>;
    /// Nanoseconds from the start of the timeline to each mark, by index. Waits for the device.
    fn read(&self) -> Vec<i64>;
}

/// Error of `sync` after the device has failed. It runs no further ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead {
    /// For example "GPU 0 (PCI 0000:3B:00.0, GPU-…)".
    pub device: String,
    /// First call that failed, and its error.
    pub why: String,
}

impl std::fmt::Display for Dead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.device, self.why)
    }
}

impl std::error::Error for Dead {}

/// Copy between the device and its host that is in flight.
#[must_use]
#[derive(Debug)]
pub struct Transfer(pub(super) usize);

/// Device. Ops (`run`) are asynchronous and in order. A wrong shape or dtype is a bug and panics; a
/// dead device is reported by `sync`. An output may be the same tensor as an input only if the op
/// says "in place". Activations, weights and their gradients in flight are f32, bf16 or f16 (all
/// equal in one op); arithmetic inside an op is f32 or better. Equal inputs give equal bits, for any
/// number of threads.
///
/// Tensors are in device memory. `upload`, `download`, `op::Zero` and `op::Digests` also take host
/// tensors; the ops of `host` take only those.
pub trait Backend {
    /// Address of a new zeroed region, aligned to 256 bytes, with the lifetime of the backend.
    fn reserve(&self, bytes: usize) -> Result<usize, OutOfMemory>;
    /// Like `reserve`, for host memory, which is page-locked if the device copies to and from it.
    fn reserve_host(&self, bytes: usize) -> Result<usize, OutOfMemory>;
    /// The host's processor as a device for host memory. A CPU is its own host.
    fn host(&self) -> &dyn Backend;
    /// Starts to copy a tensor to one of equal size in the other memory. A copy to the host waits
    /// for everything enqueued so far and copies its result; a copy to the device also waits for
    /// all of that. Until the copy is done, `from` must not be written and `to` must not be used.
    fn transfer(&self, from: Tensor, to: Tensor) -> Transfer;
    /// Orders everything enqueued from now on after a copy. The host does not wait.
    fn join_transfer(&self, transfer: Transfer);
    /// Blocks the host until a copy is done.
    fn finish_transfer(&self, transfer: Transfer);
    /// Bytes that all processes of this machine may still touch. None if memory is allocated when
    /// reserved, or if the system does not report it.
    fn shared_memory(&self) -> Option<Bytes> {
        None
    }
    /// Bytes that the device's ops reserve for themselves when it is opened.
    fn workspace(&self) -> Bytes {
        Bytes(0)
    }
    /// Bytes of device memory that this backend holds: all of `reserve`, and what its ops reserved
    /// when it was opened. 0 on a device that only counts.
    fn reserved(&self) -> Bytes {
        Bytes(0)
    }
    /// Bytes of logits that the head computes at once, enough for full speed of its products.
    fn logits_chunk(&self) -> Bytes {
        LOGITS_CHUNK
    }
    /// Maximum samples of `seq` tokens in a micro-batch, for attention with so many query heads.
    fn most_samples(&self, heads: usize, seq: usize) -> usize {
        let _ = (heads, seq);
        usize::MAX
    }
    /// Whether tensors have contents: not on a device that only counts.
    fn has_contents(&self) -> bool {
        true
    }
    /// Sets the section of the step that the following ops belong to.
    fn enter(&self, section: Section) {
        let _ = section;
    }
    /// Times each of the following ops until `take_times`. Returns false if the device cannot.
    fn time_ops(&self) -> bool {
        false
    }
    /// Stops timing, and returns the seconds of the ops since `time_ops`.
    fn take_times(&self) -> OpTimes {
        OpTimes::default()
    }
    /// Waits until everything enqueued so far is done.
    fn sync(&self) -> anyhow::Result<()>;
    /// Copies `to.bytes()` host bytes to the device.
    fn upload(&self, from: &[u8], to: Tensor);
    /// Like `upload`. The copy overlaps with the ops enqueued before, if the device supports it.
    fn upload_async(&self, from: &[u8], to: Tensor) {
        self.upload(from, to);
    }
    /// Creates the graph of one repeated pass that contains collectives of `groups` groups with
    /// several ranks. It must be dropped before its groups.
    fn graph(&self, groups: usize) -> Box<dyn Graph> {
        let _ = groups;
        Box::new(Eager)
    }
    /// Starts a timeline once everything enqueued so far is done. None if ops are synchronous.
    fn timeline(&self) -> Option<Arc<dyn Timeline>> {
        None
    }
    /// Copies device memory to the host, after everything enqueued so far.
    fn download(&self, from: Tensor, to: &mut [u8]);
    /// Starts to copy a tensor to the host, after everything enqueued so far, and returns at once.
    /// At most 1 MiB; at most two may be in flight.
    fn download_async(&self, from: Tensor);
    /// Waits for the oldest download in flight and takes its bytes. Returns their arrival time,
    /// as estimated by the host: no later than now.
    fn finish_download(&self, to: &mut [u8]) -> anyhow::Result<Moment>;
    /// Whether an op is done when `run` returns.
    fn is_synchronous(&self) -> bool {
        false
    }
    /// Granularity of scales in fp8 products.
    fn fp8_scaling(&self) -> Fp8Scaling {
        Fp8Scaling::RowWise
    }
    /// Enqueues an op that is checked. Callers use `run`.
    fn enqueue(&self, op: &Op);
}

impl dyn Backend + '_ {
    /// Checks and enqueues an op.
    pub fn run<'a>(&self, op: impl Into<Op<'a>>) {
        let op = op.into();
        op.check();
        log_op(&op, self.is_synchronous(), || self.enqueue(&op));
    }
}
