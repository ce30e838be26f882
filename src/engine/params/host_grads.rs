//! Gradients of blocks on the host (`topology.offload.gradients: host`). A device buffer holds a
//! block's gradients while they are computed and reduced; host memory holds them otherwise.
//!
//! | ZeRO | a later micro-batch starts | it ends | the last one ends |
//! |---|---|---|---|
//! | 0, 1 | from the running sums, fetched | the sums are copied back | reduced; the own share is copied |
//! | 2, 3 | from zeros | reduced; the running sums are added to the own share, which is copied | the same |
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

/// Per bucket: its gradients as views of its buffer, and the destination of the sums of their
/// squares.
pub type Squares = Vec<Vec<(Vec<Tensor>, Tensor)>>;

/// Device buffers for the norm of gradients on the host.
pub struct Norms {
    pub squares: Squares,
    /// ZeRO 2 and 3: two of f32 [1, n], n the longest share: running sums from the host.
    pub sums: Option<[Tensor; 2]>,
}

impl Norms {
    /// Reserves buffers for the sums of shares.
    pub fn sums(level: u8, buckets: &[BucketState], arena: &Arena) -> Option<[Tensor; 2]> {
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
    pub fn prepare(&self, params: &ShardedParams, number: usize) {
        let bucket = &params.buckets[number];
        if bucket.host_grads.is_none() {
            return;
        }
        self.begin_fetch(params, number);
        self.join(params.be, &self.fetches, number);
        self.holds[number % 3].set(None);
        if params.level >= 2 || self.stored[number].get() == 0 {
            params.be.run(op::Zero { x: bucket.grads.set() });
        }
        // Copies out the gradients reduced during the previous block, during this one.
        params.accumulate_shard((number + 2) % 3);
        let next = number
            .checked_sub(1)
            .filter(|b| params.buckets[*b].module == Module::Block);
        // The next block's buffer is free unless gradients are being reduced in it.
        let free = self.stored[number].get() + 1 < self.micros.get() || !params.reduces();
        if let Some(next) = next.filter(|_| params.level < 2 && free) {
            self.begin_fetch(params, next);
        }
    }

    /// Starts fetching the running sums of a block into its buffer, which must be unused.
    fn begin_fetch(&self, params: &ShardedParams, number: usize) {
        let be = params.be;
        let holds = &self.holds[number % 3];
        if holds.get() == Some(number) {
            return;
        }
        let in_buffer = (0..params.buckets.len()).filter(|other| other % 3 == number % 3);
        for other in in_buffer {
            self.join(be, &self.fetches, other);
            self.join(be, &self.stores, other);
        }
        let bucket = &params.buckets[number];
        let has_sums = params.level < 2 && self.stored[number].get() > 0;
        if let Some(host) = bucket.host_grads.filter(|_| has_sums) {
            self.fetches.borrow_mut()[number] = Some(be.transfer(host, bucket.grads));
            holds.set(Some(number));
        }
    }

    /// Copies the running sums to the host. After every micro-batch but the last, at ZeRO 0 and 1.
    pub fn store_sums(&self, be: &dyn Backend, number: usize, bucket: &BucketState) {
        let Some(host) = bucket.host_grads else { return };
        self.stores.borrow_mut()[number] = Some(be.transfer(bucket.grads, host));
        self.stored[number].set(self.stored[number].get() + 1);
    }

    /// Stores the reduced gradients of a micro-batch; `part` is their place in the block's buffer.
    pub fn store_reduced(
        &self,
        params: &ShardedParams,
        number: usize,
        part: Tensor,
        last_micro: bool,
    ) {
        let be = params.be;
        let bucket = &params.buckets[number];
        let stored = self.stored[number].get();
        if let Some(sums) = self.norms.sums.filter(|_| stored > 0) {
            let so_far = sums[number % 2].span(0, part.numel());
            self.join(be, &self.stores, number);
            be.join_transfer(be.transfer(bucket.own_grads, so_far));
            be.run(op::Copy { x: so_far, y: part.add() });
        }
        if last_micro {
            for (grads, sums) in &self.norms.squares[number] {
                be.run(op::SquareSums { xs: grads, y: sums.set() });
            }
        }
        self.stores.borrow_mut()[number] = Some(be.transfer(part, bucket.own_grads));
        self.stored[number].set(stored + 1);
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
    fn join(&self, be: &dyn Backend, transfers: &RefCell<Vec<Option<Transfer>>>, number: usize) {
        if let Some(transfer) = transfers.borrow_mut()[number].take() {
            be.join_transfer(transfer);
        }
    }
}
