//! Frames that have arrived at a rank but are not yet received. Receivers sleep and never spin.

use super::memory::{Buffer, Pool};
use super::{Failed, Op, RankBusy};
use base::DType;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpStream;

/// Identifies an operation; equal on all participating ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Hash of the group's name and ranks.
    pub group: u64,
    /// Whether it is a message (counted per sender and receiver) or a collective (counted per
    /// group).
    pub message: bool,
    /// Counted from 1.
    pub sequence: u64,
}

/// Operation as the sender of a frame entered it. Receivers compare it with their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSignature {
    pub op: Op,
    pub dtype: DType,
    pub numel: u64,
}

impl std::fmt::Display for OpSignature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} {}", self.op, self.numel, self.dtype)
    }
}

/// Chunk of an operation's data.
pub struct Frame {
    pub id: OpId,
    pub signature: OpSignature,
    pub data: Buffer,
}

/// Transports frames to other ranks, in order. An undelivered frame fails the process group.
pub trait Transport: Send + Sync {
    /// Opens connections between these ranks. Each of them calls it.
    fn connect(&self, ranks: &[usize]) -> Result<(), Failed>;
    fn send(&self, to: usize, frame: Frame) -> Result<(), Failed>;
    /// Fails every rank. Returns the failure that all ranks agree on: the first one reported.
    fn fail(&self, failed: Failed) -> Failed;
    /// Announces that this rank has ended, successfully or not.
    fn leave(&self);
    /// Busy times by rank, as far as known; over TCP on rank 0 only.
    fn busy(&self) -> Vec<RankBusy>;
    /// Opens a stream of its own to another rank, beside the frames. Ranks that are threads have none.
    fn open_stream(&self, _to: usize) -> io::Result<TcpStream> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Passes the streams that other ranks open to `accept`, each on its own thread. The first call
    /// counts.
    fn accept_streams(&self, _accept: StreamHandler) {}
}

/// Receiver of the streams that other ranks open.
pub type StreamHandler = Box<dyn Fn(TcpStream) + Send + Sync>;

/// Received frames, by sender and operation.
pub struct Inbox {
    /// Buffers for the frames' data.
    pub pool: Pool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    frames: HashMap<(usize, OpId), VecDeque<Frame>>,
    /// (sender, operation) pairs that threads wait for.
    awaited: Vec<(usize, OpId)>,
    /// Ranks that have ended and send no more frames.
    gone: Vec<usize>,
    failed: Option<Failed>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { pool: Pool::default(), state: Mutex::default(), changed: Condvar::new() }
    }
}

impl Inbox {
    /// Stores an arrived frame, and wakes the thread that waits for it.
    pub fn put(&self, from: usize, frame: Frame) {
        let mut state = self.state.lock();
        let key = (from, frame.id);
        state.frames.entry(key).or_default().push_back(frame);
        if state.awaited.contains(&key) {
            self.changed.notify_all();
        }
    }

    /// Waits for the next frame of an operation from a rank. `gone` is the error if that rank has
    /// ended.
    pub fn take(
        &self,
        from: usize,
        id: OpId,
        gone: impl FnOnce() -> Failed,
    ) -> Result<Frame, Failed> {
        let mut state = self.state.lock();
        let key = (from, id);
        loop {
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if let Some(frames) = state.frames.get_mut(&key) {
                let frame = frames.pop_front().expect("no empty queues are kept");
                if frames.is_empty() {
                    state.frames.remove(&key);
                }
                return Ok(frame);
            }
            if state.gone.contains(&from) {
                return Err(gone());
            }
            state.awaited.push(key);
            self.changed.wait(&mut state);
            let at = state.awaited.iter().position(|awaited| *awaited == key);
            state.awaited.swap_remove(at.expect("pushed above"));
        }
    }

    /// Marks a rank as ended; it sends no more frames.
    pub fn leave(&self, rank: usize) {
        self.state.lock().gone.push(rank);
        self.changed.notify_all();
    }

    /// Fails all current and later receives. Only the first failure is kept.
    pub fn fail(&self, failed: &Failed) {
        self.state
            .lock()
            .failed
            .get_or_insert_with(|| failed.clone());
        self.changed.notify_all();
    }

    /// Failure of the process group, if it has failed.
    pub fn failed(&self) -> Option<Failed> {
        self.state.lock().failed.clone()
    }
}
