//! Executes a list of actions, including the messages between pipeline stages.

use super::groups::{Groups, messages_overlap};
use comm::{Group, Message, Pending};
use device::{Arena, Backend, Tensor, op};
use manifest::{Schedule, Topology};
use model::{Activations, GradBuffers, TensorParallel};
use plan::schedule::{Action, Pass, PipelineRank, Side};

/// Context for a rank's messages: its pipeline position, its groups, and buffers for asynchronous
/// messages.
pub struct PipelineComm<'a> {
    pub be: &'a dyn Backend,
    pub pp: PipelineRank,
    pub groups: &'a Groups,
    pub tp: TensorParallel<'a>,
    pub buffers: &'a MessageBuffers,
}

/// Buffers of messages. Activations are sent directly from their own memory, which remains valid until
/// backward; by then the next stage has returned their gradient.
pub struct MessageBuffers {
    /// [n, H]: gradient received in an exchange, which may send the previous one. Asynchronous ones
    /// use this rank's share of it. None for the last stage, and where `in_activations`.
    received: Option<Tensor>,
    /// Whether a pass's gradient is received in the memory of its output, which was sent, because others
    /// are received before its backward.
    in_activations: bool,
    asynchronous: Option<AsyncBuffers>,
}

/// Additional buffers of asynchronous messages: this rank's share of a stream [n, H].
struct AsyncBuffers {
    x: Tensor,
    dx: Tensor,
}

impl MessageBuffers {
    /// For forward passes alone, whose messages are exchanged.
    pub const NONE: MessageBuffers =
        MessageBuffers { received: None, in_activations: false, asynchronous: None };

    /// For a rank of a pipeline.
    pub fn plan(
        tp: &TensorParallel,
        stream: Tensor,
        pp: PipelineRank,
        topology: &Topology,
        arena: &Arena,
    ) -> MessageBuffers {
        let buffer_like = |x: Tensor| arena.matrix(x.rows, x.cols, x.dtype);
        let receives = (0..pp.chunks).any(|chunk| pp.stage(chunk) + 1 < pp.stages());
        let in_activations = topology.schedule == Schedule::BreadthFirst;
        let share = tp.sent(stream);
        MessageBuffers {
            received: (receives && !in_activations).then(|| buffer_like(stream)),
            in_activations,
            asynchronous: messages_overlap(topology)
                .then(|| AsyncBuffers { x: buffer_like(share), dx: buffer_like(share) }),
        }
    }

    /// Final source or destination of a message: the stream of a micro-batch, or its gradient in `work`.
    pub fn tensor(&self, side: Side, activations: &Activations, work: &GradBuffers) -> Tensor {
        match side {
            Side::RecvX => activations.x,
            Side::SendY => activations.y,
            Side::RecvDy if self.in_activations => activations.y,
            Side::RecvDy | Side::SendDx => work.stream,
        }
    }

    /// Copies the gradient of a pass's output to where backward reads it, if it was received elsewhere.
    pub fn take_gradient(
        &self,
        be: &dyn Backend,
        pp: PipelineRank,
        pass: Pass,
        activations: &Activations,
        work: &GradBuffers,
    ) {
        if self.in_activations && pp.stage(pass.chunk) + 1 < pp.stages() {
            be.run(op::Copy { x: activations.y, y: work.stream.set() });
        }
    }

    fn received_buffer(&self) -> Tensor {
        self.received
            .expect("a stage that receives gradients has a buffer for them")
    }

    fn asynchronous(&self) -> &AsyncBuffers {
        self.asynchronous
            .as_ref()
            .expect("an order that begins messages has buffers for them")
    }
}

/// Executes a rank's actions in order. Computations run one by one; consecutive exchanged messages
/// run together. `tensor_of` gives the final source or destination of a message.
pub fn execute(
    actions: &[Action],
    comm: &PipelineComm,
    tensor_of: impl Fn(Side, Pass) -> Tensor,
    mut compute: impl FnMut(Action) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut in_flight: [Option<Pending>; Side::COUNT] = Default::default();
    let mut remaining = actions;
    while let [action, rest @ ..] = remaining {
        remaining = rest;
        match *action {
            Action::Exchange(side, pass) => {
                let mut messages = vec![(side, tensor_of(side, pass))];
                while let [Action::Exchange(side, pass), rest @ ..] = remaining {
                    messages.push((*side, tensor_of(*side, *pass)));
                    remaining = rest;
                }
                comm.exchange(messages);
            }
            Action::Begin(side, pass) => {
                in_flight[side as usize] = Some(comm.begin(side, tensor_of(side, pass)));
            }
            Action::Await(side, pass) => {
                let pending = in_flight[side as usize]
                    .take()
                    .expect("a message is awaited after it began");
                comm.finish(side, pending, tensor_of(side, pass));
            }
            Action::Forward(_) | Action::Backward(_) | Action::Loss(_) => compute(*action)?,
        }
    }
    Ok(())
}

impl PipelineComm<'_> {
    fn message(&self, side: Side, x: Tensor) -> Message {
        let peer = side.peer(self.pp);
        if side.sends() { Message::Send { to: peer, x } } else { Message::Recv { from: peer, x } }
    }

    /// Exchanges messages between stages; each tensor-parallel rank sends its share.
    fn exchange(&self, messages: Vec<(Side, Tensor)>) {
        let is_staged = |side| side == Side::RecvDy && !self.buffers.in_activations;
        let buffer = |side, x| if is_staged(side) { self.buffers.received_buffer() } else { x };
        let shares: Vec<Message> = messages
            .iter()
            .map(|(side, x)| self.message(*side, self.tp.sent(buffer(*side, *x))))
            .collect();
        self.groups.pipeline.exchange(&shares);
        for ((side, x), share) in messages.into_iter().zip(&shares) {
            if !side.sends() {
                self.tp.gather_sent(share.tensor(), buffer(side, x));
            }
            if is_staged(side) {
                let received = self.buffers.received_buffer();
                self.be.run(op::Copy { x: received, y: x.set() });
            }
        }
    }

    fn begin(&self, side: Side, x: Tensor) -> Pending {
        let share = match side {
            Side::RecvX => self.buffers.asynchronous().x,
            Side::RecvDy => self.tp.sent(self.buffers.received_buffer()),
            Side::SendY => self.tp.sent(x),
            Side::SendDx => {
                let dx = self.buffers.asynchronous().dx;
                self.be.run(op::Copy { x: self.tp.sent(x), y: dx.set() });
                dx
            }
        };
        self.group(side).begin_message(self.message(side, share))
    }

    fn finish(&self, side: Side, pending: Pending, x: Tensor) {
        self.group(side).finish(pending);
        let share = match side {
            Side::RecvX => self.buffers.asynchronous().x,
            Side::RecvDy => self.tp.sent(self.buffers.received_buffer()),
            Side::SendY | Side::SendDx => return,
        };
        if share.numel() == x.numel() {
            self.be.run(op::Copy { x: share, y: x.set() });
        } else {
            self.tp.gather_sent(share, x);
        }
    }

    fn group(&self, side: Side) -> &dyn Group {
        if side.forward() {
            &*self.groups.pipeline_forward
        } else {
            &*self.groups.pipeline_backward
        }
    }
}
