//! The pipeline schedule as data: in which order a stage runs its forwards and backwards. Executed
//! by the engine, counted for stash slots, checked by the tests. This version has one stage.

/// One computation of a stage, on a micro-batch of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Forward(usize),
    Backward(usize),
}

/// One-forward-one-backward (Narayanan et al. 2021): fill the pipe, alternate, drain.
pub fn one_f_one_b(stage: usize, stages: usize, micros: usize) -> Vec<Action> {
    let warmup = (stages - 1 - stage).min(micros);
    let fill = (0..warmup).map(Action::Forward);
    let steady = (warmup..micros).flat_map(|m| [Action::Forward(m), Action::Backward(m - warmup)]);
    let drain = (micros - warmup..micros).map(Action::Backward);
    fill.chain(steady).chain(drain).collect()
}

/// The most micro-batches a stage holds between forward and backward: its number of stash slots.
pub fn in_flight(actions: &[Action]) -> usize {
    let (mut held, mut most) = (0, 0);
    for action in actions {
        match action {
            Action::Forward(_) => held += 1,
            Action::Backward(_) => held -= 1,
        }
        most = most.max(held);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::{Action::*, *};

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
    }
}
