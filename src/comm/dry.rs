//! Group that only counts: it has no other members. Records the bytes that this rank would send, and the
//! device ops before, after and in between.

use super::{Collective, Group, Message, Op, Pending};
use device::{self, Access, Order, Queue, Tally, Tensor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes that this rank sends, by group and op.
pub type Volume = BTreeMap<(&'static str, Op), Sent>;

/// Number of calls, and bytes sent in them. Bytes are counted as in a ring: 2(n−1)/n of the tensor for
/// an all-reduce, (n−1)/n of the whole for a gather or scatter. A receive has its bytes, but only
/// the sender counts the call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sent {
    pub calls: f64,
    pub bytes: f64,
}

/// Event of a rank, in program order.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Device ops.
    Compute(Tally),
    /// Communication in a group.
    Send { group: &'static str, op: Op, sent: Sent, wait: WaitPoint },
    /// Wait for an earlier `begin`, numbered since the last `take`: 1 is the first after it, 0 the
    /// last before it, −1 the one before that.
    Finish(i64),
}

/// Point at which a rank waits for communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPoint {
    /// At the next op.
    Now,
    /// At `Group::finish`, after `Group::begin`.
    Queued,
    /// At `Group::finish`, after `Group::begin_ahead`: needed soon.
    Soon,
    /// At `Group::finish`, after `Group::begin_message`.
    Message,
}

/// Total device ops of some events.
pub fn sum_ops(events: &[Event]) -> Tally {
    let mut all = Tally::new();
    for event in events {
        if let Event::Compute(ops) = event {
            ops.iter()
                .for_each(|(name, work)| *all.entry(name).or_default() += *work);
        }
    }
    all
}

/// Total communication of some events.
pub fn sum_volume(events: &[Event]) -> Volume {
    let mut all = Volume::new();
    for event in events {
        if let Event::Send { group, op, sent, .. } = event {
            let sum = all.entry((*group, *op)).or_default();
            sum.calls += sent.calls;
            sum.bytes += sent.bytes;
        }
    }
    all
}

/// Records the events of a rank, on a counting device and in its groups.
#[derive(Default)]
pub struct Journal {
    device: Rc<device::Dry>,
    events: RefCell<Vec<Event>>,
    /// Number of collectives and messages begun: in total, and before the last `take`.
    begun: Cell<u64>,
    taken: Cell<u64>,
}

impl Journal {
    pub fn for_device(device: &Rc<device::Dry>) -> Rc<Journal> {
        Rc::new(Journal { device: device.clone(), ..Journal::default() })
    }

    /// Returns the events since the last `take`.
    pub fn take(&self) -> Vec<Event> {
        self.record_ops();
        self.taken.set(self.begun.get());
        self.events.take()
    }

    fn record(&self, event: Event) {
        self.record_ops();
        self.events.borrow_mut().push(event);
    }

    fn record_ops(&self) {
        let ops = self.device.take();
        if !ops.is_empty() {
            self.events.borrow_mut().push(Event::Compute(ops));
        }
    }

    /// Number of the communication that begins now, from 1.
    fn next_number(&self) -> u64 {
        self.begun.set(self.begun.get() + 1);
        self.begun.get()
    }
}

impl Collective {
    fn name(&self) -> &'static str {
        match self {
            Collective::AllReduce(_) => "all-reduce",
            Collective::AllGather { .. } => "all-gather",
            Collective::ReduceScatter { .. } => "reduce-scatter",
        }
    }

    fn tensors(&self) -> Vec<(Tensor, Access)> {
        match *self {
            Collective::AllReduce(x) => vec![(x, Access::Update)],
            Collective::AllGather { part, whole } => {
                vec![(part, Access::Read), (whole, Access::Write)]
            }
            Collective::ReduceScatter { whole, part } => {
                vec![(whole, Access::Read), (part, Access::Write)]
            }
        }
    }
}

impl Message {
    fn name(&self) -> &'static str {
        match self {
            Message::Send { .. } => "send",
            Message::Recv { .. } => "receive",
        }
    }

    fn access(&self) -> (Tensor, Access) {
        match *self {
            Message::Send { x, .. } => (x, Access::Read),
            Message::Recv { x, .. } => (x, Access::Write),
        }
    }
}

/// Group that only counts.
pub struct Dry {
    name: &'static str,
    rank: usize,
    size: usize,
    journal: Rc<Journal>,
}

impl Dry {
    /// Member `rank` of `size`. Its communication is recorded under `name`.
    pub fn new(name: &'static str, rank: usize, size: usize, journal: &Rc<Journal>) -> Dry {
        Dry { name, rank, size, journal: journal.clone() }
    }

    fn record_call(&self, op: Op, bytes: f64, wait: WaitPoint) {
        let calls = if op == Op::Recv { 0.0 } else { 1.0 };
        let sent = Sent { calls, bytes };
        self.journal
            .record(Event::Send { group: self.name, op, sent, wait });
    }

    /// Calls `with` on the checker of the device's order, if it has one.
    fn with_order(&self, with: impl FnOnce(&mut Order)) {
        self.journal.device.order(with);
    }

    fn record_collective(&self, what: Collective, wait: WaitPoint) {
        let (op, whole) = what.op_and_whole_tensor(self.size);
        let passes = if op == Op::AllReduce { 2.0 } else { 1.0 };
        let share = (self.size - 1) as f64 / self.size as f64;
        self.record_call(op, passes * share * whole.bytes() as f64, wait);
    }

    fn begin_at(&self, what: Collective, wait: WaitPoint) -> Pending {
        self.record_collective(what, wait);
        let begun = self.next_pending();
        let queue =
            if wait == WaitPoint::Soon { Queue::SoonCollectives } else { Queue::Collectives };
        self.with_order(|order| order.begin(begun.job, queue, what.name(), &what.tensors()));
        begun
    }

    fn next_pending(&self) -> Pending {
        Pending { job: self.journal.next_number(), ..Pending::DONE }
    }

    fn record_message(&self, message: &Message, wait: WaitPoint) {
        self.record_call(message.op(), message.tensor().bytes() as f64, wait);
    }
}

impl Group for Dry {
    fn size(&self) -> usize {
        self.size
    }
    fn rank(&self) -> usize {
        self.rank
    }
    fn run(&self, what: Collective) {
        self.record_collective(what, WaitPoint::Now);
        self.with_order(|order| order.communicate(what.name(), &what.tensors()));
    }
    fn exchange(&self, messages: &[Message]) {
        for message in messages {
            self.record_message(message, WaitPoint::Now);
            self.with_order(|order| order.communicate(message.name(), &[message.access()]));
        }
    }
    fn begin_message(&self, message: Message) -> Pending {
        self.record_message(&message, WaitPoint::Message);
        let begun = self.next_pending();
        let kind = message.name();
        let with = message.peer();
        let queue = Queue::Messages { group: self.name, kind, with };
        self.with_order(|order| order.begin(begun.job, queue, kind, &[message.access()]));
        begun
    }
    fn begin(&self, what: Collective) -> Pending {
        self.begin_at(what, WaitPoint::Queued)
    }
    fn begin_ahead(&self, what: Collective) -> Pending {
        self.begin_at(what, WaitPoint::Soon)
    }
    fn finish(&self, pending: Pending) {
        self.with_order(|order| order.finish(pending.job));
        self.journal
            .record(Event::Finish(pending.job as i64 - self.journal.taken.get() as i64));
    }
}
