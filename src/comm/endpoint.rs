//! A rank's endpoint of the transport, and the state shared by its groups: counters and
//! communication queues.

use super::inbox::{Inbox, Transport};
use super::queue::{Queue, QueueKind};
use super::{Failed, Message, Op, Recorder};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of tensors that one rank sent, by name of group and op. Over a group of n ranks they add
/// up to the volume of a ring: n times 2(n−1)/n of the tensor for `all_reduce`, (n−1)/n of the
/// whole for the others. If n divides the tensor, each rank sends the same.
pub type Traffic = BTreeMap<(Arc<str>, Op), u64>;

/// A rank's endpoint of the transport, shared with its communication queues.
pub struct Endpoint {
    pub rank: usize,
    pub size: usize,
    pub inbox: Arc<Inbox>,
    pub transport: Box<dyn Transport>,
    pub recorder: Arc<Recorder>,
    traffic: Mutex<Traffic>,
}

impl Endpoint {
    pub fn new(
        rank: usize,
        size: usize,
        inbox: Arc<Inbox>,
        recorder: Arc<Recorder>,
        transport: Box<dyn Transport>,
    ) -> Endpoint {
        Endpoint { rank, size, inbox, transport, recorder, traffic: Mutex::default() }
    }

    pub fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock()
    }

    /// Name of this rank in messages.
    pub fn name(&self) -> String {
        self.recorder.name(self.rank)
    }

    /// Fails every rank. Returns the agreed failure, with which this rank unwinds.
    pub fn fail(&self, failed: Failed) -> Failed {
        let agreed = match self.inbox.failed() {
            Some(known) => known,
            None => self.transport.fail(failed),
        };
        self.inbox.fail(&agreed);
        agreed
    }
}

/// Communication queues and operation counters, shared by a rank and its groups.
pub struct RankResources {
    queues: [Mutex<Option<Queue>>; QueueKind::COUNT],
    counters: Mutex<HashMap<u64, Arc<OpCounters>>>,
    pub endpoint: Arc<Endpoint>,
}

/// Number of operations of a group that this rank has entered.
pub struct OpCounters {
    collectives: AtomicU64,
    /// Messages to each rank of the group, and from each.
    sent: Vec<AtomicU64>,
    received: Vec<AtomicU64>,
}

impl OpCounters {
    /// Counts a collective. Returns its number, from 1.
    pub fn number_collective(&self) -> u64 {
        self.collectives.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts a message. Returns its number between its two ranks in its direction, from 1.
    pub fn number_message(&self, message: &Message) -> u64 {
        let counts = match message {
            Message::Send { .. } => &self.sent,
            Message::Recv { .. } => &self.received,
        };
        counts[message.peer()].fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl RankResources {
    pub fn new(endpoint: Endpoint) -> RankResources {
        let (queues, counters) = Default::default();
        RankResources { queues, counters, endpoint: Arc::new(endpoint) }
    }

    /// Counters of a group. They outlive its handle: a group created again continues them.
    pub fn counters(&self, group: u64, size: usize) -> Arc<OpCounters> {
        let zeros = || (0..size).map(|_| AtomicU64::new(0)).collect();
        self.counters
            .lock()
            .entry(group)
            .or_insert_with(|| {
                Arc::new(OpCounters {
                    collectives: AtomicU64::new(0),
                    sent: zeros(),
                    received: zeros(),
                })
            })
            .clone()
    }

    /// Fails the other ranks if this rank is panicking, so that none waits for it.
    pub fn fail_if_panicking(&self) {
        if std::thread::panicking() {
            let Endpoint { recorder, rank, .. } = &*self.endpoint;
            let phase = recorder.phase();
            self.endpoint
                .fail(Failed::new(format!("rank {rank} panicked, while: {phase}")));
        }
    }

    /// Calls `work` with a communication queue, whose thread starts on first use. The group fails
    /// if the thread cannot start.
    pub fn with_queue<T>(&self, kind: QueueKind, work: impl FnOnce(&mut Queue) -> T) -> T {
        let rank = self.endpoint.rank;
        work(self.queues[kind as usize].lock().get_or_insert_with(|| {
            Queue::new(kind, rank).unwrap_or_else(|error| {
                let failed = Failed::new(format!("rank {rank} failed: {error:#}"));
                self.endpoint.fail(failed).raise()
            })
        }))
    }
}

impl Drop for RankResources {
    fn drop(&mut self) {
        self.fail_if_panicking();
        // Finishes pending operations before other ranks see that this rank has ended.
        self.queues
            .iter()
            .for_each(|queue| drop(queue.lock().take()));
        self.endpoint.transport.leave();
    }
}

/// Hash of a group's name and ranks.
pub fn group_hash(name: &str, ranks: &[usize]) -> u64 {
    xxh3_64(format!("{name} {ranks:?}").as_bytes())
}
