//! The gradient that an update waits for, beside the states of any optimizer (`engine::late`).

use super::{Conversion, OptimizerRule, Place, Saved, Step};
use crate::states::{ParamStates, StateSpec};
use model::ParamSpec;

/// An optimizer's rule whose updates may come late.
pub struct WithPending {
    rule: Box<dyn OptimizerRule>,
}

impl WithPending {
    pub fn new(rule: Box<dyn OptimizerRule>) -> WithPending {
        WithPending { rule }
    }
}

impl OptimizerRule for WithPending {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        let mut states = self.rule.states(param);
        states.push(StateSpec::pending());
        states
    }

    fn scratch(&self, at: &Place, params: &[ParamStates]) -> usize {
        self.rule.scratch(at, params)
    }

    fn begin(&self, step: &Step) {
        self.rule.begin(step);
    }

    fn sums_up(&self) -> bool {
        self.rule.sums_up()
    }

    fn goes_on_from(&self, rule: &str) -> bool {
        self.rule.goes_on_from(rule)
    }

    fn convert(&self, state: &StateSpec, saved: Saved) -> Option<Conversion> {
        self.rule.convert(state, saved)
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        self.rule.update(step, params);
    }
}
