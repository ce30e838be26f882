//! The update that ends a step: clip by the global norm, advance the loss scale, apply the rule.

use super::params::ShardedParams;
use super::rule::{OptimizerRule, Step};
use super::scalars::Scalars;
use super::scaler;
use super::states::ParamStates;
use crate::device::{Scaling, Tensor};
use crate::manifest::Manifest;
use crate::model::TpSplit;

/// What every rule's update begins with.
pub struct Update {
    /// Gradients that count in the norm, then those that count on another rank.
    grads: Vec<Tensor>,
    /// The parameters they belong to.
    names: Vec<String>,
    counted: usize,
    scaling: Scaling,
    max_norm: f32,
    /// Of the rule.
    scratch: Tensor,
}

impl Update {
    /// Of what a tensor-parallel rank keeps.
    pub fn new(states: &[ParamStates], tp_rank: usize, m: &Manifest, scratch: Tensor) -> Update {
        let elsewhere = |kept: &&ParamStates| {
            let repeated = kept.param.spec.split == TpSplit::Whole && tp_rank > 0;
            repeated || kept.param.tied_copy
        };
        let owned = states.iter().filter(|kept| !kept.part.is_empty());
        let (elsewhere, counted): (Vec<_>, Vec<_>) = owned.partition(elsewhere);
        let all = || counted.iter().chain(&elsewhere);
        Update {
            grads: all().map(|kept| kept.grad).collect(),
            names: all().map(|kept| kept.param.name.clone()).collect(),
            counted: counted.len(),
            scaling: scaler::scaling(m),
            max_norm: m.optimizer.clip().unwrap_or(f32::INFINITY),
            scratch,
        }
    }

    /// Number of gradients whose squares are summed apart.
    pub fn sums(&self) -> usize {
        self.grads.len()
    }

    /// The parameters those belong to.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Clips by the norm over all ranks and updates. A norm that is not finite updates nothing, on
    /// any rank: all have the same. `scale` is the loss's, or NaN.
    pub fn run(
        &self,
        params: &ShardedParams,
        rule: &dyn OptimizerRule,
        s: &Scalars,
        scale: Tensor,
        lr: f64,
    ) {
        let be = params.backend();
        be.square_sums(&self.grads, s.sums.set());
        be.sum(s.sums.span(0, self.counted), s.norm.set());
        params.sum_over_owners(s.norm);
        be.clip(s.norm, scale, self.max_norm, s.clip.set());
        be.loss_scale_step(&self.scaling, s.scaler, s.rule.span(0, 1), s.status);
        let (groups, updates) = (params.groups(), s.scaler.counts.span(2, 1));
        let step = Step {
            be,
            groups,
            sharded: params.is_sharded(),
            lr: lr as f32,
            scalars: s.rule,
            updates,
            scratch: self.scratch,
        };
        rule.begin(&step);
        match params.offload() {
            None => rule.update(&step, params.states()),
            Some(offload) => {
                params.finish_fills();
                offload.update(&step, rule);
            }
        }
    }
}
