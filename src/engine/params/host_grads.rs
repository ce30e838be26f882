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

use super::{BucketState, ShardedParams};
use base::DType;
use device::{Arena, Backend, Tensor, Transfer, op};
use model::Module;
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
    /// ZeRO 2 and 3: two buffers f32 [1, n] for running sums from the host; n is the longest shard.
    pub sums: Option<[Tensor; 2]>,
}

impl Norms {
    /// Reserves the buffers `Norms::sums`.
    pub fn plan_sums(level: u8, buckets: &[BucketState], arena: &Arena) -> Option<[Tensor; 2]> {
        let longest = buckets
            .iter()
            .map(|bucket| bucket.own.len())
            .max()
            .unwrap_or(0);
        (level >= 2).then(|| [0, 1].map(|_| arena.matrix(1, longest, DType::F32)))
    }
}

/// State of a step's gradients, by bucket.
pub struct HostGrads {
    norms: Norms,
    micros: Cell<usize>,
    /// Micro-batches that the sums on the host include.
    stored: Vec<Cell<usize>>,
    /// Bucket whose sums each buffer holds or is receiving.
    holds: [Cell<Option<usize>>; 3],
    fetches: RefCell<Vec<Option<Transfer>>>,
    stores: RefCell<Vec<Option<Transfer>>>,
}

impl HostGrads {
    pub fn new(buckets: &[BucketState], norms: Norms) -> HostGrads {
        let none = || buckets.iter().map(|_| None).collect();
        HostGrads {
            norms,
            micros: Cell::new(0),
            stored: buckets.iter().map(|_| Cell::new(0)).collect(),
            holds: Default::default(),
            fetches: RefCell::new(none()),
            stores: RefCell::new(none()),
        }
    }

    pub fn begin_step(&self, micros: usize) {
        self.micros.set(micros);
        self.stored.iter().for_each(|stored| stored.set(0));
        self.holds.iter().for_each(|holds| holds.set(None));
    }

    /// Prepares the buffer of a block for its backward, and starts the fetch for the next block. No
    /// reduction may be running in the buffer.
    pub fn prepare(&self, params: &ShardedParams, index: usize) {
        let bucket = &params.buckets[index];
        if bucket.host_grads.is_none() {
            return;
        }
        self.begin_fetch(params, index);
        self.join(params.be, &self.fetches, index);
        self.holds[index % 3].set(None);
        if params.level >= 2 || self.stored[index].get() == 0 {
            params.be.run(op::Zero { x: bucket.grads.set() });
        }
        // Copies out the gradients reduced during the previous block, during this one.
        params.accumulate_shard((index + 2) % 3);
        let next = index
            .checked_sub(1)
            .filter(|next| params.buckets[*next].module == Module::Block);
        // The next block's buffer is free unless gradients are being reduced in it.
        let is_free = self.stored[index].get() + 1 < self.micros.get() || !params.has_replicas();
        if let Some(next) = next.filter(|_| params.level < 2 && is_free) {
            self.begin_fetch(params, next);
        }
    }

    /// Starts fetching the running sums of a block into its buffer, which must be unused.
    fn begin_fetch(&self, params: &ShardedParams, index: usize) {
        let be = params.be;
        let holds = &self.holds[index % 3];
        if holds.get() == Some(index) {
            return;
        }
        for other in (index % 3..params.buckets.len()).step_by(3) {
            self.join(be, &self.fetches, other);
            self.join(be, &self.stores, other);
        }
        let bucket = &params.buckets[index];
        let has_sums = params.level < 2 && self.stored[index].get() > 0;
        if let Some(host) = bucket.host_grads.filter(|_| has_sums) {
            self.fetches.borrow_mut()[index] = Some(be.transfer(host, bucket.grads));
            holds.set(Some(index));
        }
    }

    /// Copies the running sums to the host. Called after every micro-batch but the last, at ZeRO 0 and 1.
    pub fn store_sums(&self, be: &dyn Backend, index: usize, bucket: &BucketState) {
        let Some(host) = bucket.host_grads else { return };
        self.stores.borrow_mut()[index] = Some(be.transfer(bucket.grads, host));
        self.stored[index].set(self.stored[index].get() + 1);
    }

    /// Stores the reduced gradients of a micro-batch; `part` is their place in the block's buffer.
    pub fn store_reduced(
        &self,
        params: &ShardedParams,
        index: usize,
        part: Tensor,
        last_micro: bool,
    ) {
        let be = params.be;
        let bucket = &params.buckets[index];
        let stored = self.stored[index].get();
        if let Some(sums) = self.norms.sums.filter(|_| stored > 0) {
            let so_far = sums[index % 2].span(0, part.numel());
            self.join(be, &self.stores, index);
            be.join_transfer(be.transfer(bucket.own_grads, so_far));
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
        self.stores.borrow_mut()[index] = Some(be.transfer(part, bucket.own_grads));
        self.stored[index].set(stored + 1);
    }

    /// Waits until all gradients are on the host.
    pub fn finish(&self, be: &dyn Backend) {
        for transfers in [&self.fetches, &self.stores] {
            for transfer in transfers.borrow_mut().iter_mut().filter_map(Option::take) {
                be.finish_transfer(transfer);
            }
        }
    }

    /// Orders everything enqueued from now on after the transfer of a bucket, if one is in flight.
    fn join(&self, be: &dyn Backend, transfers: &RefCell<Vec<Option<Transfer>>>, index: usize) {
        if let Some(transfer) = transfers.borrow_mut()[index].take() {
            be.join_transfer(transfer);
        }
    }
}
