//! AdamW over the flat buffers, with the global norm clipped first.

use super::memory::Scalars;
use crate::device::{AdamW, Backend, Tensor};
use crate::manifest;
use crate::model::{Layout, Slot};

/// What the optimizer keeps of each weight, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A run of weights with one decay setting, in each flat buffer.
struct Span {
    weight_decay: f32,
    grad: Tensor,
    live: Tensor,
    kept: [Tensor; 3],
}

pub struct Optimizer {
    spans: Vec<Span>,
    /// Each weight's gradient, for its share of the norm.
    grads: Vec<Tensor>,
    live: Tensor,
    kept: [Tensor; 3],
    rule: AdamW,
    max_norm: f32,
}

impl Optimizer {
    pub fn new(
        layout: &Layout,
        how: &manifest::Optimizer,
        live: Tensor,
        grads: Tensor,
        master: Tensor,
        [first, second]: [Tensor; 2],
    ) -> Optimizer {
        let manifest::Optimizer::AdamW { beta1, beta2, eps, weight_decay, clip } = *how;
        let kept = [master, first, second];
        let span = |(range, decay): (std::ops::Range<usize>, bool)| {
            let cut = |flat: Tensor| flat.span(range.start, range.len());
            Span {
                weight_decay: if decay { weight_decay } else { 0.0 },
                grad: cut(grads),
                live: cut(live),
                kept: kept.map(cut),
            }
        };
        Optimizer {
            spans: layout.decay_spans().into_iter().map(span).collect(),
            grads: layout.slots().map(|slot| slot.tensor(grads)).collect(),
            live,
            kept,
            rule: AdamW { lr: 0.0, beta1, beta2, eps, weight_decay, step: 0 },
            max_norm: clip.unwrap_or(f32::INFINITY),
        }
    }

    /// Clips and updates; `step` counts from 1. A norm that is not finite updates nothing.
    pub fn step(&self, be: &dyn Backend, s: &Scalars, lr: f64, step: u64) {
        be.square_sums(&self.grads, s.sums.set());
        be.clip(s.sums, self.max_norm, s.clip.set());
        let factor = s.clip.span(1, 1);
        for span in &self.spans {
            let weight_decay = span.weight_decay;
            let rule = AdamW { lr: lr as f32, step, weight_decay, ..self.rule };
            let [master, first, second] = span.kept;
            be.adamw(&rule, factor, span.grad, master, first, second, span.live);
        }
    }

    /// What is kept of one weight.
    pub fn kept(&self, moment: Moment, slot: &Slot) -> Tensor {
        slot.tensor(self.kept[moment as usize])
    }

    /// The live copy of one weight.
    pub fn live(&self, slot: &Slot) -> Tensor {
        slot.tensor(self.live)
    }

    /// Rounds all master weights into the live ones, and zeroes nothing else.
    pub fn publish(&self, be: &dyn Backend) {
        if self.kept[0].addr() != self.live.addr() {
            be.copy(self.kept[0], self.live.set());
        }
    }
}
