//! Final norm, logits and cross-entropy, with the vocabulary split by rows. Logits are computed for
//! one chunk of tokens at a time, so a vocabulary of 250k never needs a full [N, V] buffer.

use super::norm::{self, NormActs};
use crate::weights::Weight::*;
use crate::{Cx, GradBuffers, Inputs, Params, mup};
use base::DType;
use device::{Arena, Gemm, Logits, LossLogits, Out, Section, Tensor, ZLoss, op};

#[rustfmt::skip]
pub struct HeadActs {
    norm: NormActs, // norm of the last block's output
    logits: Tensor, // [R, v]   of one chunk of R tokens; later their gradient
    stats:  Tensor, // [tp·R, 3]
    pub losses: Tensor, // [N, 1]   weighted loss of each token
    z_losses: Option<Tensor>, // [N, 1]  z-loss of each token, if it is on
}

impl HeadActs {
    pub fn plan(cx: &Cx, inputs: &Inputs, x: Tensor, workspace: &Arena) -> HeadActs {
        let rows = inputs.rows();
        let share = cx.tp.share(cx.model.vocab_padded);
        let fit = cx.be.logits_chunk().0 as usize / (share * cx.dtype.size());
        let chunk = fit.next_multiple_of(64).min(rows);
        HeadActs {
            norm: NormActs::plan(cx, [LnfScale, LnfShift], x, rows, workspace, workspace),
            logits: workspace.matrix(chunk, share, cx.dtype),
            stats: workspace.matrix(cx.tp.group.size() * chunk, 3, DType::F32),
            losses: workspace.matrix(rows, 1, DType::F32),
            z_losses: cx.z_loss.map(|_| workspace.matrix(rows, 1, DType::F32)),
        }
    }

    /// Chunks of tokens as (first row, rows).
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> {
        let (rows, chunk) = (self.norm.h_in.rows, self.logits.rows);
        (0..rows)
            .step_by(chunk)
            .map(move |first| (first, chunk.min(rows - first)))
    }
}

/// Applies the final norm, and µP's factor of logits.
fn normed(cx: &Cx, w: &Params, a: &HeadActs) {
    norm::forward(cx, w, &a.norm);
    if let Some(factor) = mup::logit_factor(cx.model) {
        cx.be.run(op::Blend::multiply(factor, a.norm.h_in));
    }
}

/// Adds the weighted loss of the micro-batch to `loss` [1, 1]. `table` [v, H] is the weight of the
/// head.
pub fn forward(cx: &Cx, w: &Params, table: Tensor, inputs: &Inputs, a: &HeadActs, loss: Out) {
    normed(cx, w, a);
    cx.be.enter(Section::Head);
    for (first, rows) in a.chunks() {
        let h = a.norm.h_in.row_range(first, rows);
        let logits = a.logits.row_range(0, rows);
        cx.be.run(op::Gemm::plain(Gemm::NT, h, table, logits.set()));
        cross_entropy(cx, inputs, a, first, logits, None);
    }
    cx.be.run(op::Sum { x: a.losses, y: loss });
    cx.be.enter(Section::Passes);
}

/// Forward and backward in one pass over the chunks. Leaves the gradient of x in `d.stream` and
/// adds the z-loss to `d.z_loss`.
pub fn forward_backward(
    cx: &Cx,
    w: &Params,
    g: &Params,
    table: Tensor,
    dtable: Tensor,
    inputs: &Inputs,
    a: &HeadActs,
    d: &GradBuffers,
    loss: Out,
) {
    normed(cx, w, a);
    cx.be.enter(Section::Head);
    for (first, rows) in a.chunks() {
        let h = a.norm.h_in.row_range(first, rows);
        let dh = d.h_in.row_range(first, rows);
        let logits = a.logits.row_range(0, rows);
        cx.be.run(op::Gemm::plain(Gemm::NT, h, table, logits.set()));
        cross_entropy(cx, inputs, a, first, logits, Some(d.scale));
        cx.be
            .run(op::Gemm::plain(Gemm::NN, logits, table, dh.set()));
        cx.be
            .run(op::Gemm::plain(Gemm::TN, logits, h, dtable.add()));
    }
    cx.be.run(op::Sum { x: a.losses, y: loss });
    if let Some(z_losses) = a.z_losses {
        cx.be.run(op::Sum { x: z_losses, y: d.z_loss.add() });
    }
    cx.be.enter(Section::Passes);
    cx.tp.reduce_out(d.h_in, d.h);
    if let Some(factor) = mup::logit_factor(cx.model) {
        cx.be.run(op::Blend::multiply(factor, d.h));
    }
    norm::backward(cx, w, g, &a.norm, d.h, d.stream.set());
}

/// Logits [1, v] of one token before any cap, in f32 or the compute dtype.
pub fn logits(cx: &Cx, w: &Params, table: Tensor, a: &HeadActs, row: usize) -> Tensor {
    normed(cx, w, a);
    let logits = a.logits.row_range(0, 1);
    cx.be
        .run(op::Gemm::plain(Gemm::NT, a.norm.h_in.row_range(row, 1), table, logits.set()));
    logits
}

/// Losses of a chunk of tokens that starts at `first`, from their logits x, and the scaled gradient of
/// the logits.
fn cross_entropy(
    cx: &Cx,
    i: &Inputs,
    a: &HeadActs,
    first: usize,
    x: Tensor,
    scale: Option<Tensor>,
) {
    let rows = x.rows;
    let first_entry = cx.tp.first(cx.model.vocab_padded);
    let vocab = cx.model.vocab;
    let logits = Logits { x, first: first_entry, vocab, cap: cx.model.logit_softcap };
    let targets = i.targets.row_range(first, rows);
    let ranks = cx.tp.group.size();
    let stats = a.stats.row_range(0, ranks * rows);
    let weights = i.weights.row_range(first, rows);
    let losses = a.losses.row_range(first, rows);
    let z = a
        .z_losses
        .zip(cx.z_loss)
        .map(|(all, coefficient)| ZLoss { coefficient, losses: all.row_range(first, rows).set() });
    let entropy = op::CrossEntropy {
        targets,
        weights,
        stats,
        losses: losses.set(),
        z,
        logits: LossLogits { logits, scale },
    };
    if ranks == 1 {
        return cx.be.run(op::CrossEntropyUnsplit::new(entropy));
    }
    let part = stats.row_range(cx.tp.group.rank() * rows, rows);
    cx.be
        .run(op::CrossEntropyStats { logits, targets, stats: part.set() });
    cx.tp.group.all_gather(part, stats);
    cx.be.run(entropy);
}
