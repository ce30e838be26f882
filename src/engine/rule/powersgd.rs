//! States of PowerSGD for a matrix, in addition to those of the optimizer.

use super::extra_states::ExtraStates;
use crate::states::{Extent, Initial, StateSpec};
use manifest::PowerSgd;
use model::{Module, ParamSpec, TpSplit};

/// Approximation error of the last exchange on a replica, divided by the loss scale. Replicas
/// differ between two saves; a checkpoint stores their mean.
pub const ERROR: &str = "powersgd_error";
/// Right factor of the last exchange, from which the next one starts.
pub const Q: &str = "powersgd_q";

/// States of each compressed matrix. Each of `tensor` tensor-parallel ranks has the states of its share.
pub fn states(settings: PowerSgd, tensor: usize) -> ExtraStates {
    Box::new(move |param| {
        let Some(rank) = factor_rank(&settings, param, tensor) else { return Vec::new() };
        let shares = if param.split == TpSplit::Rows { tensor } else { 1 };
        let extent = Extent::LowRank { rank, shares };
        let init = Initial::Normal;
        let exchanged = |name| StateSpec { offloads: false, ..StateSpec::moment(name) };
        vec![
            StateSpec { extent: Extent::PerReplica, ..exchanged(ERROR) },
            StateSpec { extent, init, ..exchanged(Q) },
        ]
    })
}

/// Rank of a matrix's factors, if they are smaller than a share of it by more than the factor
/// `min_rate` (as in PyTorch's powerSGD_hook). Embeddings and the head are not compressed, because
/// rows of rare tokens would suffer.
fn factor_rank(settings: &PowerSgd, param: &ParamSpec, tensor: usize) -> Option<usize> {
    let [rows, cols] = param.share(tensor);
    let rank = settings.rank.min(rows).min(cols);
    let sent = ((rows + cols) * rank) as f64;
    let smaller = sent * settings.min_rate < (rows * cols) as f64;
    (param.module == Module::Block && smaller).then_some(rank)
}
