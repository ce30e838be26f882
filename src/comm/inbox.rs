//! What has arrived at a rank and was not yet asked for. Waiting is sleeping, never spinning.

use super::memory::{Buffer, Pool};
use super::{Failed, Op};
use crate::base::DType;
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Which operation a frame belongs to: the same on every rank that takes part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Label {
    /// Hash of the group's name and ranks.
    pub group: u64,
    /// Message (counted per sender and receiver) or collective (counted per group).
    pub message: bool,
    /// From 1.
    pub sequence: u64,
}

/// What the sender of a frame believes the operation to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct What {
    pub op: Op,
    pub dtype: DType,
    pub numel: u64,
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} {}", self.op, self.numel, self.dtype)
    }
}

/// A piece of an operation's data.
pub struct Frame {
    pub label: Label,
    pub what: What,
    pub data: Buffer,
}

/// How frames get to other ranks. A frame sent is delivered, in order, or the world fails.
pub trait Wire: Send + Sync {
    /// These ranks are about to talk; each of them calls this.
    fn meet(&self, ranks: &[usize]) -> Result<(), Failed>;
    fn send(&self, to: usize, frame: Frame) -> Result<(), Failed>;
    /// Tells every rank. Gives what all are told: the first failure that anybody told of.
    fn fail(&self, failed: Failed) -> Failed;
    /// This rank has ended, well or not.
    fn leave(&self);
}

/// Frames that came, by sender and operation.
pub struct Inbox {
    /// Of the frames' data.
    pub pool: Pool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    frames: HashMap<(usize, Label), VecDeque<Frame>>,
    /// What somebody sleeps for.
    awaited: Vec<(usize, Label)>,
    /// Ranks that have ended; nothing more comes from them.
    gone: Vec<usize>,
    failed: Option<Failed>,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox { pool: Pool::default(), state: Mutex::default(), changed: Condvar::new() }
    }
}

impl Inbox {
    pub fn put(&self, from: usize, frame: Frame) {
        let mut state = self.lock();
        let key = (from, frame.label);
        state.frames.entry(key).or_default().push_back(frame);
        if state.awaited.contains(&key) {
            self.changed.notify_all();
        }
    }

    /// The next frame of an operation from a rank; `gone` is the error if that rank has ended.
    pub fn take(
        &self,
        from: usize,
        label: Label,
        gone: impl FnOnce() -> Failed,
    ) -> Result<Frame, Failed> {
        let (mut state, key) = (self.lock(), (from, label));
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
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            let at = state.awaited.iter().position(|awaited| *awaited == key);
            state.awaited.swap_remove(at.expect("put there above"));
        }
    }

    /// Nothing more comes from a rank.
    pub fn leave(&self, rank: usize) {
        self.lock().gone.push(rank);
        self.changed.notify_all();
    }

    /// Fails whoever waits, now or later. The first failure stays.
    pub fn fail(&self, failed: &Failed) {
        self.lock().failed.get_or_insert_with(|| failed.clone());
        self.changed.notify_all();
    }

    pub fn failed(&self) -> Option<Failed> {
        self.lock().failed.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
