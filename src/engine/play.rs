//! Executes a list of actions, including the messages between pipeline stages.

use super::groups::Groups;
use comm::{Group, Message, Pending};
use device::{Arena, Backend, Tensor};
use model::TensorParallel;
use plan::schedule::{self, Action, Pass, PipelineRank, Side};

/// Context for a rank's messages: its pipeline position, its groups, and buffers for asynchronous
/// messages.
pub struct Mail<'a> {
    pub be: &'a dyn Backend,
    pub pp: PipelineRank,
    pub groups: &'a Groups,
    pub tp: TensorParallel<'a>,
    pub buffers: Option<&'a MessageBuffers>,
}

/// Buffers of asynchronous messages: this rank's share of a stream [n, H]. Activations are sent
/// directly from their own memory, which remains valid until backward; by then the next stage has
/// returned their gradient.
pub struct MessageBuffers {
    x: Tensor,
    dy: Tensor,
    dx: Tensor,
}

impl MessageBuffers {
    pub fn plan(tp: &TensorParallel, stream: Tensor, arena: &Arena) -> MessageBuffers {
        let share = tp.sent(stream);
        let room = || arena.matrix(share.rows, share.cols, share.dtype);
        MessageBuffers { x: room(), dy: room(), dx: room() }
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
        let share = |(side, place): &(Side, Tensor)| self.message(*side, self.tp.sent(*place));
        let shares: Vec<Message> = places.iter().map(share).collect();
        self.groups.pipeline.exchange(&shares);
        for ((side, place), share) in places.iter().zip(&shares) {
            if !side.sends() {
                self.tp.gather_sent(share.tensor(), *place);
            }
        }
    }

    fn begin(&self, side: Side, place: Tensor) -> Pending {
        let buffers = self.buffers();
        let x = match side {
            Side::RecvX => buffers.x,
            Side::RecvDy => buffers.dy,
            Side::SendY => self.tp.sent(place),
            Side::SendDx => {
                self.be.copy(self.tp.sent(place), buffers.dx.set());
                buffers.dx
            }
        };
        self.ring(side).begin_message(self.message(side, x))
    }

    fn finish(&self, side: Side, pending: Pending, place: Tensor) {
        self.ring(side).finish(pending);
        let buffers = self.buffers();
        let arrived = match side {
            Side::RecvX => buffers.x,
            Side::RecvDy => buffers.dy,
            Side::SendY | Side::SendDx => return,
        };
        match arrived.numel() == place.numel() {
            true => self.be.copy(arrived, place.set()),
            false => self.tp.gather_sent(arrived, place),
        }
    }

    fn ring(&self, side: Side) -> &dyn Group {
        if side.forward() { &*self.groups.activations } else { &*self.groups.gradients }
    }

    fn buffers(&self) -> &MessageBuffers {
        self.buffers.expect("an order that begins messages has buffers for them")
    }
}
