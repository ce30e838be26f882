//! Delayed update of ZeRO-Offload (Ren et al. 2021, section 5.2): the host applies the gradient of
//! the previous step while the device computes the next one. With θ the weights and g the gradient
//! at θ,
//!
//! θ[i+1] = rule(θ[i], g[i−1])
//!
//! Norm, clipping, update number and learning rate are determined at the end of the gradient's own
//! step. Only the host's pass over memory is delayed. Until then the gradient is a state on the
//! host, which checkpoints save (`states::PENDING`).

use super::groups::Groups;
use super::offload::{Offload, Piece};
use super::rule::{OptimizerRule, Place, Step};
use device::{Backend, Transfer, op};
use model::{Layout, ModelShard};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};

/// Scalars of a delayed update; its gradient is stored separately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PendingUpdate {
    /// Learning rate of its step.
    pub lr: f32,
    /// `Step::scalars`: the factor of the gradient, then the rule's own numbers.
    pub scalars: [f32; 3],
}

/// Delayed update. Its gradient is stored in the pieces of the rank's `Offload`.
#[derive(Default)]
pub struct Late {
    /// Learning rate of the delayed update; None if there is none.
    lr: Cell<Option<f32>>,
    /// Transfers of its gradient and scalars to the host that are in flight.
    coming: RefCell<Vec<Transfer>>,
}

impl Late {
    /// Copies the gradient and scalars of a step to the host, for `beside`.
    pub fn keep(&self, offload: &Offload, step: &Step) {
        let be = step.be;
        let small = [(step.scalars, offload.scalars), (step.updates, offload.updates)];
        let pieces = offload.pieces.iter();
        let grads = pieces.filter_map(|piece| Some((piece.grads?, piece.staged_grads)));
        let all = small.into_iter().chain(grads);
        self.coming.borrow_mut().extend(all.map(|(from, to)| be.transfer(from, to)));
        for piece in &offload.pieces {
            if let Some(kept) = piece.kept_grads {
                be.host().run(op::Copy { x: kept, y: piece.staged_grads.set() });
            }
        }
        self.lr.set(Some(step.lr));
    }

    /// Waits until the copies started by `keep` are complete.
    pub fn settle(&self, be: &dyn Backend) {
        self.coming.take().into_iter().for_each(|transfer| be.finish_transfer(transfer));
    }

    /// Applies the delayed update, if there is one, on a second thread while `compute` runs with
    /// the old weights. Then starts copying the new weights to the device.
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
            // Rules that support delayed updates use neither the layout nor the groups.
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

    /// Scalars of the delayed update, for a checkpoint.
    pub fn pending(&self, offload: &Offload, be: &dyn Backend) -> Option<PendingUpdate> {
        self.settle(be);
        let lr = self.lr.get()?;
        let mut scalars = [0.0; 3];
        be.host().download(offload.scalars, bytemuck::cast_slice_mut(&mut scalars));
        Some(PendingUpdate { lr, scalars })
    }

    /// Restores a delayed update. Its gradient is already in place.
    pub fn set(&self, offload: &Offload, be: &dyn Backend, pending: Option<PendingUpdate>) {
        self.lr.set(pending.map(|pending| pending.lr));
        if let Some(pending) = pending {
            be.host().upload(bytemuck::cast_slice(&pending.scalars), offload.scalars);
        }
    }
}
