//! What PowerSGD keeps of a matrix, beside the states of any optimizer.

use super::{Conversion, OptimizerRule, Place, Saved, Step};
use crate::states::{Extent, Initial, ParamStates, StateSpec};
use manifest::PowerSgd;
use model::{Module, ParamSpec, TpSplit};

/// What the last exchange left out of a replica's gradient, without the scale of the loss. Between two
/// saves replicas have different ones; a checkpoint holds their mean.
pub const ERROR: &str = "powersgd_error";
/// The right factor of the last exchange, from which the next one starts.
pub const Q: &str = "powersgd_q";

/// An optimizer's rule, with PowerSGD's states of each matrix that is compressed.
pub struct WithPowerSgd {
    rule: Box<dyn OptimizerRule>,
    settings: PowerSgd,
    /// Tensor-parallel ranks, each of which compresses its own share.
    tensor: usize,
}

impl WithPowerSgd {
    pub fn new(rule: Box<dyn OptimizerRule>, settings: PowerSgd, tensor: usize) -> WithPowerSgd {
        WithPowerSgd { rule, settings, tensor }
    }

    /// The rank of a matrix's factors, if they are smaller than a share of it by more than the factor
    /// `min_rate` (as in PyTorch's powerSGD_hook). Embeddings and the head are not compressed: rows of
    /// rare tokens would be.
    fn rank(&self, param: &ParamSpec) -> Option<usize> {
        let [rows, cols] = param.share(self.tensor);
        let rank = self.settings.rank.min(rows).min(cols);
        let sent = ((rows + cols) * rank) as f64;
        let smaller = sent * self.settings.min_rate < (rows * cols) as f64;
        (param.module == Module::Block && smaller).then_some(rank)
    }
}

impl OptimizerRule for WithPowerSgd {
    fn states(&self, param: &ParamSpec) -> Vec<StateSpec> {
        let mut states = self.rule.states(param);
        if let Some(rank) = self.rank(param) {
            let shares = if param.split == TpSplit::Rows { self.tensor } else { 1 };
            let (extent, init) = (Extent::LowRank { rank, shares }, Initial::Normal);
            let exchanged = |name| StateSpec { offloads: false, ..StateSpec::moment(name) };
            states.push(StateSpec { extent: Extent::PerReplica, ..exchanged(ERROR) });
            states.push(StateSpec { extent, init, ..exchanged(Q) });
        }
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
