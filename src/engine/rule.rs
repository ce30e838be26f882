//! Optimizer rules: which states a parameter has, and how a step updates them.

use super::groups::{Groups, model_dtype};
use super::states::{MASTER, MODEL, ParamStates, StateSpec};
use crate::base::DType;
use crate::device::{self, Backend, Tensor};
use crate::manifest::{self, Manifest};
use crate::model::ParamSpec;

/// An optimizer.
pub trait OptimizerRule {
    /// What is kept of a parameter, its model weight first; the same on every grid. ZeRO shares what
    /// has the parameter's columns (`Extent::is_sharded`); the rest every replica keeps whole.
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec>;

    /// Updates the states of all parameters from their gradients times `Step::factor`; a factor that
    /// is NaN changes nothing. Leaves the model weight rounded from the master weight.
    fn update(&self, step: &Step, params: &[ParamStates]);
}

/// What an update is by.
pub struct Step<'a> {
    pub be: &'a dyn Backend,
    pub groups: &'a Groups,
    pub lr: f32,
    /// f32 [1, 3]: the gradients' factor (loss scale and clipping), then two numbers for the rule.
    pub scalars: Tensor,
    /// i64 [1, 1]: updates made, this one among them.
    pub updates: Tensor,
}

/// The rule of a manifest.
pub fn of(m: &Manifest) -> Box<dyn OptimizerRule> {
    let manifest::Optimizer::AdamW(rule) = &m.optimizer;
    let manifest::AdamW { beta1, beta2, eps, weight_decay, .. } = *rule;
    let rule = device::AdamW { lr: 0.0, beta1, beta2, eps, weight_decay };
    Box::new(AdamW { rule, model: model_dtype(m.precision) })
}

/// AdamW, in f32 (Loshchilov & Hutter 2019).
struct AdamW {
    rule: device::AdamW,
    model: DType,
}

const FIRST: &str = "first_moment";
/// Never below zero.
pub const SECOND: &str = "second_moment";

impl OptimizerRule for AdamW {
    fn states(&self, _: &ParamSpec) -> Vec<StateSpec> {
        let [first, second] = [FIRST, SECOND].map(StateSpec::moment);
        vec![StateSpec::model(self.model), StateSpec::master(), first, second]
    }

    fn update(&self, step: &Step, params: &[ParamStates]) {
        let rule = device::AdamW { lr: step.lr, ..self.rule };
        step.be.adam_scalars(&rule, step.updates, step.scalars.span(1, 2).set());
        for p in params {
            let weight_decay = if p.param.spec.decay { rule.weight_decay } else { 0.0 };
            let rule = device::AdamW { weight_decay, ..rule };
            let [model, master, m, v] = [MODEL, MASTER, FIRST, SECOND].map(|name| p.get(name));
            step.be.adamw(&rule, step.scalars, p.grad, master, m, v, model);
        }
    }
}
