//! AdamW over what this rank owns, with the global norm clipped first.

use super::memory::{Arenas, Scalars};
use super::zero::Zero;
use super::{Groups, scaler};
use crate::base::DType;
use crate::device::{AdamW, Backend, Scaling, Tensor};
use crate::manifest::{self, Manifest};
use crate::model::{Layout, Slot, Split};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What the optimizer keeps of each weight, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Moment {
    /// The weight itself (the live weight, in f32 training).
    Master,
    /// Running mean of the gradient.
    First,
    /// Running mean of its square.
    Second,
}

impl Moment {
    pub const ALL: [Moment; 3] = [Moment::Master, Moment::First, Moment::Second];
}

/// A run of weights with one decay setting, wherever each of its kinds lies.
struct Span {
    weight_decay: f32,
    grad: Tensor,
    live: Tensor,
    kept: [Tensor; 3],
}

/// What is owned of a bucket.
struct Owned {
    first: usize,
    live: Tensor,
    kept: [Tensor; 3],
}

pub struct Optimizer {
    owned: Vec<Owned>,
    spans: Vec<Span>,
    /// Gradients that count in the norm, then those that count on another rank.
    grads: Vec<Tensor>,
    /// The weights they belong to.
    names: Vec<String>,
    counted: usize,
    rule: AdamW,
    scaling: Scaling,
    max_norm: f32,
}

impl Optimizer {
    /// Lays out what is kept of the weights that `zero` says are this rank's.
    pub fn new(layout: &Layout, zero: &Zero, m: &Manifest, at: &Arenas) -> Optimizer {
        let manifest::Optimizer::AdamW { beta1, beta2, eps, weight_decay, clip } = m.optimizer;
        let own = |bucket: usize| {
            let (live, len) = (zero.own_weights(bucket), zero.own(bucket).len());
            let keep = || at.optimizer.matrix(1, len, DType::F32);
            let master = if live.dtype == DType::F32 { live } else { keep() };
            Owned { first: zero.own(bucket).start, live, kept: [master, keep(), keep()] }
        };
        let owned: Vec<Owned> = (0..layout.buckets.len()).map(own).collect();
        let mut spans = Vec::new();
        let (mut counted, mut elsewhere) = (Vec::new(), Vec::new());
        for (bucket, own) in owned.iter().enumerate() {
            for (slot, range) in layout.buckets[bucket].within(zero.own(bucket)) {
                let cut = |flat: Tensor| flat.span(range.start - own.first, range.len());
                let grad = cut(zero.own_grads(bucket));
                let weight_decay = if slot.spec.decay { weight_decay } else { 0.0 };
                spans.push(Span {
                    weight_decay,
                    grad,
                    live: cut(own.live),
                    kept: own.kept.map(cut),
                });
                let repeated = slot.spec.split == Split::Whole && layout.part.tp_rank > 0;
                let list = if repeated || slot.copy { &mut elsewhere } else { &mut counted };
                list.push((grad, slot.name.clone()));
            }
        }
        let count = counted.len();
        let (grads, names) = counted.into_iter().chain(elsewhere).unzip();
        Optimizer {
            owned,
            spans,
            grads,
            names,
            counted: count,
            rule: AdamW { lr: 0.0, beta1, beta2, eps, weight_decay },
            scaling: scaler::scaling(m),
            max_norm: clip.unwrap_or(f32::INFINITY),
        }
    }

    /// Number of gradients whose squares are summed apart.
    pub fn sums(&self) -> usize {
        self.grads.len()
    }

    /// The weights those belong to.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Clips by the norm over all ranks and updates. A norm that is not finite updates nothing, on
    /// any rank: all have the same.
    pub fn step(&self, be: &dyn Backend, groups: &Groups, shares: bool, s: &Scalars, lr: f64) {
        be.square_sums(&self.grads, s.sums.set());
        be.sum(s.sums.span(0, self.counted), s.norm.set());
        groups.tensor.all_reduce(s.norm);
        groups.pipeline.all_reduce(s.norm);
        if shares {
            groups.data.all_reduce(s.norm);
        }
        be.clip(s.norm, s.scaler.scale, self.max_norm, s.clip.set());
        let rule = AdamW { lr: lr as f32, ..self.rule };
        be.pace(&rule, &self.scaling, s.scaler, s.pace);
        for span in &self.spans {
            let rule = AdamW { weight_decay: span.weight_decay, ..rule };
            let [master, first, second] = span.kept;
            be.adamw(&rule, s.pace, span.grad, master, first, second, span.live);
        }
    }

    /// What is kept of a range of a bucket, in elements of the layout, which this rank owns.
    pub fn kept(&self, moment: Moment, bucket: usize, range: Range<usize>) -> Tensor {
        let own = &self.owned[bucket];
        own.kept[moment as usize].span(range.start - own.first, range.len())
    }

    /// The part of a weight that this rank owns, as a range of the slot's elements, and where its
    /// master lies.
    pub fn master_part(&self, slot: &Slot) -> Option<(Range<usize>, Tensor)> {
        let own = &self.owned[slot.bucket];
        let start = slot.offset.max(own.first);
        let end = slot.range().end.min(own.first + own.live.numel());
        (start < end).then(|| {
            let part = own.kept[0].span(start - own.first, end - start);
            (start - slot.offset..end - slot.offset, part)
        })
    }

    /// All that is kept of this rank's part of a bucket, by moment.
    pub fn owned(&self, bucket: usize) -> [Tensor; 3] {
        self.owned[bucket].kept
    }

    /// Rounds all master weights into the live ones.
    pub fn publish(&self, be: &dyn Backend) {
        for own in self.owned.iter().filter(|own| own.kept[0].addr() != own.live.addr()) {
            be.copy(own.kept[0], own.live.set());
        }
    }
}
