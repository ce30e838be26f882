//! Cross-entropy over a vocabulary that may be shared out among ranks.

use super::Cuda;
use super::args;
use super::launch::{Grid, typed, vector, wide};
use crate::{Logits, Out, Tensor, ZLoss};
use base::DType;
use std::ptr::{null, null_mut};

/// Most threads of a block, which has a row.
pub(super) const MOST_THREADS: usize = 512;

pub(super) struct Inputs {
    pub logits: Logits,
    pub targets: Tensor,
    pub weights: Tensor,
    pub stats: Tensor,
}

pub(super) fn stats(cuda: &Cuda, logits: &Logits, targets: Tensor, stats: Out) {
    let rows = logits.x.rows;
    assert_eq!((targets.numel(), stats.to.numel()), (rows, 3 * rows), "rows");
    assert!(stats.to.dtype == DType::F32 && !stats.add, "stats are f32 and overwritten");
    let inputs = Inputs { logits: *logits, targets, weights: stats.to, stats: stats.to };
    let (arguments, grid) = prepare(&inputs);
    cuda.launch(typed!("cross_entropy_stats", logits.x.dtype), grid, arguments);
}

pub(super) fn losses(
    cuda: &Cuda,
    inputs: &Inputs,
    losses: Out,
    z: Option<ZLoss>,
    dlogits: Option<(Tensor, Out)>,
) {
    let (arguments, grid) = checked(inputs, losses, z, dlogits);
    cuda.launch(typed!("cross_entropy", inputs.logits.x.dtype), grid, arguments);
}

/// Cross-entropy of a vocabulary that is not split; writes its stats, too.
pub(super) fn unsplit(
    cuda: &Cuda,
    inputs: &Inputs,
    losses: Out,
    z: Option<ZLoss>,
    dlogits: Option<(Tensor, Out)>,
) {
    let (arguments, grid) = checked(inputs, losses, z, dlogits);
    assert_eq!(arguments.shares, 1, "shares of the vocabulary");
    cuda.launch(typed!("cross_entropy_unsplit", inputs.logits.x.dtype), grid, arguments);
}

fn checked(
    inputs: &Inputs,
    losses: Out,
    z: Option<ZLoss>,
    dlogits: Option<(Tensor, Out)>,
) -> (args::CrossEntropy, Grid) {
    let Inputs { logits: Logits { x, .. }, targets, weights, stats } = *inputs;
    let rows = x.rows;
    assert_eq!((targets.numel(), weights.numel(), losses.to.numel()), (rows, rows, rows), "rows");
    assert!(stats.cols == 3 && stats.rows.is_multiple_of(rows.max(1)), "stats of all shares");
    assert!(!losses.add && dlogits.is_none_or(|(_, d)| d.to == x && !d.add), "in place");
    assert!(z.is_none_or(|z| z.losses.to.numel() == rows && !z.losses.add), "z losses");
    let (common, grid) = prepare(inputs);
    let arguments = args::CrossEntropy {
        losses: losses.to.addr() as _,
        z_losses: z.map_or(null_mut(), |z| z.losses.to.addr() as _),
        z: z.map_or(0.0, |z| z.coefficient),
        scale: dlogits.map_or(null(), |(scale, _)| scale.addr() as _),
        ..common
    };
    (arguments, grid)
}

fn prepare(i: &Inputs) -> (args::CrossEntropy, Grid) {
    let x = i.logits.x;
    let (rows, cols) = (x.rows, x.cols);
    let vector = vector(cols, x.dtype, &[x.addr()]);
    let pieces = cols.div_ceil(if vector { wide(x.dtype) } else { 1 });
    let arguments = args::CrossEntropy {
        logits: x.addr() as _,
        targets: i.targets.addr() as _,
        weights: i.weights.addr() as _,
        stats: i.stats.addr() as _,
        losses: null_mut(),
        z_losses: null_mut(),
        scale: null(),
        first: i.logits.first as i64,
        rows: rows as u64,
        cols: cols as u32,
        own: i.logits.own() as u32,
        shares: (i.stats.rows / rows.max(1)) as u32,
        vector: vector.into(),
        cap: i.logits.cap.unwrap_or(0.0),
        z: 0.0,
    };
    (arguments, Grid::line(rows, pieces.next_multiple_of(32).min(MOST_THREADS)))
}
