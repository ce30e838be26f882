//! A group without other members: it counts the bytes that this rank would send.

use super::{Group, Message, Op};
use device::Tensor;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What this rank sends, by group and op.
pub type Volume = BTreeMap<(&'static str, Op), Sent>;

/// Calls, and the bytes that this rank sends in them: as a ring has it, 2(n−1)/n of the tensor for an
/// all-reduce and (n−1)/n of the whole for a gather or scatter. What is received has its bytes, and
/// no call beside the sender's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sent {
    pub calls: f64,
    pub bytes: f64,
}

/// A group that only counts.
pub struct Dry {
    name: &'static str,
    rank: usize,
    size: usize,
    volume: Rc<RefCell<Volume>>,
}

impl Dry {
    /// Member `rank` of `size`; bytes sent are added to `volume` under `name`.
    pub fn new(name: &'static str, rank: usize, size: usize, volume: &Rc<RefCell<Volume>>) -> Dry {
        Dry { name, rank, size, volume: volume.clone() }
    }

    fn add(&self, op: Op, bytes: f64) {
        let mut volume = self.volume.borrow_mut();
        let sent = volume.entry((self.name, op)).or_default();
        sent.calls += if op == Op::Recv { 0.0 } else { 1.0 };
        sent.bytes += bytes;
    }

    fn ring(&self, op: Op, passes: f64, x: Tensor) {
        let share = (self.size - 1) as f64 / self.size as f64;
        self.add(op, passes * share * x.bytes() as f64);
    }
}

impl Group for Dry {
    fn size(&self) -> usize {
        self.size
    }
    fn rank(&self) -> usize {
        self.rank
    }
    fn all_reduce(&self, x: Tensor) {
        self.ring(Op::AllReduce, 2.0, x);
    }
    fn all_gather(&self, _: Tensor, whole: Tensor) {
        self.ring(Op::AllGather, 1.0, whole);
    }
    fn reduce_scatter(&self, whole: Tensor, _: Tensor) {
        self.ring(Op::ReduceScatter, 1.0, whole);
    }
    fn exchange(&self, messages: &[Message]) {
        for message in messages {
            match message {
                Message::Send { x, .. } => self.add(Op::Send, x.bytes() as f64),
                Message::Recv { x, .. } => self.add(Op::Recv, x.bytes() as f64),
            }
        }
    }
}
