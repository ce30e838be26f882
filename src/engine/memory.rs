//! Every byte a rank needs: laid out once to measure, reserved, laid out again for good.

use super::groups::{part, seat, slots};
use super::optimizer::Optimizer;
use super::zero::Zero;
use super::{Groups, Outcome, audit, context, scaler};
use crate::base::{Bytes, DType};
use crate::device::{Arena, Backend, OutOfMemory, Scaler, Tensor};
use crate::manifest::{Manifest, Position};
use crate::model::{Cx, Inputs, Layout, Slots, Work};
use crate::plan::schedule;
use std::fmt;

/// One region for each purpose.
pub struct Arenas {
    pub weights: Arena,
    pub grads: Arena,
    pub optimizer: Arena,
    pub stash: Arena,
    pub scratch: Arena,
    pub inputs: Arena,
}

impl Arenas {
    pub fn measuring() -> Arenas {
        Arenas {
            weights: Arena::measuring(),
            grads: Arena::measuring(),
            optimizer: Arena::measuring(),
            stash: Arena::measuring(),
            scratch: Arena::measuring(),
            inputs: Arena::measuring(),
        }
    }

    /// Arenas with memory for what was laid out in these.
    pub fn reserve(&self, be: &dyn Backend) -> Result<Arenas, OutOfMemory> {
        Ok(Arenas {
            weights: Arena::new(be, self.weights.peak())?,
            grads: Arena::new(be, self.grads.peak())?,
            optimizer: Arena::new(be, self.optimizer.peak())?,
            stash: Arena::new(be, self.stash.peak())?,
            scratch: Arena::new(be, self.scratch.peak())?,
            inputs: Arena::new(be, self.inputs.peak())?,
        })
    }

    /// With the memory that the device's ops hold.
    pub fn bill(&self, workspace: Bytes) -> Bill {
        let bytes = |arena: &Arena| Bytes(arena.peak() as u64);
        let mut rows = vec![
            ("weights", bytes(&self.weights)),
            ("gradients", bytes(&self.grads)),
            ("optimizer", bytes(&self.optimizer)),
            ("stash", bytes(&self.stash)),
            ("scratch", bytes(&self.scratch)),
            ("inputs", bytes(&self.inputs)),
        ];
        if workspace.0 > 0 {
            rows.push(("workspace", workspace));
        }
        Bill { rows }
    }
}

/// What a rank reserves, by purpose; prints as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    pub rows: Vec<(&'static str, Bytes)>,
}

impl Bill {
    pub fn total(&self) -> Bytes {
        Bytes(self.rows.iter().map(|(_, bytes)| bytes.0).sum())
    }
}

impl fmt::Display for Bill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, bytes) in &self.rows {
            write!(f, "{name} {bytes} · ")?;
        }
        write!(f, "total {}", self.total())
    }
}

/// Small results of a step. Those that the host reads lie together: one message a step.
pub struct Scalars {
    pub outcome: Tensor, // f32 [1, 64 + n]  all of these up to the sums
    pub norm: Tensor,    // f32 [1, 1]  Σ g², then over all ranks
    pub loss: Tensor,    // f32 [1, 1]
    pub clip: Tensor,    // f32 [1, 2]  the gradient's norm; the first of pace
    pub pace: Tensor,    // f32 [1, 4]  factor, step, rescale, whether skipped or stuck
    pub scaler: Scaler,  // f32 [1, 1], i64 [1, 5]
    pub sums: Tensor,    // f32 [1, n]  Σ g² of each weight owned
    pub digests: Tensor, // i64 [ranks, weights]  of an audit, by rank of a group
}

impl Scalars {
    /// Floats of an outcome before the sums: those begin on a line of 256 bytes.
    pub const BEFORE_SUMS: usize = 64;

    /// With room for `sums` weights, and for what an audit compares.
    fn plan(sums: usize, digests: Tensor, arena: &Arena) -> Scalars {
        let outcome = arena.matrix(1, Scalars::BEFORE_SUMS + sums, DType::F32);
        Scalars {
            outcome,
            norm: outcome.span(0, 1),
            loss: outcome.span(1, 1),
            clip: outcome.span(2, 2),
            pace: outcome.span(3, 4),
            scaler: Scaler { scale: outcome.span(7, 1), counts: scaler::counts(arena) },
            sums: outcome.span(Scalars::BEFORE_SUMS, sums),
            digests,
        }
    }

    /// What an outcome says, by the places above.
    pub fn read(outcome: &[f32]) -> Outcome {
        let [loss, grad_norm, fate, loss_scale] = [1, 2, 6, 7].map(|place| outcome[place]);
        Outcome {
            loss: loss.into(),
            grad_norm: grad_norm.into(),
            skipped: fate > 0.0,
            stuck: fate > 1.0,
            loss_scale: loss_scale.into(),
        }
    }
}

/// A rank's memory, laid out.
pub struct Laid {
    pub layout: Layout,
    pub zero: Zero,
    pub optimizer: Optimizer,
    pub slopes: Option<Tensor>,
    pub slots: Vec<Vec<Slots>>,
    pub work: Work,
    pub arrived: Tensor,
    pub eval: Vec<Vec<Slots>>,
    pub scalars: Scalars,
}

/// Pure but for the arenas: the same calls give the same places.
pub fn lay(be: &dyn Backend, groups: &Groups, m: &Manifest, causal: bool, at: &Arenas) -> Laid {
    let (train, eval) = (context(be, groups, m, true), context(be, groups, m, false));
    let layout = Layout::new(&m.model, part(groups, m));
    let dp = &*groups.data;
    let level = if dp.size() == 1 { 0 } else { m.topology.zero };
    assert!(level < 2 || groups.pipeline.size() == 1, "ZeRO-{level} under a pipeline");
    let zero = Zero::new(level, dp.rank(), &layout, train.dtype, at);
    let optimizer = Optimizer::new(&layout, &zero, m, at);
    let slopes = slopes(&train, m, &at.inputs);
    let digests = audit::room(groups, &layout, &at.inputs);
    let scalars = Scalars::plan(optimizer.sums(), digests, &at.inputs);

    let seat = seat(groups, m);
    let (held, evaluated) = (slots(groups, m), schedule::forward_slots(seat));
    let inputs = |_| Inputs::plan(m.batch.micro, m.model.seq_len, causal, &at.inputs);
    let inputs: Vec<Inputs> = (0..held.max(evaluated)).map(inputs).collect();
    let chunks = |cx: &Cx, inputs: Inputs, stash: &Arena, scratch: &Arena| {
        let plan = |chunk| Slots::plan(cx, chunk, inputs, slopes, stash, scratch);
        stash.overlay(layout.part.chunks.iter().map(plan))
    };
    let (work, arrived, slots) = at.scratch.scratch(|scratch| {
        let work = Work::plan(&train, inputs[0].rows(), scalars.scaler.scale, scratch);
        let stream = work.stream;
        let receives = |chunk| seat.stage(chunk) + 1 < seat.stages();
        let arrived = match (0..seat.chunks).any(receives) {
            true => scratch.matrix(stream.rows, stream.cols, stream.dtype),
            false => stream,
        };
        let slots = inputs[..held].iter().map(|i| chunks(&train, *i, &at.stash, scratch));
        (work, arrived, slots.collect())
    });
    let eval = at.scratch.scratch(|scratch| {
        let slots = inputs[..evaluated].iter().map(|i| chunks(&eval, *i, scratch, scratch));
        slots.collect()
    });
    Laid { layout, zero, optimizer, slopes, slots, work, arrived, eval, scalars }
}

/// Where this rank's ALiBi slopes lie.
pub fn slopes(cx: &Cx, m: &Manifest, arena: &Arena) -> Option<Tensor> {
    let heads = cx.tp.share(m.model.heads);
    (m.model.position == Position::Alibi).then(|| arena.matrix(1, heads, DType::F32))
}
