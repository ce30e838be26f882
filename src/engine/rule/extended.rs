//! Optimizer rule with additional states for a feature around the update: PowerSGD (`powersgd`).

use super::{Conversion, OptimizerRule, Place, Saved, Step};
use crate::states::{ParamStates, StateSpec};
use model::ParamSpec;

/// Returns the additional states of a parameter.
pub type MoreStates = Box<dyn Fn(&ParamSpec) -> Vec<StateSpec> + Sync>;

pub struct Extended {
    rule: Box<dyn OptimizerRule>,
    more: MoreStates,
}

impl Extended {
    pub fn new(rule: Box<dyn OptimizerRule>, more: MoreStates) -> Extended {
        Extended { rule, more }
    }
}

impl OptimizerRule for Extended {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        [self.rule.states(param), (self.more)(param)].concat()
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
