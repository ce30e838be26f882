//! Entry and exit of a tensor-parallel region: Megatron's f and g.

use base::div_exact;
use comm::{Collective, Group, Pending};
use device::{Arena, Tensor};

/// Tensor-parallel group. Inside a tensor-parallel region a rank has all N tokens and a share of
/// the features. Outside it has all features and, under sequence parallelism, n = N/tp tokens;
/// otherwise both sides are one buffer. Backward calls the same two functions in the opposite
/// order: it gathers the gradient where forward reduced the value. (Shoeybi et al. 2019;
/// Korthikanti et al. 2022.)
#[derive(Clone, Copy)]
pub struct TensorParallel<'a> {
    pub group: &'a dyn Group,
    pub sequence: bool,
}

impl TensorParallel<'_> {
    /// Entry: n tokens, all features → all N tokens.
    pub fn gather_seq(&self, outside: Tensor, inside: Tensor) {
        if self.sequence {
            self.group.all_gather(outside, inside);
        }
    }

    /// Exit: a partial sum over this rank's features → the whole sum, n tokens.
    pub fn reduce_out(&self, inside: Tensor, outside: Tensor) {
        if self.sequence {
            self.group.reduce_scatter(inside, outside);
        } else {
            self.group.all_reduce(outside);
        }
    }

    /// Starts `gather_seq`. The result is visible to ops enqueued after `finish`.
    pub fn begin_gather(&self, outside: Tensor, inside: Tensor) -> Option<Pending> {
        let gather = Collective::AllGather { part: outside, whole: inside };
        self.sequence.then(|| self.group.begin_ahead(gather))
    }

    /// Starts `reduce_out`. The result is visible to ops enqueued after `finish`.
    pub fn begin_reduce(&self, inside: Tensor, outside: Tensor) -> Option<Pending> {
        let sum = if self.sequence {
            Collective::ReduceScatter { whole: inside, part: outside }
        } else {
            Collective::AllReduce(outside)
        };
        Some(self.group.begin_ahead(sum))
    }

    pub fn finish(&self, pending: Option<Pending>) {
        if let Some(pending) = pending {
            self.group.finish(pending);
        }
    }

    /// This rank's part of a tensor outside the region, to be sent to another stage. Without
    /// sequence parallelism all ranks hold equal copies: each sends a share of the elements, and
    /// the receiving ranks gather them (Narayanan et al. 2021, § 4.1). The whole tensor if it is
    /// not divisible.
    pub fn sent(&self, outside: Tensor) -> Tensor {
        let ranks = self.group.size();
        let elements = outside.numel();
        if self.sequence || !elements.is_multiple_of(ranks) {
            return outside;
        }
        outside.span(elements / ranks * self.group.rank(), elements / ranks)
    }

    /// Gathers the rest of a tensor from another stage, after `sent` of it has arrived.
    pub fn gather_sent(&self, sent: Tensor, outside: Tensor) {
        if sent.numel() < outside.numel() {
            self.group.all_gather(sent, outside);
        }
    }

    /// Tokens on this rank outside the region: n of `all`.
    pub fn tokens(&self, all: usize) -> usize {
        if self.sequence { div_exact(all, self.group.size()) } else { all }
    }

    /// Index of the first of those tokens in the micro-batch.
    pub fn first_row(&self, all: usize) -> usize {
        if self.sequence { self.tokens(all) * self.group.rank() } else { 0 }
    }

    /// Buffer for the gathered `outside`, all N tokens; `outside` itself without sequence
    /// parallelism.
    pub fn gathered_buffer(&self, outside: Tensor, all: usize, arena: &Arena) -> Tensor {
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
