//! Gradients of blocks on the host (`topology.offload.gradients: host`): a block's lie in a buffer
//! of the device while they are computed and reduced, else in the host's memory.
//!
//! | ZeRO | a micro-batch but the first begins | it ends | the last ends |
//! |---|---|---|---|
//! | 0, 1 | with the sums so far, from the host | these go to the host | reduced; the own share goes |
//! | 2, 3 | with zeros | reduced; the sums so far are added to the own share, which goes | as any |
//!
//! So everything is added up where, and in the order in which, it is without: the same bits. The host
//! computes nothing and is not waited for. Three buffers: while one is computed in, the gradients of
//! the block before leave another, and the sums of the block after come to the third. The squares for
//! the norm are summed as the last micro-batch's land.

use super::{BucketState, ShardedParams};
use base::DType;
use device::{Arena, Backend, Tensor, Transfer};
use model::Module;
use std::cell::{Cell, RefCell};

/// For each bucket: gradients, as they lie in its buffer, and where the sums of their squares go.
pub type Squares = Vec<Vec<(Vec<Tensor>, Tensor)>>;

/// What else the gradients' way needs on the device.
pub struct Norms {
    pub squares: Squares,
    /// ZeRO 2 and 3: f32 [1, n] twice, for the longest share: the sums so far, from the host.
    pub sums: Option<[Tensor; 2]>,
}

impl Norms {
    /// Room for the sums of shares.
    pub fn sums(level: u8, buckets: &[BucketState], arena: &Arena) -> Option<[Tensor; 2]> {
        let longest = buckets.iter().map(|bucket| bucket.own.len()).max().unwrap_or(0);
        (level >= 2).then(|| [0, 1].map(|_| arena.matrix(1, longest, DType::F32)))
    }
}

/// The state of a step's gradients, by bucket.
pub struct HostGrads {
    norms: Norms,
    micros: Cell<usize>,
    /// Micro-batches whose gradients are among the sums on the host.
    landed: Vec<Cell<usize>>,
    /// Whose sums are in each of the buffers or on their way there.
    holds: [Cell<Option<usize>>; 3],
    coming: RefCell<Vec<Option<Transfer>>>,
    going: RefCell<Vec<Option<Transfer>>>,
}

impl HostGrads {
    pub fn new(buckets: &[BucketState], norms: Norms) -> HostGrads {
        let none = || buckets.iter().map(|_| None).collect();
        HostGrads {
            norms,
            micros: Cell::new(0),
            landed: buckets.iter().map(|_| Cell::new(0)).collect(),
            holds: Default::default(),
            coming: RefCell::new(none()),
            going: RefCell::new(none()),
        }
    }

    pub fn begin_step(&self, micros: usize) {
        self.micros.set(micros);
        self.landed.iter().for_each(|landed| landed.set(0));
        self.holds.iter().for_each(|holds| holds.set(None));
    }

    /// Makes the buffer of a block, in which nothing is being reduced, ready for its backward, and
    /// begins with that of the next one.
    pub fn open(&self, params: &ShardedParams, number: usize) {
        let bucket = &params.buckets[number];
        if bucket.host_grads.is_none() {
            return;
        }
        self.begin(params, number);
        self.join(params.be, &self.coming, number);
        self.holds[number % 3].set(None);
        if params.level >= 2 || self.landed[number].get() == 0 {
            params.be.zero(bucket.grads);
        }
        // What was reduced during the block before leaves during this one.
        params.accumulate_shard((number + 2) % 3);
        let next = number.checked_sub(1).filter(|b| params.buckets[*b].module == Module::Block);
        // Its buffer is free now, but for gradients that were reduced in it.
        let free = self.landed[number].get() + 1 < self.micros.get() || !params.reduces();
        if let Some(next) = next.filter(|_| params.level < 2 && free) {
            self.begin(params, next);
        }
    }

    /// Nothing uses the buffer of a block; its sums so far are on their way there.
    fn begin(&self, params: &ShardedParams, number: usize) {
        let (be, holds) = (params.be, &self.holds[number % 3]);
        if holds.get() == Some(number) {
            return;
        }
        let in_buffer = (0..params.buckets.len()).filter(|other| other % 3 == number % 3);
        for other in in_buffer {
            self.join(be, &self.coming, other);
            self.join(be, &self.going, other);
        }
        let bucket = &params.buckets[number];
        let begun = params.level < 2 && self.landed[number].get() > 0;
        if let Some(host) = bucket.host_grads.filter(|_| begun) {
            self.coming.borrow_mut()[number] = Some(be.transfer(host, bucket.grads));
            holds.set(Some(number));
        }
    }

    /// After a micro-batch but the last, at ZeRO 0 and 1.
    pub fn leave(&self, be: &dyn Backend, number: usize, bucket: &BucketState) {
        let Some(host) = bucket.host_grads else { return };
        self.going.borrow_mut()[number] = Some(be.transfer(bucket.grads, host));
        self.landed[number].set(self.landed[number].get() + 1);
    }

    /// `part` of a block's buffer has the gradients of a micro-batch, reduced.
    pub fn land(&self, params: &ShardedParams, number: usize, part: Tensor, last_micro: bool) {
        let (be, bucket) = (params.be, &params.buckets[number]);
        let landed = self.landed[number].get();
        if let Some(sums) = self.norms.sums.filter(|_| landed > 0) {
            let so_far = sums[number % 2].span(0, part.numel());
            self.join(be, &self.going, number);
            be.join_transfer(be.transfer(bucket.own_grads, so_far));
            be.copy(so_far, part.add());
        }
        if last_micro {
            for (grads, sums) in &self.norms.squares[number] {
                be.square_sums(grads, sums.set());
            }
        }
        self.going.borrow_mut()[number] = Some(be.transfer(part, bucket.own_grads));
        self.landed[number].set(landed + 1);
    }

    /// Waits until all gradients are on the host.
    pub fn finish(&self, be: &dyn Backend) {
        for transfers in [&self.coming, &self.going] {
            let all = std::mem::take(&mut *transfers.borrow_mut());
            *transfers.borrow_mut() = all.iter().map(|_| None).collect();
            all.into_iter().flatten().for_each(|transfer| be.finish_transfer(transfer));
        }
    }

    /// What is enqueued from now on comes after a transfer of a bucket, if one is under way.
    fn join(&self, be: &dyn Backend, of: &RefCell<Vec<Option<Transfer>>>, number: usize) {
        if let Some(transfer) = of.borrow_mut()[number].take() {
            be.join_transfer(transfer);
        }
    }
}
