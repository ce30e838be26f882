//! The pipeline schedule as data: in which order a stage runs its forwards and backwards. The
//! messages follow from the order. Executed by the engine, counted for stash slots, checked for
//! deadlock by the tests.

/// One thing a stage does, with the number of the micro-batch in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Forward(usize),
    Backward(usize),
    /// A micro-batch's activations from the stage before, and to the stage after.
    RecvX(usize),
    SendY(usize),
    /// A micro-batch's gradient from the stage after, and to the stage before.
    RecvDy(usize),
    SendDx(usize),
}
use Action::*;

impl Action {
    pub fn is_message(self) -> bool {
        !matches!(self, Forward(_) | Backward(_))
    }
}

/// One-forward-one-backward (Narayanan et al. 2021): fill the pipe, alternate, drain.
pub fn one_f_one_b(stage: usize, stages: usize, micros: usize) -> Vec<Action> {
    let warmup = (stages - 1 - stage).min(micros);
    let fill = (0..warmup).map(Forward);
    let steady = (warmup..micros).flat_map(|m| [Forward(m), Backward(m - warmup)]);
    let drain = (micros - warmup..micros).map(Backward);
    fill.chain(steady).chain(drain).collect()
}

/// All forwards, then all backwards (Huang et al. 2019).
pub fn gpipe(micros: usize) -> Vec<Action> {
    (0..micros).map(Forward).chain((0..micros).map(Backward)).collect()
}

/// Forwards alone, for evaluation.
pub fn forwards(micros: usize) -> Vec<Action> {
    (0..micros).map(Forward).collect()
}

/// Adds the receive before, and the send after, each computation that has a neighbour.
pub fn with_messages(compute: &[Action], stage: usize, stages: usize) -> Vec<Action> {
    let (first, last) = (stage == 0, stage == stages - 1);
    let mut actions = Vec::new();
    for action in compute {
        let (before, after) = match *action {
            Forward(m) => ((!first).then_some(RecvX(m)), (!last).then_some(SendY(m))),
            Backward(m) => ((!last).then_some(RecvDy(m)), (!first).then_some(SendDx(m))),
            _ => unreachable!("messages are added once"),
        };
        actions.extend(before.into_iter().chain([*action]).chain(after));
    }
    actions
}

/// The messages that stand side by side at the front: they are posted together.
pub fn leading_messages(actions: &[Action]) -> &[Action] {
    let len = actions.iter().take_while(|action| action.is_message()).count();
    &actions[..len]
}

/// The most micro-batches a stage holds between forward and backward: its number of stash slots.
pub fn in_flight(actions: &[Action]) -> usize {
    let (mut held, mut most) = (0usize, 0);
    for action in actions {
        match action {
            Forward(_) => held += 1,
            Backward(_) => held -= 1,
            _ => (),
        }
        most = most.max(held);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn one_stage_alternates() {
        assert_eq!(one_f_one_b(0, 1, 2), [Forward(0), Backward(0), Forward(1), Backward(1)]);
        assert_eq!(in_flight(&one_f_one_b(0, 1, 9)), 1);
    }

    #[test]
    fn a_stage_holds_one_micro_batch_per_stage_from_it_on() {
        for stage in 0..4 {
            let actions = one_f_one_b(stage, 4, 8);
            assert_eq!(actions.len(), 16);
            assert_eq!(in_flight(&actions), 4 - stage);
        }
        assert_eq!(in_flight(&one_f_one_b(0, 4, 2)), 2);
        assert_eq!(in_flight(&gpipe(6)), 6);
    }

    #[test]
    fn no_schedule_deadlocks() {
        for stages in 1..6 {
            for micros in 1..12 {
                run(stages, micros, &|stage| one_f_one_b(stage, stages, micros));
                run(stages, micros, &|_| gpipe(micros));
                run(stages, micros, &|_| forwards(micros));
            }
        }
    }

    #[test]
    #[should_panic(expected = "waits forever")]
    fn a_deadlock_is_found() {
        let crossed = |stage| match stage {
            0 => vec![Forward(0), Backward(0), Forward(1), Backward(1)],
            _ => vec![Forward(0), Forward(1), Backward(0), Backward(1)],
        };
        run(2, 2, &crossed);
    }

    /// Runs all stages; a group of messages is over when every peer has posted its side, as NCCL
    /// has it.
    fn run(stages: usize, micros: usize, order: &dyn Fn(usize) -> Vec<Action>) {
        let plans: Vec<_> =
            (0..stages).map(|stage| with_messages(&order(stage), stage, stages)).collect();
        let mut next = vec![0; stages];
        let mut posted = HashSet::new();
        let mut moved = true;
        while moved {
            moved = false;
            for stage in 0..stages {
                while next[stage] < plans[stage].len() {
                    let group = leading_messages(&plans[stage][next[stage]..]);
                    posted.extend(group.iter().map(|message| (stage, *message)));
                    if !group.iter().all(|message| posted.contains(&peer(stage, *message))) {
                        break;
                    }
                    next[stage] += group.len().max(1);
                    moved = true;
                }
            }
        }
        for stage in 0..stages {
            let left = &plans[stage][next[stage]..];
            assert!(
                left.is_empty(),
                "{micros} micro-batches: stage {stage} waits forever at {left:?}"
            );
        }
    }

    /// The other side of a message.
    fn peer(stage: usize, message: Action) -> (usize, Action) {
        match message {
            RecvX(m) => (stage - 1, SendY(m)),
            SendY(m) => (stage + 1, RecvX(m)),
            RecvDy(m) => (stage + 1, SendDx(m)),
            SendDx(m) => (stage - 1, RecvDy(m)),
            Forward(_) | Backward(_) => unreachable!("computations have no peer"),
        }
    }
}
