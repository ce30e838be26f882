//! A rank's handle on its world: groups, the recorder, what was sent, and how it ends.

use super::group::Ranks;
use super::inbox::{Inbox, Wire};
use super::queue::Queue;
use super::{Failed, Group, Op, Recorder, Solo};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of tensors sent by one rank, by name of group and op. Over a group of n ranks they add up
/// to the textbook volume of a ring: n times 2(n−1)/n of the tensor for `all_reduce`, (n−1)/n of
/// the whole for the others; where n divides the tensor, each rank sends the same.
pub type Traffic = BTreeMap<(Arc<str>, Op), u64>;

/// One rank. Dropped, with its groups, when the rank ends: then nobody waits for it any more. If
/// that happens by a panic, the world fails. Otherwise, over TCP, the drop returns when all ranks
/// have ended. To be dropped before the memory of its tensors, into which its queue may write.
pub struct World {
    member: Arc<Member>,
}

impl World {
    pub(super) fn new(
        (rank, size): (usize, usize),
        inbox: Arc<Inbox>,
        recorder: Arc<Recorder>,
        wire: Box<dyn Wire>,
    ) -> World {
        let traffic = Mutex::default();
        let links = Arc::new(Links { rank, size, inbox, wire, recorder, traffic });
        World {
            member: Arc::new(Member { queue: Mutex::default(), lanes: Mutex::default(), links }),
        }
    }

    pub fn rank(&self) -> usize {
        self.member.links.rank
    }

    pub fn size(&self) -> usize {
        self.member.links.size
    }

    /// A group of these ranks of the world, in this order. Called by each of them, by no other.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Box<dyn Group> {
        let rank = self.rank();
        let me = ranks.iter().position(|r| *r == rank);
        let me = me.unwrap_or_else(|| panic!("rank {rank} is not in group {name} {ranks:?}"));
        assert!(ranks.iter().all(|r| *r < self.size()), "{ranks:?} of {} ranks", self.size());
        if ranks.len() == 1 {
            return Box::new(Solo);
        }
        let links = &self.member.links;
        if let Err(failed) = links.wire.meet(ranks) {
            links.fail(failed).raise();
        }
        Box::new(Ranks::new(self.member.clone(), name, ranks, me))
    }

    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.member.links.recorder
    }

    /// What this rank has sent so far.
    pub fn traffic(&self) -> Traffic {
        self.member.links.traffic().clone()
    }

    /// Fails every rank, this one at its next collective: "reading data: no such file". What all
    /// are told.
    pub fn fail(&self, why: &str) -> Failed {
        let links = &self.member.links;
        links.fail(Failed::new(format!("{} failed: {why}", links.name())))
    }

    /// What groups that others carry share with those of this world.
    pub(super) fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// This rank, as a verdict calls it: "rank 37 (node n12, TP1 PP3 DP0)".
    pub fn name(&self) -> String {
        self.member.links.name()
    }

    /// How the world failed, if it did.
    pub fn failed(&self) -> Option<Failed> {
        self.member.links.inbox.failed()
    }
}

/// What a rank and its communication queue share.
pub struct Links {
    pub rank: usize,
    pub size: usize,
    pub inbox: Arc<Inbox>,
    pub wire: Box<dyn Wire>,
    pub recorder: Arc<Recorder>,
    traffic: Mutex<Traffic>,
}

impl Links {
    pub fn traffic(&self) -> MutexGuard<'_, Traffic> {
        lock(&self.traffic)
    }

    /// This rank, as a verdict calls it.
    pub fn name(&self) -> String {
        self.recorder.name(self.rank)
    }

    /// Tells everybody, and gives what this rank is to unwind with.
    pub fn fail(&self, failed: Failed) -> Failed {
        let agreed = match self.inbox.failed() {
            Some(known) => known,
            None => self.wire.fail(failed),
        };
        self.inbox.fail(&agreed);
        agreed
    }
}

/// What a rank and its groups share.
pub struct Member {
    queue: Mutex<Option<Queue>>,
    lanes: Mutex<HashMap<u64, Arc<Lanes>>>,
    pub links: Arc<Links>,
}

/// How many operations a rank has entered, per group.
pub struct Lanes {
    pub collectives: AtomicU64,
    pub sent: Vec<AtomicU64>,
    pub received: Vec<AtomicU64>,
}

impl Member {
    /// The counts of a group, which outlive its handle: made again, it goes on counting.
    pub fn lanes(&self, group: u64, size: usize) -> Arc<Lanes> {
        let zeros = || (0..size).map(|_| AtomicU64::new(0)).collect();
        let new =
            || Arc::new(Lanes { collectives: AtomicU64::new(0), sent: zeros(), received: zeros() });
        lock(&self.lanes).entry(group).or_insert_with(new).clone()
    }

    /// The queue, started when first used.
    pub fn queue<T>(&self, use_it: impl FnOnce(&mut Queue) -> T) -> T {
        use_it(lock(&self.queue).get_or_insert_with(|| Queue::new(self.links.rank)))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let links = &self.links;
        if std::thread::panicking() {
            let doing = links.recorder.now_doing();
            links.fail(Failed::new(format!("rank {} panicked, while: {doing}", links.rank)));
        }
        // What was begun is sent before this rank says that nothing more comes.
        drop(lock(&self.queue).take());
        links.wire.leave();
    }
}

/// What a group is known by.
pub fn key(name: &str, ranks: &[usize]) -> u64 {
    xxh3_64(format!("{name} {ranks:?}").as_bytes())
}

/// The next number of a count, from 1.
pub fn next(count: &AtomicU64) -> u64 {
    count.fetch_add(1, Ordering::Relaxed) + 1
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
