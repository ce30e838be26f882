//! Gradients of blocks on the host (`topology.offload.gradients: host`). A device buffer holds a
//! block's gradients while they are computed and reduced; host memory holds them otherwise.
//!
//! | ZeRO | a later micro-batch starts | it ends | the last one ends |
//! |---|---|---|---|
//! | 0, 1 | from the running sums, fetched | the sums are copied back | reduced; this rank's shard is copied |
//! | 2, 3 | from zeros | reduced; the running sums are added to this rank's shard, which is copied | the same |
//!
//! Every sum is taken on the same device and in the same order as without offload, so the bits are
//! equal. The host computes nothing and nothing waits for it. Three buffers: one is computed in,
//! the second sends the gradients of the previous block, the third receives the sums of the next.
//! The squares for the norm are summed as the gradients of the last micro-batch are stored.

use super::plan::{Residence, Values};
use super::ring::{Ring, Windows};
use super::{BucketState, ShardedParams};
use base::DType;
use device::{Arena, Backend, Tensor, Transfer, op};
use model::{MicroBatch, Module};
use std::cell::{Cell, RefCell};

/// Sums over a gradient that its bucket's buffer holds.
pub struct GradSums {
    /// The gradient, as a view of the buffer.
    pub grad: Tensor,
    pub squares: Tensor, // f32 [1, 1]
    /// Its elements without padding, and their zeros (`op::CountZeros`), if the log shows these.
    pub zeros: Option<(Tensor, ZeroCounts)>,
}

/// Numbers of zeros (`op::CountZeros`), f32 [1, n].
#[derive(Clone, Copy)]
pub struct ZeroCounts {
    pub lows: Tensor,
    pub highs: Tensor,
}

impl ZeroCounts {
    /// Counts of `len` tensors from the `first` on.
    pub fn span(self, first: usize, len: usize) -> ZeroCounts {
        let [lows, highs] = [self.lows, self.highs].map(|all| all.span(first, len));
        ZeroCounts { lows, highs }
    }

    /// Counts the zeros of `xs`.
    pub fn count(self, be: &dyn Backend, xs: &[Tensor]) {
        be.run(op::CountZeros { xs, lows: self.lows.set(), highs: self.highs.set() });
    }
}

/// Device buffers for the norm of gradients on the host.
pub struct Norms {
    /// By bucket.
    pub grads: Vec<Vec<GradSums>>,
    /// ZeRO 2 and 3: two windows f32 [1, n] for running sums from the host; n is the longest shard.
    pub sums: Option<Windows>,
}

impl Norms {
    /// Reserves the buffers `Norms::sums`.
    pub fn plan_sums(level: u8, buckets: &[BucketState], arena: &Arena) -> Option<Windows> {
        let longest = buckets
            .iter()
            .map(|bucket| bucket.own.len())
            .max()
            .unwrap_or(0);
        (level >= 2).then(|| Windows::plan(2, longest, DType::F32, arena))
    }
}

/// State of a step's gradients.
pub struct HostGrads {
    norms: Norms,
    micros: Cell<usize>,
    /// Micro-batches that the sums on the host include, by bucket.
    stored: Vec<Cell<usize>>,
    copies: RefCell<Ring<HostCopy>>,
}

/// Last copy between a window and the host.
struct HostCopy {
    /// Bucket whose running sums the window holds or is receiving; None after a copy to the host.
    fetched: Option<usize>,
    in_flight: Option<Transfer>,
}

impl HostGrads {
    pub fn new(buckets: &[BucketState], windows: usize, norms: Norms) -> HostGrads {
        HostGrads {
            norms,
            micros: Cell::new(0),
            stored: buckets.iter().map(|_| Cell::new(0)).collect(),
            copies: RefCell::new(Ring::new(windows)),
        }
    }

    pub fn begin_step(&self, be: &dyn Backend, micros: usize) {
        self.finish(be);
        self.micros.set(micros);
        self.stored.iter().for_each(|stored| stored.set(0));
    }

    /// Prepares the window of a block for its backward, and starts the fetch for the next block. No
    /// reduction may be running in the window.
    pub fn prepare(&self, params: &ShardedParams, index: usize, at: MicroBatch) {
        let bucket = &params.buckets[index];
        if bucket.grads.residence != Residence::Host {
            return;
        }
        self.begin_fetch(params, index);
        self.finish_copy(params.be, index);
        let is_empty = if params.level >= 2 { at.opens } else { self.stored[index].get() == 0 };
        if is_empty {
            params.be.run(op::Zero { x: bucket.grads.whole.set() });
        }
        // Copies out the gradients reduced during the previous block, during this one.
        params.accumulate_shard(index + 2);
        let next = index
            .checked_sub(1)
            .filter(|next| params.buckets[*next].module == Module::Block);
        // The next block's window is free unless gradients are being reduced in it.
        let is_free = self.stored[index].get() + 1 < self.micros.get() || !params.has_replicas();
        if let Some(next) = next.filter(|_| params.level < 2 && is_free) {
            self.begin_fetch(params, next);
        }
    }

    /// Starts fetching the running sums of a block into its window, which must be unused.
    fn begin_fetch(&self, params: &ShardedParams, index: usize) {
        let fetched = self
            .copies
            .borrow_mut()
            .contents(index)
            .as_ref()
            .and_then(|copy| copy.fetched);
        if fetched == Some(index) {
            return;
        }
        self.finish_copy(params.be, index);
        if params.level < 2 && self.stored[index].get() > 0 {
            let Values { stored, whole, .. } = params.buckets[index].grads;
            let in_flight = Some(params.be.transfer(stored, whole));
            *self.copies.borrow_mut().contents(index) =
                Some(HostCopy { fetched: Some(index), in_flight });
        }
    }

    /// Copies the running sums to the host. Called after every micro-batch but the last, at ZeRO 0 and 1.
    pub fn store_sums(&self, be: &dyn Backend, index: usize, bucket: &BucketState) {
        self.store(index, be.transfer(bucket.grads.whole, bucket.grads.stored));
    }

    /// Stores the reduced gradients of a micro-batch; `part` is their place in the block's window.
    pub fn store_reduced(
        &self,
        params: &ShardedParams,
        index: usize,
        part: Tensor,
        last_micro: bool,
    ) {
        let be = params.be;
        let own = params.buckets[index].grads.own;
        let has_sums = self.stored[index].get() > 0;
        if let Some(sums) = self.norms.sums.as_ref().filter(|_| has_sums) {
            let so_far = sums.view(index, part.numel());
            be.join_transfer(be.transfer(own, so_far));
            be.run(op::Copy { x: so_far, y: part.add() });
        }
        if last_micro {
            for sums in &self.norms.grads[index] {
                be.run(op::SquareSums { xs: &[sums.grad], y: sums.squares.set() });
                if let Some((grad, counts)) = sums.zeros {
                    counts.count(be, &[grad]);
                }
            }
        }
        self.store(index, be.transfer(part, own));
    }

    /// Records a copy of a block's gradients from its window to the host.
    fn store(&self, index: usize, transfer: Transfer) {
        let copy = HostCopy { fetched: None, in_flight: Some(transfer) };
        *self.copies.borrow_mut().contents(index) = Some(copy);
        self.stored[index].set(self.stored[index].get() + 1);
    }

    /// Waits until all gradients are on the host.
    pub fn finish(&self, be: &dyn Backend) {
        for transfer in self
            .copies
            .borrow_mut()
            .drain()
            .filter_map(|copy| copy.in_flight)
        {
            be.finish_transfer(transfer);
        }
    }

    /// Orders everything enqueued from now on after the copy of a window, which is then unused.
    fn finish_copy(&self, be: &dyn Backend, index: usize) {
        let copy = self.copies.borrow_mut().contents(index).take();
        if let Some(transfer) = copy.and_then(|copy| copy.in_flight) {
            be.join_transfer(transfer);
        }
    }
}
