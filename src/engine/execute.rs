//! Executes a list of actions, including the messages between pipeline stages.

use super::groups::Groups;
use comm::{Group, Message, Pending};
use device::{Arena, Backend, Tensor, op};
use model::TensorParallel;
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
    /// use this rank's share of it. None for the last stage.
    received: Option<Tensor>,
    asynchronous: Option<AsyncBuffers>,
}

/// Additional buffers of asynchronous messages: this rank's share of a stream [n, H].
struct AsyncBuffers {
    x: Tensor,
    dx: Tensor,
}

impl MessageBuffers {
    /// For forward passes alone, whose messages are exchanged.
    pub const NONE: MessageBuffers = MessageBuffers { received: None, asynchronous: None };

    /// For a rank of a pipeline, whose messages may be asynchronous.
    pub fn plan(
        tp: &TensorParallel,
        stream: Tensor,
        pp: PipelineRank,
        overlap: bool,
        arena: &Arena,
    ) -> MessageBuffers {
        let buffer_like = |x: Tensor| arena.matrix(x.rows, x.cols, x.dtype);
        let receives = (0..pp.chunks).any(|chunk| pp.stage(chunk) + 1 < pp.stages());
        let share = tp.sent(stream);
        MessageBuffers {
            received: receives.then(|| buffer_like(stream)),
            asynchronous: overlap
                .then(|| AsyncBuffers { x: buffer_like(share), dx: buffer_like(share) }),
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
        let buffer =
            |side, x| if side == Side::RecvDy { self.buffers.received_buffer() } else { x };
        let shares: Vec<Message> = messages
            .iter()
            .map(|(side, x)| self.message(*side, self.tp.sent(buffer(*side, *x))))
            .collect();
        self.groups.pipeline.exchange(&shares);
        for ((side, x), share) in messages.into_iter().zip(&shares) {
            if !side.sends() {
                self.tp.gather_sent(share.tensor(), buffer(side, x));
            }
            if side == Side::RecvDy {
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
