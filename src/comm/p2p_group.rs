//! Collectives built from point-to-point frames between the ranks of a group.
//!
//! Each rank owns a slice of the tensor. Reduce: every rank sends each owner its slice, and the
//! owner sums them in rank order. Sums are rounded once and bit-identical in every run, with no
//! more traffic than a ring. Gather: every owner sends its slice to all ranks. Slices are sent in
//! chunks, which bounds the bytes buffered at a rank: no rank is more than one chunk ahead of the
//! others.

use super::endpoint::{self, Endpoint, OpCounters, RankResources};
use super::inbox::{Frame, OpId, OpSignature};
use super::memory::{self, Buffer};
use super::queue::QueueKind;
use super::{Collective, Event, Failed, Group, Message, Op, Pending};
use device::Tensor;
use std::cell::Cell;
use std::sync::Arc;
use tracing::span::EnteredSpan;

/// Bytes that a rank sends before it waits for the others. Divided by the size of the group, this
/// is the size of a chunk.
const MAX_IN_FLIGHT_BYTES: usize = 4 << 20;

/// Group over a transport of frames.
pub struct P2pGroup {
    resources: Arc<RankResources>,
    members: GroupMembers,
    counters: Arc<OpCounters>,
    /// Last job of this group on each queue; 0 if there is none.
    begun: [Cell<u64>; QueueKind::COUNT],
}

impl P2pGroup {
    pub fn new(resources: Arc<RankResources>, name: &str, ranks: &[usize], me: usize) -> P2pGroup {
        let key = endpoint::group_hash(name, ranks);
        let counters = resources.counters(key, ranks.len());
        resources.endpoint.recorder.join_group(name, ranks);
        let endpoint = resources.endpoint.clone();
        let name = name.into();
        let ranks = ranks.into();
        let members = GroupMembers { endpoint, name, ranks, me, key };
        P2pGroup { resources, members, counters, begun: Default::default() }
    }

    fn enter_collective(&self, collective: Collective, queued: bool) -> Call {
        let (op, whole) = collective.op_and_whole_tensor(self.size());
        self.members
            .record(op, whole, self.counters.number_collective(), None, queued)
    }

    fn enter_message(&self, message: &Message, queued: bool) -> Call {
        let number = self.counters.number_message(message);
        self.members
            .record(message.op(), message.tensor(), number, Some(message.peer()), queued)
    }

    /// Queues an entered operation.
    fn queue_call(
        &self,
        queue: QueueKind,
        call: Call,
        run: impl FnOnce(&GroupMembers) -> Result<(), Failed> + Send + 'static,
    ) -> Pending {
        let members = self.members.clone();
        let job = move || run(&members).map_err(|failed| members.endpoint.fail(failed));
        let job = self
            .resources
            .with_queue(queue, |queue| queue.begin(Box::new(job)));
        self.begun[queue as usize].set(job);
        Pending { job, event: call.event, ..Pending::DONE }
    }

    fn raise_on_error(&self, outcome: Result<(), Failed>) {
        if let Err(failed) = outcome {
            self.resources.endpoint.fail(failed).raise();
        }
    }
}

impl Group for P2pGroup {
    fn size(&self) -> usize {
        self.members.ranks.len()
    }

    fn rank(&self) -> usize {
        self.members.me
    }

    fn run(&self, collective: Collective) {
        let _waiting = self
            .members
            .endpoint
            .recorder
            .begin_wait(&self.members.name);
        let call = self.enter_collective(collective, false);
        self.raise_on_error(self.members.run_collective(call, collective));
    }

    fn exchange(&self, messages: &[Message]) {
        let _waiting = self
            .members
            .endpoint
            .recorder
            .begin_wait(&self.members.name);
        let calls: Vec<Call> = messages
            .iter()
            .map(|m| self.enter_message(m, false))
            .collect();
        for (message, call) in messages.iter().zip(&calls) {
            if let Message::Send { to, x } = *message {
                self.raise_on_error(self.members.send(*call, to, x));
            }
        }
        for (message, call) in messages.iter().zip(&calls) {
            if let Message::Recv { from, x } = *message {
                self.raise_on_error(self.members.receive(*call, from, x));
            }
        }
    }

    fn begin(&self, collective: Collective) -> Pending {
        let call = self.enter_collective(collective, true);
        self.queue_call(QueueKind::Collectives, call, move |members: &GroupMembers| {
            members.run_collective(call, collective)
        })
    }

    /// A received message arrives in the inbox by itself and is taken in `finish`.
    fn begin_message(&self, message: Message) -> Pending {
        let Message::Send { to, x } = message else {
            return Pending { message: Some(message), ..Pending::DONE };
        };
        let call = self.enter_message(&message, true);
        Pending {
            message: Some(message),
            ..self.queue_call(QueueKind::Messages, call, move |members: &GroupMembers| {
                members.send(call, to, x)
            })
        }
    }

    fn finish(&self, pending: Pending) {
        let queue = match pending.message {
            Some(Message::Recv { .. }) => return self.exchange(pending.message.as_slice()),
            Some(Message::Send { .. }) => QueueKind::Messages,
            None => QueueKind::Collectives,
        };
        if pending.job == 0 {
            return;
        }
        let _waiting = self
            .members
            .endpoint
            .recorder
            .begin_wait(&self.members.name);
        self.members.endpoint.recorder.mark_waited(pending.event);
        let done = self.resources.with_queue(queue, |queue| queue.done());
        self.raise_on_error(done.wait(pending.job));
    }
}

/// Waits for operations that were never finished, because their tensors may be freed once the group
/// is gone.
impl Drop for P2pGroup {
    fn drop(&mut self) {
        for queue in [QueueKind::Collectives, QueueKind::Messages] {
            let last = self.begun[queue as usize].get();
            if last > 0 {
                self.resources.fail_if_panicking();
                let done = self.resources.with_queue(queue, |queue| queue.done());
                // Callers that wait for a result report a failure of the group.
                done.wait(last).ok();
            }
        }
    }
}

/// Operation that this rank has entered.
#[derive(Clone, Copy)]
struct Call {
    id: OpId,
    signature: OpSignature,
    event: u64,
    /// Runs on a communication queue.
    queued: bool,
}

/// Members of a group, shared by a rank's thread and its communication queues.
#[derive(Clone)]
struct GroupMembers {
    endpoint: Arc<Endpoint>,
    name: Arc<str>,
    /// World ranks, in the order of the group.
    ranks: Arc<[usize]>,
    /// Index of this rank in `ranks`.
    me: usize,
    key: u64,
}

impl GroupMembers {
    /// Records the entry into an operation. `peer` is the source or destination of a message.
    fn record(&self, op: Op, x: Tensor, sequence: u64, peer: Option<usize>, queued: bool) -> Call {
        let with = peer.map(|peer| self.ranks[peer]);
        let event = Event { queued, ..Event::new(&self.name, op, sequence, x, with) };
        let event = self.endpoint.recorder.enqueue(event);
        let id = OpId { group: self.key, message: peer.is_some(), sequence };
        let signature = OpSignature { op, dtype: x.dtype, numel: x.numel() as u64 };
        Call { id, signature, event, queued }
    }

    /// Marks the start of an operation in the flight recorder, and opens a span until the value is
    /// dropped.
    fn start(&self, call: &Call) -> EnteredSpan {
        self.endpoint.recorder.start(call.event);
        let OpSignature { op, dtype, numel } = call.signature;
        let group = &*self.name;
        let queued = call.queued;
        let sequence = call.id.sequence;
        let op = op.name();
        let bytes = numel * dtype.size() as u64;
        tracing::trace_span!("collective", op, group, queued, sequence, bytes).entered()
    }

    fn run_collective(&self, call: Call, collective: Collective) -> Result<(), Failed> {
        let _span = self.start(&call);
        match collective {
            Collective::AllReduce(x) => {
                let mine = self.slice(x, self.me);
                self.reduce(call, x, mine)?;
                self.gather(call, x)?;
            }
            Collective::AllGather { part, whole } => {
                memory::copy(part, self.slice(whole, self.me));
                self.gather(call, whole)?;
            }
            Collective::ReduceScatter { whole, part } => {
                memory::copy(self.slice(whole, self.me), part);
                self.reduce(call, whole, part)?;
            }
        }
        self.endpoint.recorder.finish(call.event);
        Ok(())
    }

    /// Sums this rank's slice over all ranks into `mine`, which initially holds its own
    /// contribution.
    fn reduce(&self, call: Call, whole: Tensor, mine: Tensor) -> Result<(), Failed> {
        for chunk in 0..self.chunks_of_whole(whole) {
            for to in self.other_ranks() {
                self.send_chunk(call, to, self.chunk(self.slice(whole, to), chunk))?;
            }
            let into = self.chunk(mine, chunk);
            let mut parts = Vec::new();
            for rank in 0..self.ranks.len() {
                let is_own = rank == self.me;
                parts.push(if is_own { None } else { Some(self.receive_chunk(call, rank)?) });
            }
            memory::sum(&parts, into);
            for part in parts.into_iter().flatten() {
                self.endpoint.inbox.pool.give_back(part);
            }
        }
        Ok(())
    }

    /// Replaces every slice of `whole` by its owner's.
    fn gather(&self, call: Call, whole: Tensor) -> Result<(), Failed> {
        for chunk in 0..self.chunks_of_whole(whole) {
            let mine = self.chunk(self.slice(whole, self.me), chunk);
            for to in self.other_ranks() {
                self.send_chunk(call, to, mine)?;
            }
            for from in self.other_ranks() {
                self.receive_into(call, from, self.chunk(self.slice(whole, from), chunk))?;
            }
        }
        Ok(())
    }

    fn send(&self, call: Call, to: usize, x: Tensor) -> Result<(), Failed> {
        let _span = self.start(&call);
        for chunk in 0..self.chunk_count(x.numel(), x) {
            self.send_chunk(call, to, self.chunk(x, chunk))?;
        }
        self.endpoint.recorder.finish(call.event);
        Ok(())
    }

    fn receive(&self, call: Call, from: usize, x: Tensor) -> Result<(), Failed> {
        let _span = self.start(&call);
        for chunk in 0..self.chunk_count(x.numel(), x) {
            self.receive_into(call, from, self.chunk(x, chunk))?;
        }
        self.endpoint.recorder.finish(call.event);
        Ok(())
    }

    /// Other members, starting after this rank, so that not all send to the first at once.
    fn other_ranks(&self) -> impl Iterator<Item = usize> {
        let size = self.ranks.len();
        let me = self.me;
        (1..size).map(move |ahead| (me + ahead) % size)
    }

    /// Slice of a tensor that a rank owns. Sizes differ by at most one element.
    fn slice(&self, whole: Tensor, rank: usize) -> Tensor {
        let len = whole.numel();
        let size = self.ranks.len();
        let first = len * rank / size;
        let end = len * (rank + 1) / size;
        whole.span(first, end - first)
    }

    fn chunk_len(&self, x: Tensor) -> usize {
        (MAX_IN_FLIGHT_BYTES / self.ranks.len() / x.dtype.size()).max(1)
    }

    /// Chunks of the longest slice. An empty tensor has one chunk, so that the ranks synchronise.
    fn chunks_of_whole(&self, whole: Tensor) -> usize {
        self.chunk_count(whole.numel().div_ceil(self.ranks.len()), whole)
    }

    fn chunk_count(&self, numel: usize, x: Tensor) -> usize {
        numel.div_ceil(self.chunk_len(x)).max(1)
    }

    fn chunk(&self, slice: Tensor, number: usize) -> Tensor {
        let len = self.chunk_len(slice);
        let first = (number * len).min(slice.numel());
        slice.span(first, len.min(slice.numel() - first))
    }

    fn send_chunk(&self, call: Call, to: usize, x: Tensor) -> Result<(), Failed> {
        let mut data = self.endpoint.inbox.pool.take(x.bytes());
        memory::read(x, &mut data);
        let key = (self.name.clone(), call.signature.op);
        *self.endpoint.traffic().entry(key).or_default() += x.bytes() as u64;
        let frame = Frame { id: call.id, signature: call.signature, data };
        self.endpoint.transport.send(self.ranks[to], frame)
    }

    fn receive_into(&self, call: Call, from: usize, to: Tensor) -> Result<(), Failed> {
        let data = self.receive_chunk(call, from)?;
        memory::write(&data, to);
        self.endpoint.inbox.pool.give_back(data);
        Ok(())
    }

    fn receive_chunk(&self, call: Call, from: usize) -> Result<Buffer, Failed> {
        let rank = self.endpoint.rank;
        let source = self.ranks[from];
        let group = &self.name;
        let what = call.signature;
        let number = call.id.sequence;
        self.endpoint.recorder.set_waits_for(call.event, source);
        let frame = self.endpoint.inbox.take(source, call.id, || {
            Failed::new(format!(
                "rank {source} has ended; \
                 rank {rank} waits for it in {what} (#{number} of group {group})"
            ))
        })?;
        let fits = match what.op {
            Op::Recv => OpSignature { op: Op::Send, ..what },
            _ => what,
        };
        if frame.signature != fits {
            return Err(mismatch_failure(number, group, [(rank, what), (source, frame.signature)]));
        }
        Ok(frame.data)
    }
}

/// Failure of two ranks that entered different operations under one number; the line is the same on
/// both.
fn mismatch_failure(number: u64, group: &str, mut pair: [(usize, OpSignature); 2]) -> Failed {
    pair.sort_by_key(|(rank, _)| *rank);
    let [(low, its), (high, other)] = pair;
    Failed::new(format!(
        "#{number} of group {group} is {its} on rank {low} but {other} on rank {high}: \
         the ranks are out of step"
    ))
}
