//! ZeRO-Offload's delayed update (Ren et al. 2021, section 5.2): the host updates by the gradient of
//! the step before, while the device computes the next one. With θ the weights and g the gradient at
//! θ,
//!
//! θ[i+1] = rule(θ[i], g[i−1])
//!
//! All of a gradient is decided at the end of its own step: norm and clipping, the number of its
//! update, its learning rate. Only the host's pass over memory is late. Until then the gradient lies
//! on the host, as a state that checkpoints hold (`states::PENDING`).

use super::groups::Groups;
use super::offload::{Offload, Piece};
use super::rule::{OptimizerRule, Place, Step};
use device::{Backend, Transfer};
use model::{Layout, ModelShard};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};

/// What is known of an update that waits, beside its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingUpdate {
    /// Of its step.
    pub lr: f32,
    /// `Step::scalars`: the gradient's factor, then the rule's own numbers.
    pub scalars: [f32; 3],
}

/// The update that waits. The pieces of the rank's `Offload` have the place of its gradient.
#[derive(Default)]
pub struct Late {
    /// Its learning rate, if one waits.
    lr: Cell<Option<f32>>,
    /// Its gradient and numbers, on their way to the host.
    coming: RefCell<Vec<Transfer>>,
}

impl Late {
    /// Keeps the gradient of a step, with its numbers, for `beside`.
    pub fn keep(&self, offload: &Offload, step: &Step) {
        let be = step.be;
        let small = [(step.scalars, offload.scalars), (step.updates, offload.updates)];
        let pieces = offload.pieces.iter();
        let grads = pieces.filter_map(|piece| Some((piece.grads?, piece.staged_grads)));
        let all = small.into_iter().chain(grads);
        self.coming.borrow_mut().extend(all.map(|(from, to)| be.transfer(from, to)));
        for piece in &offload.pieces {
            if let Some(kept) = piece.kept_grads {
                be.host().copy(kept, piece.staged_grads.set());
            }
        }
        self.lr.set(Some(step.lr));
    }

    /// Waits until what `keep` keeps is on the host.
    pub fn settle(&self, be: &dyn Backend) {
        self.coming.take().into_iter().for_each(|transfer| be.finish_transfer(transfer));
    }

    /// Makes the update that waits, if one does, while `compute` computes with the weights before it;
    /// afterwards the new ones are on their way to the device.
    pub fn beside(
        &self,
        offload: &Offload,
        be: &dyn Backend,
        rule: &dyn OptimizerRule,
        compute: &mut dyn FnMut(),
    ) {
        self.settle(be);
        let Some(lr) = self.lr.take().filter(|_| !offload.skips(be)) else { return compute() };
        let Offload { pieces, scalars, updates, .. } = offload;
        let (pieces, scalars, updates) = (pieces.as_slice(), *scalars, *updates);
        let mut pass = |host: &dyn Backend| {
            // No rule whose update may be late looks at these two.
            let shard = ModelShard { chunks: Vec::new(), tp: 1, tp_rank: 0, dp: 1 };
            let layout = &Layout { buckets: Vec::new(), shard };
            let at = Place { groups: &Groups::solo(), layout, sharded: false };
            let (scratch, masters, norm) = (scalars.span(0, 0), None, None);
            let step = Step { be: host, at, lr, scalars, updates, scratch, masters, norm };
            for piece in pieces {
                piece.pad(host);
                rule.update(&step, &piece.params);
            }
        };
        be.beside(&mut pass, compute);
        let send = |piece: &Piece| piece.weights.map(|to| be.transfer(piece.staged_weights, to));
        let sent: Vec<Transfer> = pieces.iter().filter_map(send).collect();
        sent.into_iter().for_each(|transfer| be.join_transfer(transfer));
    }

    /// What is known of the update that waits.
    pub fn pending(&self, offload: &Offload, be: &dyn Backend) -> Option<PendingUpdate> {
        self.settle(be);
        let lr = self.lr.get()?;
        let mut scalars = [0.0; 3];
        be.host().download(offload.scalars, bytemuck::cast_slice_mut(&mut scalars));
        Some(PendingUpdate { lr, scalars })
    }

    /// Goes on from an update that waited, whose gradient is in its place.
    pub fn set(&self, offload: &Offload, be: &dyn Backend, pending: Option<PendingUpdate>) {
        self.lr.set(pending.map(|pending| pending.lr));
        if let Some(pending) = pending {
            be.host().upload(bytemuck::cast_slice(&pending.scalars), offload.scalars);
        }
    }
}
