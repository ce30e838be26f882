//! The two ends of a tensor-parallel region: Megatron's f and g.

use base::div_exact;
use comm::{Collective, Group, Pending};
use device::{Arena, Tensor};

/// Inside a tensor-parallel region a rank has all N tokens and a share of the features. Outside it
/// has all features and, under sequence parallelism, n = N/tp tokens; without it both sides are one
/// buffer. Backward calls the same two functions in the opposite order: the gradient is gathered
/// where the value was reduced. (Shoeybi et al. 2019; Korthikanti et al. 2022.)
#[derive(Clone, Copy)]
pub struct TensorParallel<'a> {
    pub group: &'a dyn Group,
    pub sequence: bool,
}

impl TensorParallel<'_> {
    /// At the entry: n tokens, all features → all N tokens.
    pub fn gather_seq(&self, outside: Tensor, inside: Tensor) {
        if self.sequence {
            self.group.all_gather(outside, inside);
        }
    }

    /// At the exit: a partial sum over this rank's features → the whole sum, n tokens.
    pub fn reduce_out(&self, inside: Tensor, outside: Tensor) {
        if self.sequence {
            self.group.reduce_scatter(inside, outside);
        } else {
            self.group.all_reduce(outside);
        }
    }

    /// Begins `gather_seq`: what is enqueued after `finish` sees its result.
    pub fn begin_gather(&self, outside: Tensor, inside: Tensor) -> Option<Pending> {
        let gather = Collective::AllGather { part: outside, whole: inside };
        self.sequence.then(|| self.group.begin_ahead(gather))
    }

    /// Begins `reduce_out`, likewise.
    pub fn begin_reduce(&self, inside: Tensor, outside: Tensor) -> Option<Pending> {
        let sum = match self.sequence {
            true => Collective::ReduceScatter { whole: inside, part: outside },
            false => Collective::AllReduce(outside),
        };
        Some(self.group.begin_ahead(sum))
    }

    pub fn finish(&self, pending: Option<Pending>) {
        pending.into_iter().for_each(|pending| self.group.finish(pending));
    }

    /// What this rank sends to another stage of a tensor outside the region. Without sequence
    /// parallelism all ranks have it alike: each sends its share of the elements, which the ranks on
    /// the other side gather (Narayanan et al. 2021, § 4.1). All of it where they do not divide it.
    pub fn sent(&self, outside: Tensor) -> Tensor {
        let (ranks, elements) = (self.group.size(), outside.numel());
        if self.sequence || !elements.is_multiple_of(ranks) {
            return outside;
        }
        outside.span(elements / ranks * self.group.rank(), elements / ranks)
    }

    /// The rest of what came from another stage: `sent` of it has arrived.
    pub fn gather_sent(&self, sent: Tensor, outside: Tensor) {
        if sent.numel() < outside.numel() {
            self.group.all_gather(sent, outside);
        }
    }

    /// Tokens on this rank outside the region: n of `all`.
    pub fn tokens(&self, all: usize) -> usize {
        if self.sequence { div_exact(all, self.group.size()) } else { all }
    }

    /// Number of the first of them in the micro-batch.
    pub fn first_row(&self, all: usize) -> usize {
        if self.sequence { self.tokens(all) * self.group.rank() } else { 0 }
    }

    /// A buffer for `outside`, gathered: all N tokens; without sequence parallelism `outside`
    /// itself.
    pub fn gathered(&self, outside: Tensor, all: usize, arena: &Arena) -> Tensor {
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
