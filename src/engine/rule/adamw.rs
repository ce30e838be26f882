//! AdamW, in f32 (Loshchilov & Hutter 2019).

use super::{OptimizerRule, Step};
use crate::base::DType;
use crate::device;
use crate::engine::states::{MASTER, MODEL, ParamStates, StateSpec};
use crate::manifest;
use crate::model::ParamSpec;

pub struct AdamW {
    rule: device::AdamW,
    model: DType,
}

const FIRST: &str = "first_moment";
/// Never below zero.
pub const SECOND: &str = "second_moment";

impl AdamW {
    pub fn new(settings: manifest::AdamW, model: DType) -> AdamW {
        let manifest::AdamW { beta1, beta2, eps, weight_decay, .. } = settings;
        AdamW { rule: device::AdamW { lr: 0.0, beta1, beta2, eps, weight_decay }, model }
    }
}

impl OptimizerRule for AdamW {
    fn states(&self, _: &ParamSpec) -> Vec<StateSpec> {
        let [first, second] = [FIRST, SECOND].map(StateSpec::moment);
        vec![StateSpec::model(self.model), StateSpec::master(), first, second]
    }

    fn begin(&self, step: &Step) {
        let rule = device::AdamW { lr: step.lr, ..self.rule };
        step.be.adam_scalars(&rule, step.updates, step.scalars.span(1, 2).set());
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let rule = device::AdamW { lr: step.lr, ..self.rule };
        for p in params {
            let weight_decay = if p.param.spec.decay { rule.weight_decay } else { 0.0 };
            let rule = device::AdamW { weight_decay, ..rule };
            let [model, master, m, v] = [MODEL, MASTER, FIRST, SECOND].map(|name| p.get(name));
            step.be.adamw(&rule, step.scalars, p.grad, master, m, v, model);
        }
    }
}
