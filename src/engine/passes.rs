//! Passes of a micro-batch through a chunk of layers, each a piece of work that a device may learn by
//! heart (`Backend::repeat`): every tensor lies where it lay, and what changes from one micro-batch to
//! the next is read from tensors.
//!
//! A pass is repeated as a whole where
//! - no host takes part in the collectives inside;
//! - nothing that was begun before it is still under way: at ZeRO 1 to 3 the first micro-batch's passes
//!   finish the gathers after the update one by one, beside the computation, and stay as they are;
//! - it may wait for all it began at its end. That is free after the last micro-batch, whose
//!   reductions the update awaits anyway, and at ZeRO 2 and 3 costs the time that the first block's
//!   reduce-scatter (one of as many as there are blocks) takes longer than the embedding's backward.
//!   Under a pipeline it is not free: the stage before waits for the last gradient, so the pass that
//!   reduces stays as it is.
//!
//! All of this follows from the schedule: ranks of a group decide alike, as NCCL asks.

use super::Engine;
use super::groups::Groups;
use super::zero::{Between, Keeper};
use crate::device::Repeat;
use crate::manifest::Manifest;
use crate::plan::schedule::Pass;
use std::cell::RefCell;
use std::collections::HashMap;

/// What a pass does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Forward {
        training: bool,
    },
    /// `last`: gradients are reduced after it.
    Backward {
        last: bool,
    },
    Loss,
}

/// Passes that ask a device for the same ops.
#[derive(PartialEq, Eq, Hash)]
struct Alike {
    kind: Kind,
    slot: usize,
    chunk: usize,
    entered: Between,
}

/// One of them, and what custody remembers after it.
struct Known {
    repeat: Box<dyn Repeat>,
    left: Between,
}

/// The passes of a rank so far.
pub struct Passes {
    repeats: bool,
    with_others: bool,
    pipeline: bool,
    known: RefCell<HashMap<Alike, Known>>,
}

impl Passes {
    pub fn new(groups: &Groups, m: &Manifest) -> Passes {
        let inside = [&groups.tensor, &groups.partial, &groups.data];
        Passes {
            repeats: inside.iter().all(|group| group.repeats()),
            with_others: inside.iter().any(|group| group.size() > 1),
            pipeline: m.topology.pipeline > 1,
            known: RefCell::default(),
        }
    }

    /// Whether a pass may wait for all it began.
    fn joins(&self, kind: Kind) -> bool {
        !(self.pipeline && self.with_others && kind == Kind::Backward { last: true })
    }
}

impl Engine<'_> {
    /// Does a pass. `ask` asks the device for it.
    pub(super) fn pass(&self, kind: Kind, pass: Pass, custody: &Keeper, ask: impl Fn()) {
        if !(self.passes.repeats && self.passes.joins(kind)) {
            return ask();
        }
        let Some(entered) = self.zero.between() else {
            ask();
            return custody.join();
        };
        let alike = Alike { kind, slot: pass.slot, chunk: pass.chunk, entered };
        let mut known = self.passes.known.borrow_mut();
        let known = known.entry(alike).or_insert_with(|| Known {
            repeat: self.be.repeat(self.passes.with_others),
            left: entered,
        });
        let asked = known.repeat.again(&mut || {
            self.zero.resume(entered);
            ask();
            custody.join();
        });
        match asked {
            true => known.left = self.zero.between().expect("all is joined"),
            false => self.zero.resume(known.left),
        }
    }
}
