//! Happens-before checker of a counting device.
//!
//! Work runs on queues: the ops on one, each direction of copies on one, collectives on two, each
//! kind of a group's messages on one, the host's work on the rank's thread. An item of a queue runs
//! after the items before it on its queue, and after everything that its queue has waited for. Two
//! accesses to one byte, one of them a write, must have such an order; if they have none, their result
//! depends on chance. The checker keeps a vector clock per queue (Fidge 1988), and for each range of
//! bytes the last write and the reads since.

use super::{Access, Home, Op, Tensor};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// Queue of items that run one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The rank's thread, which enqueues everything.
    Rank,
    /// Ops of the device.
    Compute,
    ToHost,
    ToDevice,
    /// Collectives of all groups.
    Collectives,
    /// Those that are needed soon.
    SoonCollectives,
    /// A group's messages of one kind with one rank.
    Messages {
        group: &'static str,
        kind: &'static str,
        with: usize,
    },
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Queue::Rank => write!(f, "the rank's thread"),
            Queue::Compute => write!(f, "the compute queue"),
            Queue::ToHost => write!(f, "the queue of copies to the host"),
            Queue::ToDevice => write!(f, "the queue of copies to the device"),
            Queue::Collectives => write!(f, "the queue of collectives"),
            Queue::SoonCollectives => write!(f, "the queue of collectives needed soon"),
            Queue::Messages { group, kind, with } => {
                write!(f, "the queue of group {group}'s {kind} with rank {with}")
            }
        }
    }
}

/// Number of items of each queue that are done; missing queues have 0.
#[derive(Clone, Debug, Default)]
struct Clock(Vec<u64>);

impl Clock {
    fn get(&self, queue: usize) -> u64 {
        self.0.get(queue).copied().unwrap_or(0)
    }

    fn join(&mut self, other: &Clock) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(own, other)| *own = (*own).max(*other));
    }

    fn tick(&mut self, queue: usize) {
        self.0.resize(self.0.len().max(queue + 1), 0);
        self.0[queue] += 1;
    }
}

/// Item of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    queue: usize,
    /// Its place on the queue, from 1.
    tick: u64,
    /// Its place among all items, from 1.
    number: u64,
    name: &'static str,
}

/// Accesses to a range of bytes.
#[derive(Clone, Debug)]
struct Segment {
    end: usize,
    write: Option<Item>,
    /// Last read since the write, of each queue.
    reads: Vec<Item>,
}

/// Accesses to one memory, by the first byte of each range.
#[derive(Clone, Debug, Default)]
struct Memory(BTreeMap<usize, Segment>);

impl Memory {
    /// Makes `at` a border between two ranges.
    fn split(&mut self, at: usize) {
        if let Some((_, segment)) = self.0.range_mut(..at).next_back()
            && segment.end > at
        {
            let after = segment.clone();
            segment.end = at;
            self.0.insert(at, after);
        }
    }

    /// Records an access. Returns the earlier accesses that it must be ordered with.
    fn access(&mut self, start: usize, end: usize, writes: bool, item: Item) -> Vec<(Item, bool)> {
        self.split(start);
        self.split(end);
        let mut others = Vec::new();
        let mut at = start;
        let mut gaps = Vec::new();
        for (first, segment) in self.0.range_mut(start..end) {
            if at < *first {
                gaps.push((at, *first));
            }
            at = segment.end;
            others.extend(segment.write.map(|write| (write, true)));
            if writes {
                others.extend(segment.reads.drain(..).map(|read| (read, false)));
                segment.write = Some(item);
            } else {
                segment.reads.retain(|read| read.queue != item.queue);
                segment.reads.push(item);
            }
        }
        if at < end {
            gaps.push((at, end));
        }
        for (start, end) in gaps {
            let (write, reads) = if writes { (Some(item), Vec::new()) } else { (None, vec![item]) };
            self.0.insert(start, Segment { end, write, reads });
        }
        others
    }
}

/// Most races that are kept.
const MOST: usize = 10;

/// State of the checker.
#[derive(Debug, Default)]
pub struct Order {
    queues: Vec<(Queue, Clock)>,
    device: Memory,
    host: Memory,
    items: u64,
    /// Clock at the end of each communication in flight.
    jobs: BTreeMap<u64, Clock>,
    /// Clock at the end of each transfer, by its number.
    transfers: Vec<Clock>,
    downloads: VecDeque<Clock>,
    /// Waits so far, and the number of one that is left out, from 0, for tests.
    waits: usize,
    skip: Option<usize>,
    races: Vec<String>,
}

impl Order {
    /// Checker that leaves out one wait, to show that it is found.
    pub(super) fn new(skip: Option<usize>) -> Order {
        Order { skip, ..Order::default() }
    }

    /// Number of waits so far.
    pub fn waits(&self) -> usize {
        self.waits
    }

    /// Pairs of accesses without an order, at most ten.
    pub fn races(&self) -> &[String] {
        &self.races
    }

    fn queue(&mut self, queue: Queue) -> usize {
        let found = self.queues.iter().position(|(own, _)| *own == queue);
        found.unwrap_or_else(|| {
            self.queues.push((queue, Clock::default()));
            self.queues.len() - 1
        })
    }

    fn clock(&mut self, queue: Queue) -> Clock {
        let at = self.queue(queue);
        self.queues[at].1.clone()
    }

    /// Makes a queue wait for what a clock includes, unless this wait is left out.
    fn wait(&mut self, queue: Queue, clock: &Clock) {
        self.waits += 1;
        if self.skip != Some(self.waits - 1) {
            self.join(queue, clock);
        }
    }

    fn join(&mut self, queue: Queue, clock: &Clock) {
        let at = self.queue(queue);
        self.queues[at].1.join(clock);
    }

    /// Runs an item on a queue, after what the queues `after` have done. Returns its clock.
    fn item(
        &mut self,
        queue: Queue,
        after: &[Queue],
        name: &'static str,
        all: &[(Tensor, Access)],
    ) -> Clock {
        for other in after {
            let clock = self.clock(*other);
            self.join(queue, &clock);
        }
        let at = self.queue(queue);
        self.queues[at].1.tick(at);
        self.items += 1;
        let clock = self.queues[at].1.clone();
        let item = Item { queue: at, tick: clock.get(at), number: self.items, name };
        for (x, access) in all {
            self.access(*x, *access != Access::Read, item, &clock);
        }
        clock
    }

    fn access(&mut self, x: Tensor, writes: bool, item: Item, clock: &Clock) {
        let start = x.addr();
        let end = x.addr() + x.bytes();
        if start == end {
            return;
        }
        let memory = if x.home() == Home::Host { &mut self.host } else { &mut self.device };
        for (other, wrote) in memory.access(start, end, writes, item) {
            if clock.get(other.queue) < other.tick && self.races.len() < MOST {
                let verb = |writes| if writes { "writes" } else { "reads" };
                let place = if x.home() == Home::Host { "host" } else { "device" };
                let say = |item: Item, writes: bool| {
                    let (Item { name, number, .. }, queue) = (item, self.queues[item.queue].0);
                    format!("{name} (number {number}, on {queue}) {}", verb(writes))
                };
                let race = format!(
                    "{}, and {}, bytes {start}..{end} of {place} memory: no wait orders them",
                    say(other, wrote),
                    say(item, writes)
                );
                self.races.push(race);
            }
        }
    }

    /// Runs an op of the device, or of its host.
    pub(super) fn op(&mut self, op: &Op, on_host: bool) {
        let (host, device): (Vec<_>, Vec<_>) = op
            .tensors()
            .0
            .into_iter()
            .partition(|(x, _)| on_host || x.home() == Home::Host);
        if on_host || !host.is_empty() {
            self.item(Queue::Rank, &[], op.name(), &host);
        }
        if !device.is_empty() {
            self.item(Queue::Compute, &[Queue::Rank], op.name(), &device);
        }
    }

    /// Starts a transfer. Returns its number.
    pub(super) fn transfer(&mut self, from: Tensor, to: Tensor, name: &'static str) -> usize {
        let queue = if to.home() == Home::Host { Queue::ToHost } else { Queue::ToDevice };
        let all = [(from, Access::Read), (to, Access::Write)];
        let clock = self.item(queue, &[Queue::Rank, Queue::Compute], name, &all);
        self.transfers.push(clock);
        self.transfers.len() - 1
    }

    pub(super) fn join_transfer(&mut self, number: usize) {
        let clock = self.transfers[number].clone();
        self.wait(Queue::Compute, &clock);
    }

    pub(super) fn finish_transfer(&mut self, number: usize) {
        let clock = self.transfers[number].clone();
        self.wait(Queue::Rank, &clock);
    }

    pub(super) fn sync(&mut self) {
        let clock = self.clock(Queue::Compute);
        self.wait(Queue::Rank, &clock);
    }

    pub(super) fn upload(&mut self, to: Tensor) {
        let queue = if to.home() == Home::Host { Queue::Rank } else { Queue::Compute };
        self.item(queue, &[Queue::Rank], "upload", &[(to, Access::Write)]);
    }

    pub(super) fn download(&mut self, from: Tensor) {
        let queue = if from.home() == Home::Host { Queue::Rank } else { Queue::Compute };
        let clock = self.item(queue, &[Queue::Rank], "download", &[(from, Access::Read)]);
        self.join(Queue::Rank, &clock);
    }

    pub(super) fn download_async(&mut self, from: Tensor) {
        let all = [(from, Access::Read)];
        let clock = self.item(Queue::Compute, &[Queue::Rank], "download", &all);
        self.downloads.push_back(clock);
    }

    pub(super) fn finish_download(&mut self) {
        let clock = self.downloads.pop_front().unwrap_or_default();
        self.wait(Queue::Rank, &clock);
    }

    /// Runs communication in order with the device's ops.
    pub fn communicate(&mut self, name: &'static str, all: &[(Tensor, Access)]) {
        self.item(Queue::Compute, &[Queue::Rank], name, all);
    }

    /// Begins communication on a queue, after everything enqueued so far.
    pub fn begin(&mut self, job: u64, queue: Queue, name: &'static str, all: &[(Tensor, Access)]) {
        let clock = self.item(queue, &[Queue::Rank, Queue::Compute], name, all);
        self.jobs.insert(job, clock);
    }

    /// Orders everything enqueued from now on after communication that began as `job`.
    pub fn finish(&mut self, job: u64) {
        let clock = self.jobs.remove(&job).unwrap_or_default();
        self.wait(Queue::Compute, &clock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Dry, op};
    use base::DType;

    /// A copy to the host of a row that later ops change: with and without waiting for it.
    fn copied_and_changed(skip: Option<usize>) -> Vec<String> {
        let dry = Dry::ordered(skip);
        let x = Tensor::at(dry.reserve(64).unwrap(), 1, 16, DType::F32);
        let kept = Tensor::at(dry.reserve_host(64).unwrap(), 1, 16, DType::F32);
        let be: &dyn Backend = &dry;
        be.run(op::Zero { x: x.set() });
        let copy = be.transfer(x, kept.in_memory(Home::Host));
        be.join_transfer(copy);
        be.run(op::Zero { x: x.span(8, 8).set() });
        dry.order(|order| order.races().to_vec())
    }

    #[test]
    fn a_write_without_a_wait_for_the_copy_of_its_bytes_is_found() {
        assert_eq!(copied_and_changed(None), Vec::<String>::new());
        let races = copied_and_changed(Some(0));
        let [race] = &races[..] else { panic!("{races:?}") };
        let says = "to the host (number 2, on the queue of copies to the host) reads, and zero \
                    (number 3, on the compute queue) writes, bytes 288..320 of device memory: no \
                    wait orders them";
        assert_eq!(race, says);
    }

    #[test]
    fn ranges_are_split_where_accesses_begin_and_end() {
        let item = |queue, number| Item { queue, tick: number, number, name: "op" };
        let mut memory = Memory::default();
        assert!(memory.access(0, 100, true, item(0, 1)).is_empty());
        assert_eq!(memory.access(40, 60, false, item(1, 2)), [(item(0, 1), true)]);
        assert_eq!(memory.access(90, 120, true, item(2, 3)), [(item(0, 1), true)]);
        let others = memory.access(50, 95, true, item(0, 4));
        let known =
            [(item(0, 1), true), (item(1, 2), false), (item(0, 1), true), (item(2, 3), true)];
        assert_eq!(others, known);
        assert_eq!(memory.access(120, 130, false, item(0, 5)), []);
    }
}
