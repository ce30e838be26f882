//! An order of actions, played: where a schedule becomes work.

use comm::{Group, Message};
use plan::schedule::{self, Action};

/// Runs a rank's actions in their order: computations one by one, messages that follow each other
/// together.
pub fn play(
    actions: &[Action],
    pipeline: &dyn Group,
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
        let posted: Vec<_> = std::iter::once(action).chain(more).map(|m| message(*m)).collect();
        pipeline.exchange(&posted);
    }
    Ok(())
}
