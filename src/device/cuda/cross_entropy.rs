//! Cross-entropy over a vocabulary that may be shared out among ranks.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::base::DType;
use crate::device::{Out, Tensor};
use std::ptr::{null, null_mut};

pub(super) struct Inputs {
    pub logits: Tensor,
    pub targets: Tensor,
    pub weights: Tensor,
    pub stats: Tensor,
    pub first: usize,
    pub vocab: usize,
}

pub(super) fn stats(
    cuda: &Cuda,
    logits: Tensor,
    targets: Tensor,
    first: usize,
    vocab: usize,
    stats: Out,
) {
    let rows = logits.rows;
    assert_eq!((targets.numel(), stats.to.numel()), (rows, 3 * rows), "rows");
    assert!(stats.to.dtype == DType::F32 && !stats.add, "stats are f32 and overwritten");
    let inputs = Inputs { logits, targets, weights: stats.to, stats: stats.to, first, vocab };
    let (arguments, grid) = prepare(&inputs);
    cuda.launch(typed!("cross_entropy_stats", logits.dtype), grid, arguments);
}

pub(super) fn losses(cuda: &Cuda, inputs: &Inputs, losses: Out, dlogits: Option<(Tensor, Out)>) {
    let Inputs { logits, targets, weights, stats, .. } = *inputs;
    let rows = logits.rows;
    assert_eq!((targets.numel(), weights.numel(), losses.to.numel()), (rows, rows, rows), "rows");
    assert!(stats.cols == 3 && stats.rows.is_multiple_of(rows.max(1)), "stats of all shares");
    assert!(!losses.add && dlogits.is_none_or(|(_, d)| d.to == logits && !d.add), "in place");
    let (common, grid) = prepare(inputs);
    let arguments = args::CrossEntropy {
        losses: losses.to.addr() as _,
        scale: dlogits.map_or(null(), |(scale, _)| scale.addr() as _),
        ..common
    };
    cuda.launch(typed!("cross_entropy", logits.dtype), grid, arguments);
}

fn prepare(i: &Inputs) -> (args::CrossEntropy, Grid) {
    let (rows, cols) = (i.logits.rows, i.logits.cols);
    let vector = vector(cols, i.logits.dtype, &[i.logits.addr()]);
    let pieces = cols.div_ceil(if vector { wide(i.logits.dtype) } else { 1 });
    let arguments = args::CrossEntropy {
        logits: i.logits.addr() as _,
        targets: i.targets.addr() as _,
        weights: i.weights.addr() as _,
        stats: i.stats.addr() as _,
        losses: null_mut(),
        scale: null(),
        first: i.first as i64,
        rows: rows as u64,
        cols: cols as u32,
        own: i.vocab.saturating_sub(i.first).min(cols) as u32,
        shares: (i.stats.rows / rows.max(1)) as u32,
        vector: vector.into(),
    };
    (arguments, Grid::line(rows, pieces.next_multiple_of(32).min(512)))
}
