//! An order of actions, played: where a schedule becomes work, and messages between stages leave and
//! arrive.

use super::groups::Groups;
use comm::{Group, Message, Pending};
use device::{Arena, Backend, Tensor};
use model::TensorParallel;
use plan::schedule::{self, Action, Pass, PipelineRank, Side};

/// What a rank's messages need: its place, its groups, and where those lie that are begun.
pub struct Mail<'a> {
    pub be: &'a dyn Backend,
    pub pp: PipelineRank,
    pub groups: &'a Groups,
    pub tp: TensorParallel<'a>,
    pub buffers: Option<&'a MessageBuffers>,
}

/// What is under way beside the passes: this rank's share of a stream [n, H]. Activations are sent from
/// where they are until backward: by then the next stage has returned their gradient.
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

/// Runs a rank's actions in their order: computations one by one, exchanged messages that follow each
/// other together. `place` is where a message comes from in the end, or goes to.
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
                let pending = under_way[side as usize].take().expect("it was begun");
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

    /// Each tensor-parallel rank's share of the messages travels between stages.
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
