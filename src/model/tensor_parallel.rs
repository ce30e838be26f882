//! The two doors of a split region.

use crate::base::div_exact;
use crate::comm::Group;
use crate::device::{Arena, Tensor};

/// Inside a split region a rank sees all N tokens and a share of the features. Outside it sees all
/// features and, under sequence parallelism, n = N/tp tokens; without it the two sides are one
/// buffer. Backward goes through the same doors the other way: the gradient enters where the value
/// left. (Shoeybi et al. 2019; Korthikanti et al. 2022.)
#[derive(Clone, Copy)]
pub struct TensorParallel<'a> {
    pub group: &'a dyn Group,
    pub sequence: bool,
}

impl TensorParallel<'_> {
    /// n tokens, every feature → all N tokens.
    pub fn enter(&self, outside: Tensor, inside: Tensor) {
        if self.sequence {
            self.group.all_gather(outside, inside);
        }
    }

    /// A partial sum over this rank's features → the whole sum, n tokens.
    pub fn leave(&self, inside: Tensor, outside: Tensor) {
        if self.sequence {
            self.group.reduce_scatter(inside, outside);
        } else {
            self.group.all_reduce(outside);
        }
    }

    /// Tokens on this rank outside a split region.
    pub fn tokens(&self, all: usize) -> usize {
        if self.sequence { div_exact(all, self.group.size()) } else { all }
    }

    /// The first of them.
    pub fn first_row(&self, all: usize) -> usize {
        if self.sequence { self.tokens(all) * self.group.rank() } else { 0 }
    }

    /// The buffer on the inside of a door whose outside is `outside`.
    pub fn inside(&self, outside: Tensor, all: usize, arena: &Arena) -> Tensor {
        if self.sequence { arena.matrix(all, outside.cols, outside.dtype) } else { outside }
    }

    /// This rank's share of a feature dimension.
    pub fn share(&self, features: usize) -> usize {
        div_exact(features, self.group.size())
    }

    /// First feature (head, vocabulary row) of this rank's share.
    pub fn first(&self, features: usize) -> usize {
        self.share(features) * self.group.rank()
    }
}
