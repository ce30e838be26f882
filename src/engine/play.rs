//! Executes a list of actions, including the messages between pipeline stages.

use super::groups::Groups;
use comm::{Group, Message, Pending};
use device::{Arena, Backend, Tensor, op};
use model::TensorParallel;
use plan::schedule::{self, Action, Pass, PipelineRank, Side};

/// Context for a rank's messages: its pipeline position, its groups, and buffers for asynchronous
/// messages.
pub struct Mail<'a> {
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
    arrived: Option<Tensor>,
    begun: Option<Begun>,
}

/// Further buffers of asynchronous messages: this rank's share of a stream [n, H].
struct Begun {
    x: Tensor,
    dx: Tensor,
}

impl MessageBuffers {
    /// For forward passes alone, whose messages are exchanged.
    pub const NONE: MessageBuffers = MessageBuffers { arrived: None, begun: None };

    /// For a rank of a pipeline, whose messages may be asynchronous.
    pub fn plan(
        tp: &TensorParallel,
        stream: Tensor,
        (pp, begun): (PipelineRank, bool),
        arena: &Arena,
    ) -> MessageBuffers {
        let room = |like: Tensor| arena.matrix(like.rows, like.cols, like.dtype);
        let receives = (0..pp.chunks).any(|chunk| pp.stage(chunk) + 1 < pp.stages());
        let arrived = receives.then(|| room(stream));
        let share = tp.sent(stream);
        let begun = begun.then(|| Begun { x: room(share), dx: room(share) });
        MessageBuffers { arrived, begun }
    }

    fn arrived(&self) -> Tensor {
        self.arrived.expect("a stage that receives gradients has a buffer for them")
    }

    fn begun(&self) -> &Begun {
        self.begun.as_ref().expect("an order that begins messages has buffers for them")
    }
}

/// Executes a rank's actions in order. Computations run one by one; consecutive exchanged messages
/// run together. `place` is the final source or destination of a message.
pub fn play(
    actions: &[Action],
    mail: &Mail,
    place: impl Fn(Side, Pass) -> Tensor,
    mut compute: impl FnMut(Action) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut under_way: [Option<Pending>; Side::COUNT] = Default::default();
    let mut left = actions;
    while let [action, rest @ ..] = left {
        left = rest;
        match *action {
            Action::Exchange(side, pass) => {
                let more = schedule::leading_exchange(left);
                left = &left[more.len()..];
                let more = more.iter().filter_map(|action| match *action {
                    Action::Exchange(side, pass) => Some((side, pass)),
                    _ => None,
                });
                let messages = std::iter::once((side, pass)).chain(more);
                mail.exchange(messages.map(|(side, pass)| (side, place(side, pass))).collect());
            }
            Action::Begin(side, pass) => {
                under_way[side as usize] = Some(mail.begin(side, place(side, pass)));
            }
            Action::Await(side, pass) => {
                let pending =
                    under_way[side as usize].take().expect("a message is awaited after it began");
                mail.finish(side, pending, place(side, pass));
            }
            Action::Forward(_) | Action::Backward(_) | Action::Loss(_) => compute(*action)?,
        }
    }
    Ok(())
}

impl Mail<'_> {
    fn message(&self, side: Side, x: Tensor) -> Message {
        let peer = side.peer(self.pp);
        if side.sends() { Message::Send { to: peer, x } } else { Message::Recv { from: peer, x } }
    }

    /// Exchanges messages between stages; each tensor-parallel rank sends its share.
    fn exchange(&self, places: Vec<(Side, Tensor)>) {
        let room = |side, place| if side == Side::RecvDy { self.buffers.arrived() } else { place };
        let share =
            |(side, place): &(Side, Tensor)| self.message(*side, self.tp.sent(room(*side, *place)));
        let shares: Vec<Message> = places.iter().map(share).collect();
        self.groups.pipeline.exchange(&shares);
        for ((side, place), share) in places.iter().zip(&shares) {
            if !side.sends() {
                self.tp.gather_sent(share.tensor(), room(*side, *place));
            }
            if *side == Side::RecvDy {
                self.be.run(op::Copy { x: self.buffers.arrived(), y: place.set() });
            }
        }
    }

    fn begin(&self, side: Side, place: Tensor) -> Pending {
        let x = match side {
            Side::RecvX => self.buffers.begun().x,
            Side::RecvDy => self.tp.sent(self.buffers.arrived()),
            Side::SendY => self.tp.sent(place),
            Side::SendDx => {
                let dx = self.buffers.begun().dx;
                self.be.run(op::Copy { x: self.tp.sent(place), y: dx.set() });
                dx
            }
        };
        self.ring(side).begin_message(self.message(side, x))
    }

    fn finish(&self, side: Side, pending: Pending, place: Tensor) {
        self.ring(side).finish(pending);
        let arrived = match side {
            Side::RecvX => self.buffers.begun().x,
            Side::RecvDy => self.tp.sent(self.buffers.arrived()),
            Side::SendY | Side::SendDx => return,
        };
        match arrived.numel() == place.numel() {
            true => self.be.run(op::Copy { x: arrived, y: place.set() }),
            false => self.tp.gather_sent(arrived, place),
        }
    }

    fn ring(&self, side: Side) -> &dyn Group {
        if side.forward() {
            &*self.groups.activation_messages
        } else {
            &*self.groups.gradient_messages
        }
    }
}
