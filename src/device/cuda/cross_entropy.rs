//! Cross-entropy over a vocabulary that may be split over tensor-parallel ranks.

use super::Cuda;
use super::args::{self, arguments};
use super::launch::{Grid, elements_per_move, typed, vector};
use crate::{Logits, LossLogits, Tensor, op};
use std::ptr::{null, null_mut};

/// Maximum threads of a block, which processes one row.
pub(super) const MOST_THREADS: usize = 512;

pub(super) fn stats(cuda: &Cuda, op: &op::CrossEntropyStats) {
    let op::CrossEntropyStats { logits, targets, stats } = *op;
    let (arguments, grid) = prepare(&logits, targets, stats.to);
    cuda.launch(typed!("cross_entropy_stats", logits.x.dtype), grid, arguments);
}

pub(super) fn losses(cuda: &Cuda, op: &op::CrossEntropy) {
    let (arguments, grid) = prepare_losses(op);
    cuda.launch(typed!("cross_entropy", op.logits.logits.x.dtype), grid, arguments);
}

/// Cross-entropy of an unsplit vocabulary; also writes its stats.
pub(super) fn unsplit(cuda: &Cuda, op: &op::CrossEntropyUnsplit) {
    let (arguments, grid) = prepare_losses(&op.losses);
    cuda.launch(typed!("cross_entropy_unsplit", op.stats.logits.x.dtype), grid, arguments);
}

fn prepare_losses(op: &op::CrossEntropy) -> (args::CrossEntropy, Grid) {
    let op::CrossEntropy { targets, weights, stats, losses, z, logits } = *op;
    let LossLogits { logits, scale } = logits;
    let (common, grid) = prepare(&logits, targets, stats);
    let arguments = arguments!(CrossEntropy {
        weights,
        losses,
        z_losses: z.map(|z| z.losses),
        z: z.map_or(0.0, |z| z.coefficient),
        scale,
        ..common
    });
    (arguments, grid)
}

fn prepare(logits: &Logits, targets: Tensor, stats: Tensor) -> (args::CrossEntropy, Grid) {
    let x = logits.x;
    let rows = x.rows;
    let cols = x.cols;
    let vector = vector(cols, x.dtype, [x]);
    let pieces = cols.div_ceil(if vector { elements_per_move(x.dtype) } else { 1 });
    let arguments = arguments!(CrossEntropy {
        logits: x,
        targets,
        weights: null(),
        stats,
        losses: null_mut(),
        z_losses: null_mut(),
        scale: null(),
        first: logits.first,
        rows,
        cols,
        own: logits.entries(),
        shares: stats.rows / rows.max(1),
        vector,
        cap: logits.cap.unwrap_or(0.0),
        z: 0.0,
    });
    (arguments, Grid::line(rows, pieces.next_multiple_of(32).min(MOST_THREADS)))
}
