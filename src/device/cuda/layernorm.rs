//! Layer and RMS normalisation over each row.

use super::args::{self, arguments};
use super::elementwise::{add_parts, residual_backward};
use super::launch::{Grid, elements_per_move, typed, vector};
use super::{Cuda, SCRATCH};
use crate::{Out, Tensor, op};

/// Shared memory for the rows of at most eight warps: what every GPU allows by default.
const SHARED: usize = 48 << 10;

pub(super) fn forward(cuda: &Cuda, &op::LayerNorm { x, norm, y, stats }: &op::LayerNorm) {
    let (scale, shift, eps) = norm.parts();
    let rows = x.rows;
    let cols = x.cols;
    let add = y.add;
    let vector = vector(cols, x.dtype, [x, scale, y.to].into_iter().chain(shift));
    let arguments =
        arguments!(LayerNorm { x, scale, shift, y, stats, rows, cols, eps, add, vector });
    cuda.launch(typed!("layernorm", x.dtype), row_by_warp(x), arguments);
}

/// A warp per row, with shared memory for the rows; a block per row if two rows do not fit in `SHARED`,
/// because a multiprocessor then runs few blocks at once.
fn row_by_warp(x: Tensor) -> Grid {
    let bytes = x.cols * x.dtype.size();
    let warps = (SHARED / bytes.max(1)).min(8);
    if warps < 2 {
        return Grid::line(x.rows.max(1), 256).with_shared(bytes);
    }
    let blocks = [x.rows.div_ceil(warps).max(1), 1, 1];
    Grid { blocks, threads: [32, warps], shared: warps * bytes }
}

pub(super) fn residual_norm(cuda: &Cuda, op: &op::ResidualNorm) {
    let op::Residual { x, branch, bias, drop, y } = op.residual;
    let op::LayerNorm { norm, y: h, stats, .. } = op.norm;
    let (scale, shift, eps) = norm.parts();
    let rows = x.rows;
    let cols = x.cols;
    let tensors = [x, branch, y.to, scale, h.to]
        .into_iter()
        .chain(bias)
        .chain(shift);
    let vector = vector(cols, x.dtype, tensors);
    let arguments = arguments!(ResidualNorm {
        x,
        branch,
        bias,
        y,
        scale,
        shift,
        h,
        stats,
        rows,
        cols,
        eps,
        vector,
        drop,
    });
    cuda.launch(typed!("residual_norm", x.dtype), row_by_warp(x), arguments);
}

/// Minimum rows of a block, and number of blocks that occupy a whole GPU.
const CHUNK: usize = 16;
const BLOCKS: usize = 1056;

pub(super) fn backward(cuda: &Cuda, op: &op::LayerNormBackward) {
    let (arguments, grid) = backward_arguments(cuda, op, 2);
    let x = op.x;
    let kernels = [
        typed!("layernorm_backward_wide1", x.dtype),
        typed!("layernorm_backward_wide16", x.dtype),
        typed!("layernorm_backward_long", x.dtype),
        typed!("layernorm_backward_any", x.dtype),
    ];
    let (kernel, threads) = kernel_for(cuda, kernels, op, None);
    cuda.launch(kernel, Grid { threads: [threads, 1], ..grid }, arguments);
    add_all(cuda, &arguments, grid, [Some(op.dscale), op.dshift]);
}

/// `backward`, whose dx accumulates, then the backward of dropout from dx.
pub(super) fn norm_residual_backward(cuda: &Cuda, op: &op::NormResidualBackward) {
    let op::NormResidualBackward { norm: norm_op, residual: residual_op } = op;
    let op::LayerNormBackward { x, dscale, dshift, .. } = *norm_op;
    let op::ResidualBackward { drop, dbranch, dbias, .. } = *residual_op;
    let shared = 3 * x.cols * size_of::<f32>();
    if !cuda.has_room(typed!("norm_residual_backward_long", x.dtype), shared) {
        backward(cuda, norm_op);
        return residual_backward(cuda, residual_op);
    }
    let (norm, grid) = backward_arguments(cuda, norm_op, 3);
    let arguments = arguments!(NormResidualBackward { norm, dbranch, drop });
    let kernels = [
        typed!("norm_residual_backward_wide1", x.dtype),
        typed!("norm_residual_backward_wide16", x.dtype),
        typed!("norm_residual_backward_long", x.dtype),
        typed!("norm_residual_backward_any", x.dtype),
    ];
    let (kernel, threads) = kernel_for(cuda, kernels, norm_op, dbranch.map(|out| out.to));
    cuda.launch(kernel, Grid { threads: [threads, 1], ..grid }, arguments);
    add_all(cuda, &norm, grid, [Some(dscale), dshift, dbias]);
}

/// Arguments and blocks, without the kernel and its threads. Each block writes `sums` rows of partial sums.
fn backward_arguments(
    cuda: &Cuda,
    op: &op::LayerNormBackward,
    sums: usize,
) -> (args::LayerNormBackward, Grid) {
    let op::LayerNormBackward { dy, x, stats, scale, dx, dshift, .. } = *op;
    let shared = sums * x.cols * size_of::<f32>();
    let (blocks, chunk) = blocks(x.rows, shared);
    let arguments = arguments!(LayerNormBackward {
        dy,
        x,
        stats,
        scale,
        dx,
        parts: cuda.scratch(blocks * shared),
        rows: x.rows,
        cols: x.cols,
        chunk,
        add: dx.add,
        rms: dshift.is_none(),
    });
    (arguments, Grid::line(blocks, 0).with_shared(shared))
}

/// Blocks and rows per block: as many blocks as fill a GPU, and as have their `sums` bytes of sums in
/// scratch.
fn blocks(rows: usize, sums: usize) -> (usize, usize) {
    let most = BLOCKS.min(SCRATCH / sums).max(1);
    let chunk = rows.div_ceil(rows.div_ceil(CHUNK).clamp(1, most)).max(1);
    (rows.div_ceil(chunk).max(1), chunk)
}

/// Adds the partial sums of all blocks to the outputs.
fn add_all<const N: usize>(
    cuda: &Cuda,
    from: &args::LayerNormBackward,
    grid: Grid,
    outs: [Option<Out>; N],
) {
    add_parts(cuda, from.parts as usize, N * from.cols as usize, grid.blocks[0], outs);
}

/// Threads of a block that reads its rows twice: the launch bound of those kernels.
pub(super) const READING_TWICE: usize = 512;

/// Kernel for rows of this width, and threads of its blocks. A thread of the first kernel holds 16 bytes
/// of a row, of the second sixteen columns, of the others nothing. `more` is another output.
fn kernel_for(
    cuda: &Cuda,
    [piece, sixteen, long, any]: [&'static str; 4],
    op: &op::LayerNormBackward,
    more: Option<Tensor>,
) -> (&'static str, usize) {
    let op::LayerNormBackward { dy, x, scale, dx, .. } = *op;
    let tensors = [dy, x, scale, dx.to].into_iter().chain(more);
    if !vector(x.cols, x.dtype, tensors) {
        return (any, READING_TWICE);
    }
    for (kernel, columns) in [(piece, elements_per_move(x.dtype)), (sixteen, 16)] {
        let threads = x.cols.div_ceil(columns).next_multiple_of(32);
        if threads <= cuda.most_threads(kernel) {
            return (kernel, threads);
        }
    }
    (long, READING_TWICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of all blocks fit in scratch at every width, all rows are covered, and a wide GPU is
    /// filled where there are rows for it.
    #[test]
    fn sums_of_all_blocks_fit_in_scratch() {
        for cols in [64, 768, 4096, 5632, 8192, 12_288, 16_384] {
            for rows in [1, 15, 16, 17, 2048, 7373, 16_384, 131_072] {
                let sums = 3 * cols * size_of::<f32>();
                let (count, chunk) = blocks(rows, sums);
                assert!(count * sums <= SCRATCH, "{rows} x {cols}: {count} blocks");
                assert!(count * chunk >= rows && (count - 1) * chunk < rows, "{rows} x {cols}");
                assert!(count <= rows.div_ceil(CHUNK), "{rows} x {cols}: {count} blocks");
            }
        }
        assert_eq!(blocks(1 << 20, 3 * 768 * size_of::<f32>()), (1056, 993));
    }
}
