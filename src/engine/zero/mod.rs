//! Custody of weights and gradients among data-parallel ranks (ZeRO: Rajbhandari et al. 2020).
//!
//! | stage | weights | gradients | optimizer |
//! |---|---|---|---|
//! | 0 | whole | whole, all-reduced after the last micro-batch | whole |
//! | 1 | whole, gathered after the update | whole, reduce-scattered after the last | own share |
//! | 2 | as 1 | blocks: own share, reduce-scattered after each micro-batch | own share |
//! | 3 | own share; a block's are gathered one ahead | as 2 | own share |
//!
//! A bucket is divided in equal shards. The embedding and the head stay whole through a step.
//! Everything here is begun and goes on beside the computation: a block of stages 2 and 3 has until
//! the block after the next one needs its buffer.

#[cfg(test)]
mod tests;

use super::memory::Arenas;
use crate::base::DType;
use crate::comm::{Collective, Group, Pending};
use crate::device::{Arena, Backend, Tensor};
use crate::model::{Bucket, Custody, Layout, Params, Place, Slot, Split, Weight};
use std::cell::RefCell;
use std::ops::Range;

/// Where a bucket's weights and gradients lie: whole (for forward and backward, perhaps for a
/// while), and this rank's own part (all of it, at stage 0).
struct Held {
    place: Place,
    own: Range<usize>,
    weights: Tensor,
    own_weights: Tensor,
    grads: Tensor,
    own_grads: Tensor,
    weights_by_name: Params,
    grads_by_name: Params,
}

/// What is under way.
#[derive(Default)]
struct Flight {
    /// Bucket → its gather, begun.
    gathers: Vec<Option<Pending>>,
    reductions: Vec<Pending>,
    /// Of gradients that are partial sums among tensor-parallel ranks.
    partial: Vec<Pending>,
    /// Stages 2 and 3: the block whose gradients are being reduced in each of the two buffers.
    scattering: [Option<(usize, Pending)>; 2],
    /// Stage 3: the block in each of the two buffers, and the block asked for last.
    between: Between,
}

/// What custody remembers between two passes, where nothing is under way: which blocks stage 3 has
/// whole, and the one asked for last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Between {
    gathered: [Option<usize>; 2],
    last: usize,
}

pub struct Zero {
    level: u8,
    held: Vec<Held>,
    flight: RefCell<Flight>,
}

impl Zero {
    /// Lays out weights (`live`) and gradients. `level` is 0 where there is nobody to share with.
    pub fn new(level: u8, dp_rank: usize, layout: &Layout, live: DType, at: &Arenas) -> Zero {
        let dp = layout.part.dp;
        let longest = layout.buckets.iter().map(|bucket| bucket.range.len()).max().unwrap_or(0);
        let buffer = |arena: &Arena, dtype| arena.matrix(1, longest, dtype);
        let windows = (level == 3).then(|| [buffer(&at.weights, live), buffer(&at.weights, live)]);
        let landing = || [buffer(&at.grads, DType::F32), buffer(&at.grads, DType::F32)];
        let landing = (level >= 2).then(landing);
        let hold = |(i, bucket): (usize, &Bucket)| {
            let len = bucket.range.len();
            let block = bucket.place == Place::Block;
            let own = if level == 0 { bucket.range.clone() } else { bucket.shard(dp, dp_rank) };
            let (offset, share) = (own.start - bucket.range.start, own.len());
            let weights = match &windows {
                Some(windows) if block => windows[i % 2].span(0, len),
                _ => at.weights.matrix(1, len, live),
            };
            let grads = match &landing {
                Some(landing) if block => landing[i % 2].span(0, len),
                _ => at.grads.matrix(1, len, DType::F32),
            };
            let own_weights = match level == 3 {
                true => at.weights.matrix(1, share, live),
                false => weights.span(offset, share),
            };
            let own_grads = match level >= 2 && block {
                true => at.grads.matrix(1, share, DType::F32),
                false => grads.span(offset, share),
            };
            Held {
                place: bucket.place,
                own,
                weights,
                own_weights,
                grads,
                own_grads,
                weights_by_name: Params::new(bucket, weights),
                grads_by_name: Params::new(bucket, grads),
            }
        };
        let held: Vec<Held> = layout.buckets.iter().enumerate().map(hold).collect();
        let gathers = held.iter().map(|_| None).collect();
        Zero { level, held, flight: RefCell::new(Flight { gathers, ..Flight::default() }) }
    }

    /// What this rank updates of a bucket, in elements of the layout.
    pub fn own(&self, bucket: usize) -> Range<usize> {
        self.held[bucket].own.clone()
    }

    /// Where that lies: live weights and gradients.
    pub fn own_weights(&self, bucket: usize) -> Tensor {
        self.held[bucket].own_weights
    }

    /// Where a bucket's live weights lie, if they are whole between two steps.
    pub fn whole_weights(&self, bucket: usize) -> Option<Tensor> {
        let held = &self.held[bucket];
        (self.level < 3 || held.place != Place::Block).then_some(held.weights)
    }

    pub fn own_grads(&self, bucket: usize) -> Tensor {
        self.held[bucket].own_grads
    }

    /// Whether each rank updates a share only.
    pub fn shares(&self) -> bool {
        self.level > 0
    }

    /// A step begins: no gradient yet.
    pub fn begin(&self, be: &dyn Backend) {
        // The buffers that blocks share are zero whenever a block enters them.
        let zeroed = |held: &Held| match self.passes_on(held) {
            true => be.zero(held.own_grads),
            false => be.zero(held.grads),
        };
        self.held.iter().for_each(zeroed);
    }

    /// Whether its gradients are only passing through, micro-batch by micro-batch.
    fn passes_on(&self, held: &Held) -> bool {
        self.level >= 2 && held.place == Place::Block
    }

    /// This rank's weights were updated: the others want them.
    pub fn updated(&self, group: &dyn Group) {
        let flight = &mut *self.flight.borrow_mut();
        flight.between.gathered = [None; 2];
        for (held, gather) in self.held.iter().zip(&mut flight.gathers) {
            let kept = self.level == 3 && held.place == Place::Block;
            if self.level > 0 && !kept {
                *gather = Some(group.begin(held.gather()));
            }
        }
    }

    /// What it remembers, unless something is under way.
    pub fn between(&self) -> Option<Between> {
        let flight = &*self.flight.borrow();
        let gathers = flight.gathers.iter().all(Option::is_none);
        let sums = flight.reductions.is_empty() && flight.partial.is_empty();
        let scattering = flight.scattering.iter().all(Option::is_none);
        (gathers && sums && scattering).then_some(flight.between)
    }

    /// As after a pass that left this.
    pub fn resume(&self, between: Between) {
        self.flight.borrow_mut().between = between;
    }

    /// Waits for every gather, so that weights can be read.
    pub fn settle(&self, group: &dyn Group) {
        let flight = &mut *self.flight.borrow_mut();
        flight.gathers.iter_mut().filter_map(Option::take).for_each(|p| group.finish(p));
    }
}

impl Held {
    fn gather(&self) -> Collective {
        Collective::AllGather { part: self.own_weights, whole: self.weights }
    }

    /// Where this rank's share of a reduce-scatter comes to lie.
    fn share_of_grads(&self, start: usize) -> Tensor {
        self.grads.span(self.own.start - start, self.own.len())
    }
}

/// Custody through one step, on a device and among the ranks of two groups.
pub struct Keeper<'a> {
    pub be: &'a dyn Backend,
    pub zero: &'a Zero,
    pub layout: &'a Layout,
    pub data: &'a dyn Group,
    /// The tensor-parallel ranks, for what is begun here.
    pub partial: &'a dyn Group,
    /// Sequence parallelism: gradients of weights that are not split are partial sums.
    pub sequence: bool,
    /// Whether another stage holds a copy of the embedding (or this one the copy).
    pub tied: bool,
}

impl Keeper<'_> {
    /// After the last micro-batch: the tied embedding's gradients are summed over `ends` (the first
    /// and the last stage), and all reductions awaited.
    pub fn finish(&self, ends: &dyn Group) {
        if self.tied {
            for (bucket, held) in self.zero.held.iter().enumerate() {
                if matches!(held.place, Place::Embed | Place::TiedCopy) {
                    let token = held.grads_by_name[Weight::TokenEmbed];
                    ends.all_reduce(token);
                    self.reduce(bucket);
                }
            }
        }
        self.join();
    }

    /// Awaits all reductions.
    pub fn join(&self) {
        (0..2).for_each(|buffer| self.land(buffer));
        let flight = &mut *self.zero.flight.borrow_mut();
        flight.partial.drain(..).for_each(|pending| self.partial.finish(pending));
        flight.reductions.drain(..).for_each(|pending| self.data.finish(pending));
    }

    /// Begins to sum a bucket's gradients over the ranks. What is begun runs in order, so the sums
    /// over tensor-parallel ranks are there before the replicas'.
    fn reduce(&self, bucket: usize) {
        let flight = &mut *self.zero.flight.borrow_mut();
        let held = &self.zero.held[bucket];
        let layout = &self.layout.buckets[bucket];
        if self.sequence {
            let partial = layout.slots.iter().filter(|slot| slot.spec.split == Split::Whole);
            let sum = |slot: &Slot| Collective::AllReduce(slot.tensor(layout, held.grads));
            flight.partial.extend(partial.map(|slot| self.partial.begin(sum(slot))));
        }
        let part = held.share_of_grads(layout.range.start);
        let pending = self.data.begin(match self.zero.level {
            0 => Collective::AllReduce(held.grads),
            _ => Collective::ReduceScatter { whole: held.grads, part },
        });
        match self.zero.passes_on(held) {
            true => flight.scattering[bucket % 2] = Some((bucket, pending)),
            false => flight.reductions.push(pending),
        }
    }

    /// Stages 2 and 3: adds up what was reduced in one of the two buffers, and clears it for the
    /// next block.
    fn land(&self, buffer: usize) {
        let landed = self.zero.flight.borrow_mut().scattering[buffer].take();
        if let Some((bucket, pending)) = landed {
            self.data.finish(pending);
            let held = &self.zero.held[bucket];
            let part = held.share_of_grads(self.layout.buckets[bucket].range.start);
            self.be.copy(part, held.own_grads.add());
            self.be.zero(held.grads);
        }
    }

    /// Stage 3: makes a block whole, and begins to gather the one after it in the direction of travel.
    fn gather_block(&self, bucket: usize) {
        let zero = self.zero;
        let flight = &mut *zero.flight.borrow_mut();
        if flight.between.gathered[bucket % 2] != Some(bucket) {
            flight.gathers[bucket] = Some(self.data.begin(zero.held[bucket].gather()));
            flight.between.gathered[bucket % 2] = Some(bucket);
        }
        if let Some(pending) = flight.gathers[bucket].take() {
            self.data.finish(pending);
        }
        let next =
            if bucket < flight.between.last { bucket.checked_sub(1) } else { Some(bucket + 1) };
        flight.between.last = bucket;
        let blocks = |b: &usize| zero.held.get(*b).is_some_and(|held| held.place == Place::Block);
        if let Some(next) = next.filter(blocks)
            && flight.between.gathered[next % 2] != Some(next)
        {
            // The buffer's last tenant may still be on its way: nobody wants it now.
            if let Some(late) =
                flight.between.gathered[next % 2].and_then(|b| flight.gathers[b].take())
            {
                self.data.finish(late);
            }
            flight.gathers[next] = Some(self.data.begin(zero.held[next].gather()));
            flight.between.gathered[next % 2] = Some(next);
        }
    }
}

impl Custody for Keeper<'_> {
    fn weights(&self, bucket: usize) -> &Params {
        let held = &self.zero.held[bucket];
        if self.zero.level == 3 && held.place == Place::Block {
            self.gather_block(bucket);
        } else if let Some(pending) = self.zero.flight.borrow_mut().gathers[bucket].take() {
            self.data.finish(pending);
        }
        &held.weights_by_name
    }

    fn release(&self, _: usize) {}

    fn grads(&self, bucket: usize) -> &Params {
        let held = &self.zero.held[bucket];
        if self.zero.passes_on(held) {
            self.land(bucket % 2);
        }
        &held.grads_by_name
    }

    fn grads_done(&self, bucket: usize, last_micro: bool) {
        let held = &self.zero.held[bucket];
        let later = self.tied && held.place == Place::Embed; // `finish` reduces it with its copy
        if (last_micro || self.zero.passes_on(held)) && !later {
            self.reduce(bucket);
        }
    }
}
