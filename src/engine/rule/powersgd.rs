//! What PowerSGD keeps of a matrix, beside the states of any optimizer.

use super::extended::MoreStates;
use crate::states::{Extent, Initial, StateSpec};
use manifest::PowerSgd;
use model::{Module, ParamSpec, TpSplit};

/// What the last exchange left out of a replica's gradient, without the scale of the loss. Between two
/// saves replicas have different ones; a checkpoint holds their mean.
pub const ERROR: &str = "powersgd_error";
/// The right factor of the last exchange, from which the next one starts.
pub const Q: &str = "powersgd_q";

/// The states of each matrix that is compressed, by each of `tensor` tensor-parallel ranks its own
/// share.
pub fn states(settings: PowerSgd, tensor: usize) -> MoreStates {
    Box::new(move |param| {
        let Some(rank) = rank(&settings, param, tensor) else { return Vec::new() };
        let shares = if param.split == TpSplit::Rows { tensor } else { 1 };
        let (extent, init) = (Extent::LowRank { rank, shares }, Initial::Normal);
        let exchanged = |name| StateSpec { offloads: false, ..StateSpec::moment(name) };
        vec![
            StateSpec { extent: Extent::PerReplica, ..exchanged(ERROR) },
            StateSpec { extent, init, ..exchanged(Q) },
        ]
    })
}

/// The rank of a matrix's factors, if they are smaller than a share of it by more than the factor
/// `min_rate` (as in PyTorch's powerSGD_hook). Embeddings and the head are not compressed: rows of
/// rare tokens would be.
fn rank(settings: &PowerSgd, param: &ParamSpec, tensor: usize) -> Option<usize> {
    let [rows, cols] = param.share(tensor);
    let rank = settings.rank.min(rows).min(cols);
    let sent = ((rows + cols) * rank) as f64;
    let smaller = sent * settings.min_rate < (rows * cols) as f64;
    (param.module == Module::Block && smaller).then_some(rank)
}
