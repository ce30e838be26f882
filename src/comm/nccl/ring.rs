//! Asynchronous messages from each rank to the next one of a ring. An edge of the ring has a
//! communicator of its two ranks, and a stream at each end: a message waits only for earlier messages on
//! its edge, which the two ranks begin in the same order. In one communicator sends and receives would
//! be kernels one after another, and a rank that waits for its predecessor would not send to its
//! successor.

use super::Nccl;
use super::group::NcclGroup;
use super::watchdog::Stream;
use crate::{Collective, FORWARD_MESSAGES, Group, Message, Pending, World};
use base::DType;
use cudarc::nccl::sys::ncclUniqueId;
use device::Tensor;

/// A rank's two edges.
pub struct NcclRing {
    rank: usize,
    size: usize,
    sends: Edge,
    receives: Edge,
}

struct Edge {
    group: NcclGroup,
    stream: Stream,
}

impl NcclRing {
    /// Creates the ring of this name over these world ranks. `host` is the same group.
    pub fn new(
        nccl: &Nccl,
        world: &World,
        host: &dyn Group,
        name: &str,
        ranks: &[usize],
    ) -> NcclRing {
        let rank = host.rank();
        let size = host.size();
        let forwards = name == FORWARD_MESSAGES;
        let step = if forwards { 1 } else { size - 1 };
        let first = if forwards { 0 } else { 2 };
        // An edge has the number of its sender.
        let edges = [(rank, first), ((rank + size - step) % size, first + 1)];
        let ids = gather_ids(host, nccl.new_id(world));
        let make = |(edge, stream): (usize, usize)| {
            let to = (edge + step) % size;
            let group = nccl.create_group(world, name, &[ranks[edge], ranks[to]], ids[edge]);
            reserve_buffers(nccl, &group);
            Edge { group, stream: Stream::Message(stream) }
        };
        // Both ranks of an edge create it at the same time: first the even edges, which share no rank.
        let phase =
            |edge: usize| if edge + 1 == size && edge.is_multiple_of(2) { 2 } else { edge % 2 };
        let (sends, receives) = if phase(edges[0].0) < phase(edges[1].0) {
            let sends = make(edges[0]);
            (sends, make(edges[1]))
        } else {
            let receives = make(edges[1]);
            (make(edges[0]), receives)
        };
        NcclRing { rank, size, sends, receives }
    }
}

/// Ids of all ranks, by rank.
fn gather_ids(host: &dyn Group, own: ncclUniqueId) -> Vec<ncclUniqueId> {
    const WORDS: usize = 16;
    let mut all = vec![0u64; WORDS * host.size()];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut all);
    bytes
        .chunks_exact_mut(own.internal.len())
        .nth(host.rank())
        .expect("a rank's own")
        .copy_from_slice(bytemuck::bytes_of(&own.internal));
    let whole = Tensor::at(all.as_mut_ptr() as usize, 1, all.len(), DType::I64);
    host.all_gather(whole.span(WORDS * host.rank(), WORDS), whole);
    // The group wrote through the address.
    let all = std::hint::black_box(&all);
    all.chunks_exact(WORDS)
        .map(|words| {
            let mut id = ncclUniqueId { internal: [0; 128] };
            bytemuck::bytes_of_mut(&mut id.internal).copy_from_slice(bytemuck::cast_slice(words));
            id
        })
        .collect()
}

/// Like `Nccl::reserve_buffers`, with the only operation of an edge.
fn reserve_buffers(nccl: &Nccl, edge: &NcclGroup) {
    for sample in nccl.sample_tensors() {
        match edge.rank() {
            0 => edge.send(1, sample),
            _ => edge.recv(0, sample),
        }
    }
}

impl Group for NcclRing {
    fn size(&self) -> usize {
        self.size
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn run(&self, _: Collective) {
        unreachable!("a ring has no collectives");
    }

    fn exchange(&self, _: &[Message]) {
        unreachable!("a ring's messages are begun");
    }

    fn begin_message(&self, message: Message) -> Pending {
        let (edge, message) = match message {
            Message::Send { x, .. } => (&self.sends, Message::Send { to: 1, x }),
            Message::Recv { x, .. } => (&self.receives, Message::Recv { from: 0, x }),
        };
        edge.group.begin_message_on(edge.stream, message)
    }

    fn finish(&self, pending: Pending) {
        let edge = match pending.message {
            Some(Message::Send { .. }) => &self.sends,
            _ => &self.receives,
        };
        edge.group.finish(pending);
    }
}
