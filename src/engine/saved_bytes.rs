//! Size of a checkpoint.

use super::{optimizer_rule, saved_shape};
use manifest::Manifest;
use model::{Layout, ModelShard};

/// Bytes of a run's states in a checkpoint, over all ranks.
pub fn saved_bytes(m: &Manifest) -> u64 {
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let rule = optimizer_rule(m);
    layout
        .params()
        .map(|param| {
            let cols = param.spec.cols;
            let rows = saved_shape(param, m.model.vocab).iter().product::<usize>() / cols;
            let saved = rule
                .states(&param.spec)
                .into_iter()
                .filter(|state| state.saved);
            saved
                .map(|s| s.extent.shape([rows, cols]).iter().product::<usize>() * s.dtype.size())
                .sum::<usize>() as u64
        })
        .sum()
}
