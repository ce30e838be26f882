//! Optimizer rules: which states a parameter has, and how a step updates them.

mod adamw;

pub use adamw::SECOND;

use super::groups::{Groups, model_dtype};
use super::states::{ParamStates, StateSpec};
use crate::device::{Backend, Tensor};
use crate::manifest::{Manifest, Optimizer};
use crate::model::ParamSpec;
use adamw::AdamW;

/// An optimizer.
pub trait OptimizerRule {
    /// What is kept of a parameter, its model weight first; the same on every grid. ZeRO shares what
    /// has the parameter's columns (`Extent::is_sharded`); the rest every replica keeps whole.
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec>;

    /// Once a step, on the device, before `update`: the rule's own numbers in `Step::scalars`.
    fn begin(&self, _: &Step) {}

    /// Updates the states of parameters from their gradients times `Step::factor`; a factor that is
    /// NaN changes nothing. Leaves the model weight rounded from the master weight. Called once for
    /// all parameters; where states lie on the host, with the host's backend and several times, each
    /// for some of them, and a parameter whose states are all sharded may come in several parts.
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
    let model = model_dtype(m.precision);
    match m.optimizer {
        Optimizer::AdamW(settings) => Box::new(AdamW::new(settings, model)),
        Optimizer::Adam8bit(_) => unreachable!("refused by the manifest"),
    }
}
