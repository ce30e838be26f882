//! Custody of weights and gradients. This version keeps a whole replica on the one rank there is.

use crate::device::Tensor;
use crate::model::{Custody, Layout, Params};

/// Everything here, all the time.
pub struct Replica {
    weights: Vec<Params>,
    grads: Vec<Params>,
    /// All gradients as one row.
    pub flat_grads: Tensor,
}

impl Replica {
    pub fn new(layout: &Layout, live: Tensor, grads: Tensor) -> Replica {
        Replica {
            weights: Params::all(live, layout),
            grads: Params::all(grads, layout),
            flat_grads: grads,
        }
    }
}

impl Custody for Replica {
    fn weights(&self, bucket: usize) -> &Params {
        &self.weights[bucket]
    }
    fn release(&self, _: usize) {}
    fn grads(&self, bucket: usize) -> &Params {
        &self.grads[bucket]
    }
    fn grads_done(&self, _: usize, _: bool) {}
}
