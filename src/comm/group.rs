//! A group of several ranks: collectives made of frames between each two of them.
//!
//! Each rank owns a slice of the tensor. To reduce, every rank sends every other its slice, and the
//! owner sums them in rank order: rounded once, the same bits every run, and no more bytes than a
//! ring. To gather, every owner sends its slice to all. Slices go in pieces, so that what is under
//! way at a rank is bounded: nobody is more than a piece ahead of the others.

use super::inbox::{Frame, Label, What};
use super::memory::{self, Buffer};
use super::world::{self, Lanes, Links, Member, next};
use super::{Collective, Event, Failed, Group, Message, Op, Pending};
use crate::base::div_exact;
use crate::device::Tensor;
use std::sync::Arc;

/// Bytes a rank sends before it waits for the others: divided by the group's size, a piece.
const UNDER_WAY: usize = 4 << 20;

pub struct Ranks {
    member: Arc<Member>,
    party: Party,
    lanes: Arc<Lanes>,
}

impl Ranks {
    pub fn new(member: Arc<Member>, name: &str, ranks: &[usize], me: usize) -> Ranks {
        let key = world::key(name, ranks);
        let lanes = member.lanes(key, ranks.len());
        member.links.recorder.join_group(name, ranks);
        let (links, name, ranks) = (member.links.clone(), name.into(), ranks.into());
        Ranks { member, party: Party { links, name, ranks, me, key }, lanes }
    }

    fn enter(&self, what: Collective, asked: Asked) -> Call {
        let (op, whole) = match what {
            Collective::AllReduce(x) => (Op::AllReduce, x),
            Collective::AllGather { part, whole } => {
                assert_eq!(part.numel(), div_exact(whole.numel(), self.size()));
                assert_eq!(part.dtype, whole.dtype);
                (Op::AllGather, whole)
            }
            Collective::ReduceScatter { whole, part } => {
                assert_eq!(part.numel(), div_exact(whole.numel(), self.size()));
                assert_eq!(part.dtype, whole.dtype);
                (Op::ReduceScatter, whole)
            }
        };
        self.party.record(op, whole, next(&self.lanes.collectives), asked)
    }

    fn now(&self, what: Collective) {
        let call = self.enter(what, Asked::Now);
        self.settle(self.party.collect(call, what));
    }

    fn settle(&self, outcome: Result<(), Failed>) {
        if let Err(failed) = outcome {
            self.member.links.fail(failed).raise();
        }
    }
}

impl Group for Ranks {
    fn size(&self) -> usize {
        self.party.ranks.len()
    }

    fn rank(&self) -> usize {
        self.party.me
    }

    fn all_reduce(&self, x: Tensor) {
        self.now(Collective::AllReduce(x));
    }

    fn all_gather(&self, part: Tensor, whole: Tensor) {
        self.now(Collective::AllGather { part, whole });
    }

    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        self.now(Collective::ReduceScatter { whole, part });
    }

    fn exchange(&self, messages: &[Message]) {
        let number = |message: &Message| match *message {
            Message::Send { to, x } => {
                self.party.record(Op::Send, x, next(&self.lanes.sent[to]), Asked::With(to))
            }
            Message::Recv { from, x } => {
                self.party.record(Op::Recv, x, next(&self.lanes.received[from]), Asked::With(from))
            }
        };
        let calls: Vec<Call> = messages.iter().map(number).collect();
        for (message, call) in messages.iter().zip(&calls) {
            if let Message::Send { to, x } = *message {
                self.settle(self.party.send(*call, to, x));
            }
        }
        for (message, call) in messages.iter().zip(&calls) {
            if let Message::Recv { from, x } = *message {
                self.settle(self.party.receive(*call, from, x));
            }
        }
    }

    fn begin(&self, what: Collective) -> Pending {
        let (call, party) = (self.enter(what, Asked::Queued), self.party.clone());
        let job = move || party.collect(call, what).map_err(|failed| party.links.fail(failed));
        let job = self.member.queue(|queue| queue.begin(Box::new(job)));
        Pending { job, event: call.event }
    }

    fn finish(&self, pending: Pending) {
        self.party.links.recorder.wanted(pending.event);
        let done = self.member.queue(|queue| queue.done());
        self.settle(done.wait(pending.job));
    }
}

/// How an operation was asked for.
#[derive(Clone, Copy)]
enum Asked {
    Now,
    Queued,
    /// A message, to or from this rank of the group.
    With(usize),
}

/// One operation this rank has entered.
#[derive(Clone, Copy)]
struct Call {
    label: Label,
    what: What,
    event: u64,
}

/// The members of a group, as a rank and its queue see them.
#[derive(Clone)]
struct Party {
    links: Arc<Links>,
    name: Arc<str>,
    /// Ranks of the world.
    ranks: Arc<[usize]>,
    /// Place of this rank among them.
    me: usize,
    key: u64,
}

impl Party {
    fn record(&self, op: Op, x: Tensor, sequence: u64, asked: Asked) -> Call {
        let peer = if let Asked::With(peer) = asked { Some(peer) } else { None };
        let queued = matches!(asked, Asked::Queued);
        let with = peer.map(|peer| self.ranks[peer]);
        let event = Event { queued, ..Event::new(&self.name, op, sequence, x, with) };
        let event = self.links.recorder.enqueue(event);
        let label = Label { group: self.key, message: peer.is_some(), sequence };
        Call { label, what: What { op, dtype: x.dtype, numel: x.numel() as u64 }, event }
    }

    fn collect(&self, call: Call, what: Collective) -> Result<(), Failed> {
        self.links.recorder.start(call.event);
        match what {
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
        self.links.recorder.finish(call.event);
        Ok(())
    }

    /// `mine`, which holds this rank's slice of its own `whole`, becomes the sum over ranks.
    fn reduce(&self, call: Call, whole: Tensor, mine: Tensor) -> Result<(), Failed> {
        for piece in 0..self.pieces(whole) {
            for to in self.others() {
                self.put(call, to, self.piece(self.slice(whole, to), piece))?;
            }
            let into = self.piece(mine, piece);
            let parts: Result<Vec<Option<Buffer>>, Failed> = (0..self.ranks.len())
                .map(|rank| if rank == self.me { Ok(None) } else { self.get(call, rank).map(Some) })
                .collect();
            let parts = parts?;
            memory::sum(&parts, into);
            parts.into_iter().flatten().for_each(|part| self.links.inbox.pool.give(part));
        }
        Ok(())
    }

    /// Every slice of `whole` becomes its owner's.
    fn gather(&self, call: Call, whole: Tensor) -> Result<(), Failed> {
        for piece in 0..self.pieces(whole) {
            let mine = self.piece(self.slice(whole, self.me), piece);
            for to in self.others() {
                self.put(call, to, mine)?;
            }
            for from in self.others() {
                self.fetch(call, from, self.piece(self.slice(whole, from), piece))?;
            }
        }
        Ok(())
    }

    fn send(&self, call: Call, to: usize, x: Tensor) -> Result<(), Failed> {
        self.links.recorder.start(call.event);
        for piece in 0..self.count(x.numel(), x) {
            self.put(call, to, self.piece(x, piece))?;
        }
        self.links.recorder.finish(call.event);
        Ok(())
    }

    fn receive(&self, call: Call, from: usize, x: Tensor) -> Result<(), Failed> {
        self.links.recorder.start(call.event);
        for piece in 0..self.count(x.numel(), x) {
            self.fetch(call, from, self.piece(x, piece))?;
        }
        self.links.recorder.finish(call.event);
        Ok(())
    }

    /// The other members, from the next one on, so that not all send to the first at once.
    fn others(&self) -> impl Iterator<Item = usize> {
        let (size, me) = (self.ranks.len(), self.me);
        (1..size).map(move |ahead| (me + ahead) % size)
    }

    /// The share of a tensor that a rank owns: as even as whole elements allow.
    fn slice(&self, whole: Tensor, rank: usize) -> Tensor {
        let (len, size) = (whole.numel(), self.ranks.len());
        let (first, end) = (len * rank / size, len * (rank + 1) / size);
        whole.span(first, end - first)
    }

    fn piece_len(&self, x: Tensor) -> usize {
        (UNDER_WAY / self.ranks.len() / x.dtype.size()).max(1)
    }

    /// Pieces of the longest slice; an empty tensor has one too, so that the ranks meet.
    fn pieces(&self, whole: Tensor) -> usize {
        self.count(whole.numel().div_ceil(self.ranks.len()), whole)
    }

    fn count(&self, numel: usize, of: Tensor) -> usize {
        numel.div_ceil(self.piece_len(of)).max(1)
    }

    fn piece(&self, slice: Tensor, number: usize) -> Tensor {
        let len = self.piece_len(slice);
        let first = (number * len).min(slice.numel());
        slice.span(first, len.min(slice.numel() - first))
    }

    fn put(&self, call: Call, to: usize, x: Tensor) -> Result<(), Failed> {
        let mut data = self.links.inbox.pool.take(x.bytes());
        memory::read(x, &mut data);
        let key = (self.name.clone(), call.what.op);
        *self.links.traffic().entry(key).or_default() += x.bytes() as u64;
        let frame = Frame { label: call.label, what: call.what, data };
        self.links.wire.send(self.ranks[to], frame)
    }

    fn fetch(&self, call: Call, from: usize, to: Tensor) -> Result<(), Failed> {
        let data = self.get(call, from)?;
        memory::write(&data, to);
        self.links.inbox.pool.give(data);
        Ok(())
    }

    fn get(&self, call: Call, from: usize) -> Result<Buffer, Failed> {
        let (here, there, group) = (self.links.rank, self.ranks[from], &self.name);
        let (what, number) = (call.what, call.label.sequence);
        let gone = || {
            Failed::new(format!(
                "rank {there} has ended; \
                 rank {here} waits for it in {what} (#{number} of group {group})"
            ))
        };
        self.links.recorder.awaits(call.event, there);
        let frame = self.links.inbox.take(there, call.label, gone)?;
        let fits = match what.op {
            Op::Recv => What { op: Op::Send, ..what },
            _ => what,
        };
        if frame.what != fits {
            return Err(different(number, group, [(here, what), (there, frame.what)]));
        }
        Ok(frame.data)
    }
}

/// Two ranks entered different operations as the same of a group: in the same words on either.
fn different(number: u64, group: &str, mut pair: [(usize, What); 2]) -> Failed {
    pair.sort_by_key(|(rank, _)| *rank);
    let [(low, its), (high, other)] = pair;
    Failed::new(format!(
        "#{number} of group {group} is {its} on rank {low} but {other} on rank {high}: \
         the ranks are out of step"
    ))
}
