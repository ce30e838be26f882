//! Every byte a rank needs: laid out once to measure, reserved, laid out again for good.

use super::optimizer::Optimizer;
use super::zero::Replica;
use super::{Groups, context};
use crate::base::{Bytes, DType};
use crate::device::{Arena, Backend, OutOfMemory, Tensor};
use crate::manifest::{Manifest, Position, Precision};
use crate::model::{Inputs, Layout, Slots, Work};
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

    pub fn bill(&self) -> Bill {
        let bytes = |arena: &Arena| Bytes(arena.peak() as u64);
        Bill {
            rows: vec![
                ("weights", bytes(&self.weights)),
                ("gradients", bytes(&self.grads)),
                ("optimizer", bytes(&self.optimizer)),
                ("stash", bytes(&self.stash)),
                ("scratch", bytes(&self.scratch)),
                ("inputs", bytes(&self.inputs)),
            ],
        }
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

/// Small results of a step, read back by the host.
pub struct Scalars {
    pub loss: Tensor, // f32 [1, 1]
    pub clip: Tensor, // f32 [1, 2]  norm, factor
    pub sums: Tensor, // f32 [1, slots]  Σ g² of each weight
}

/// A rank's memory, laid out.
pub struct Laid {
    pub layout: Layout,
    pub replica: Replica,
    pub optimizer: Optimizer,
    pub slopes: Option<Tensor>,
    pub slots: Vec<Slots>,
    pub work: Work,
    pub eval: Slots,
    pub scalars: Scalars,
}

/// Pure but for the arenas: the same calls give the same places.
pub fn lay(be: &dyn Backend, groups: &Groups, m: &Manifest, causal: bool, at: &Arenas) -> Laid {
    let (train, eval) = (context(be, groups, m, true), context(be, groups, m, false));
    let layout = Layout::new(&m.model, train.tp.group.size(), train.tp.group.rank());
    let flat = |arena: &Arena, dtype| arena.matrix(1, layout.len(), dtype);
    let (live, grads) = (flat(&at.weights, train.dtype), flat(&at.grads, DType::F32));
    let master = match m.precision {
        Precision::F32 => live,
        Precision::Bf16 => flat(&at.optimizer, DType::F32),
    };
    let moments = [flat(&at.optimizer, DType::F32), flat(&at.optimizer, DType::F32)];
    let slopes = slopes(&train, m, &at.inputs);

    let inputs = || Inputs::plan(m.batch.micro, m.model.seq_len, causal, &at.inputs);
    let micros = m.batch.global / m.batch.micro;
    let held = schedule::in_flight(&schedule::one_f_one_b(0, 1, micros));
    let first = inputs();
    let (work, slots) = at.scratch.scratch(|scratch| {
        let work = Work::plan(&train, first.rows(), scratch);
        let inputs = std::iter::once(first).chain(std::iter::repeat_with(inputs)).take(held);
        let slots = inputs.map(|i| Slots::plan(&train, i, slopes, &at.stash, scratch)).collect();
        (work, slots)
    });
    let eval = at.scratch.scratch(|scratch| Slots::plan(&eval, first, slopes, scratch, scratch));
    let scalars = Scalars {
        loss: at.inputs.matrix(1, 1, DType::F32),
        clip: at.inputs.matrix(1, 2, DType::F32),
        sums: at.inputs.matrix(1, layout.slots().count(), DType::F32),
    };
    Laid {
        replica: Replica::new(&layout, live, grads),
        optimizer: Optimizer::new(&layout, &m.optimizer, live, grads, master, moments),
        layout,
        slopes,
        slots,
        work,
        eval,
        scalars,
    }
}

/// Where this rank's ALiBi slopes lie.
pub fn slopes(cx: &crate::model::Cx, m: &Manifest, arena: &Arena) -> Option<Tensor> {
    let heads = cx.tp.share(m.model.heads);
    (m.model.position == Position::Alibi).then(|| arena.matrix(1, heads, DType::F32))
}
