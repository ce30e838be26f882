//! Optimizer rule with additional states for a feature around the update: PowerSGD (`powersgd`).

use super::{Conversion, OptimizerRule, Place, SavedStates, Step};
use crate::states::{ParamStates, StateSpec};
use model::ParamSpec;

/// Returns the additional states of a parameter.
pub type ExtraStates = Box<dyn Fn(&ParamSpec) -> Vec<StateSpec> + Sync>;

pub struct WithExtraStates {
    rule: Box<dyn OptimizerRule>,
    extra: ExtraStates,
}

impl WithExtraStates {
    pub fn new(rule: Box<dyn OptimizerRule>, extra: ExtraStates) -> WithExtraStates {
        WithExtraStates { rule, extra }
    }
}

impl OptimizerRule for WithExtraStates {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        [self.rule.states(param), (self.extra)(param)].concat()
    }

    fn scratch(&self, at: &Place, params: &[ParamStates]) -> usize {
        self.rule.scratch(at, params)
    }

    fn begin(&self, step: &Step) {
        self.rule.begin(step);
    }

    fn needs_global_sums(&self) -> bool {
        self.rule.needs_global_sums()
    }

    fn resumes_from(&self, rule: &str) -> bool {
        self.rule.resumes_from(rule)
    }

    fn convert(&self, state: &StateSpec, saved: SavedStates) -> Option<Conversion> {
        self.rule.convert(state, saved)
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        self.rule.update(step, params);
    }
}
