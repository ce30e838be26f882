//! An order of actions, played: where a schedule becomes work.

use comm::{Group, Message};
use model::TensorParallel;
use plan::schedule::{self, Action};

/// Runs a rank's actions in their order: computations one by one, messages that follow each other
/// together.
pub fn play(
    actions: &[Action],
    pipeline: &dyn Group,
    tp: TensorParallel,
    message: impl Fn(Action) -> Message,
    mut compute: impl FnMut(Action) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut left = actions;
    while let [action, rest @ ..] = left {
        left = rest;
        if !action.is_message() {
            compute(*action)?;
            continue;
        }
        let more = schedule::leading_messages(left);
        left = &left[more.len()..];
        let whole: Vec<_> = std::iter::once(action).chain(more).map(|m| message(*m)).collect();
        exchange(pipeline, tp, &whole);
    }
    Ok(())
}

/// Each tensor-parallel rank's share of the messages travels between stages.
fn exchange(pipeline: &dyn Group, tp: TensorParallel, whole: &[Message]) {
    let shares: Vec<_> = whole.iter().map(|each| each.with(tp.sent(each.tensor()))).collect();
    pipeline.exchange(&shares);
    for (whole, share) in whole.iter().zip(&shares) {
        if let Message::Recv { x, .. } = share {
            tp.gather_sent(*x, whole.tensor());
        }
    }
}
