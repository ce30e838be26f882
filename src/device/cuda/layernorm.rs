//! Layer and RMS normalisation over each row.

use super::args::{self, DropoutMask};
use super::elementwise::{add_parts, bias_address};
use super::launch::{Grid, typed, vector, wide};
use super::{Cuda, SCRATCH};
use crate::{Backend, Dropout, Norm, Out, Tensor};
use base::DType;
use std::ptr::null_mut;

/// Rows in shared memory: of at most eight warps, in what every GPU gives at once.
const SHARED: usize = 48 << 10;

pub(super) fn forward(cuda: &Cuda, x: Tensor, norm: &Norm, y: Out, stats: Out) {
    let (scale, shift, eps) = norm.parts(x);
    let shift = shift.map_or(0, Tensor::addr);
    assert_eq!((x.rows, x.cols, x.dtype), (y.to.rows, y.to.cols, y.to.dtype), "x and y");
    assert_eq!((stats.to.numel(), stats.to.dtype, stats.add), (2 * x.rows, DType::F32, false));
    let addresses = [x.addr(), scale.addr(), shift, y.to.addr()];
    let arguments = args::LayerNorm {
        x: x.addr() as _,
        scale: scale.addr() as _,
        shift: shift as _,
        y: y.to.addr() as _,
        stats: stats.to.addr() as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        eps,
        add: y.add.into(),
        vector: vector(x.cols, x.dtype, &addresses).into(),
    };
    cuda.launch(typed!("layernorm", x.dtype), row_by_warp(x), arguments);
}

/// A warp for each row, and shared memory for the rows; a block for each where two do not fit in `SHARED`:
/// a multiprocessor has few of them at once.
fn row_by_warp(x: Tensor) -> Grid {
    let bytes = x.cols * x.dtype.size();
    let warps = (SHARED / bytes.max(1)).min(8);
    if warps < 2 {
        return Grid::line(x.rows.max(1), 256).with_shared(bytes);
    }
    let blocks = [x.rows.div_ceil(warps).max(1), 1, 1];
    Grid { blocks, threads: [32, warps], shared: warps * bytes }
}

pub(super) fn of_residual(
    cuda: &Cuda,
    [x, branch]: [Tensor; 2],
    bias: Option<Tensor>,
    drop: &Dropout,
    y: Out,
    norm: &Norm,
    [h, stats]: [Out; 2],
) {
    let (scale, shift, eps) = norm.parts(x);
    let shift = shift.map_or(0, Tensor::addr);
    assert!(!y.add && !h.add && !stats.add, "residual and norm overwrite");
    for other in [branch, y.to, h.to] {
        assert_eq!((x.rows, x.cols, x.dtype), (other.rows, other.cols, other.dtype), "shapes");
    }
    assert_eq!((stats.to.numel(), stats.to.dtype), (2 * x.rows, DType::F32), "stats");
    let bias = bias_address(bias, x);
    let [xa, branch, ya, scale, ha] = [x, branch, y.to, scale, h.to].map(Tensor::addr);
    let addresses = [xa, branch, bias, ya, scale, shift, ha];
    let arguments = args::ResidualNorm {
        x: xa as _,
        branch: branch as _,
        bias: bias as _,
        y: ya as _,
        scale: scale as _,
        shift: shift as _,
        h: ha as _,
        stats: stats.to.addr() as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        eps,
        vector: vector(x.cols, x.dtype, &addresses).into(),
        drop: DropoutMask::new(drop),
    };
    cuda.launch(typed!("residual_norm", x.dtype), row_by_warp(x), arguments);
}

/// Rows a block works on at least, and blocks to have work for a whole GPU.
const CHUNK: usize = 16;
const BLOCKS: usize = 1056;

/// `inputs` are dy, x, stats and scale.
pub(super) fn backward(
    cuda: &Cuda,
    inputs: [Tensor; 4],
    dx: Out,
    dscale: Out,
    dshift: Option<Out>,
) {
    let (arguments, grid) = backward_arguments(cuda, inputs, [dx, dscale], dshift, 2);
    let x = inputs[1];
    let kernels = [
        typed!("layernorm_backward_wide1", x.dtype),
        typed!("layernorm_backward_wide16", x.dtype),
        typed!("layernorm_backward_long", x.dtype),
        typed!("layernorm_backward_any", x.dtype),
    ];
    let (kernel, threads) = kernel_for(cuda, kernels, &inputs, &[dx.to]);
    cuda.launch(kernel, Grid { threads: [threads, 1], ..grid }, arguments);
    add_all(cuda, &arguments, grid, [Some(dscale), dshift]);
}

/// As `backward`, whose dx accumulates, and then dropout's way back from dx.
pub(super) fn of_residual_backward(
    cuda: &Cuda,
    inputs: [Tensor; 4],
    [dx, dscale]: [Out; 2],
    dshift: Option<Out>,
    drop: &Dropout,
    dbranch: Out,
    dbias: Option<Out>,
) {
    let x = inputs[1];
    let shared = 3 * x.cols * size_of::<f32>();
    if !cuda.has_room(typed!("norm_residual_backward_long", x.dtype), shared) {
        backward(cuda, inputs, dx, dscale, dshift);
        return cuda.residual_backward(dx.to, drop, dbranch, dbias);
    }
    assert!(dx.add && !dbranch.add, "dx accumulates, dbranch does not");
    assert!(dbias.is_none_or(|dbias| dbias.add), "dbias accumulates");
    let to = dbranch.to;
    assert_eq!((x.rows, x.cols, x.dtype), (to.rows, to.cols, to.dtype), "x and dbranch");
    let (norm, grid) = backward_arguments(cuda, inputs, [dx, dscale], dshift, 3);
    let same = drop.rate == 0.0 && to == dx.to;
    let dbranch = if same { null_mut() } else { to.addr() as _ };
    let arguments = args::NormResidualBackward { norm, dbranch, drop: DropoutMask::new(drop) };
    let kernels = [
        typed!("norm_residual_backward_wide1", x.dtype),
        typed!("norm_residual_backward_wide16", x.dtype),
        typed!("norm_residual_backward_long", x.dtype),
        typed!("norm_residual_backward_any", x.dtype),
    ];
    let (kernel, threads) = kernel_for(cuda, kernels, &inputs, &[dx.to, to]);
    cuda.launch(kernel, Grid { threads: [threads, 1], ..grid }, arguments);
    add_all(cuda, &norm, grid, [Some(dscale), dshift, dbias]);
}

/// Arguments and blocks, without the kernel and its threads. `inputs` are dy, x, stats and scale; each block leaves
/// `sums` rows of partial sums.
fn backward_arguments(
    cuda: &Cuda,
    [dy, x, stats, scale]: [Tensor; 4],
    [dx, dscale]: [Out; 2],
    dshift: Option<Out>,
    sums: usize,
) -> (args::LayerNormBackward, Grid) {
    for other in [dy, dx.to] {
        assert_eq!((x.rows, x.cols, x.dtype), (other.rows, other.cols, other.dtype), "shapes");
    }
    assert_eq!((stats.numel(), scale.numel()), (2 * x.rows, x.cols), "stats and scale");
    let accumulate = dscale.add && dshift.is_none_or(|dshift| dshift.add);
    assert!(accumulate, "the gradients of scale and shift accumulate");
    let shared = sums * x.cols * size_of::<f32>();
    let (blocks, chunk) = blocks(x.rows, shared);
    let arguments = args::LayerNormBackward {
        dy: dy.addr() as _,
        x: x.addr() as _,
        stats: stats.addr() as _,
        scale: scale.addr() as _,
        dx: dx.to.addr() as _,
        parts: cuda.scratch(blocks * shared) as _,
        rows: x.rows as u64,
        cols: x.cols as u32,
        chunk: chunk as u32,
        add: dx.add.into(),
        rms: dshift.is_none().into(),
    };
    (arguments, Grid::line(blocks, 0).with_shared(shared))
}

/// Blocks and rows of each, for `rows` rows of which a block leaves so many bytes of sums: as many as
/// fill a GPU, and as leave their sums in scratch.
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
    let cols = from.cols as usize;
    for (i, out) in outs.into_iter().enumerate() {
        if let Some(out) = out {
            let parts = from.parts as usize + i * cols * size_of::<f32>();
            add_parts(cuda, parts, N * cols, grid.blocks[0], out);
        }
    }
}

/// Threads of a block that reads its rows twice: the bound of those kernels.
pub(super) const READING_TWICE: usize = 512;

/// The kernel for rows of this width, and threads of its blocks. Of `kernels`, threads of the first hold a piece
/// of 16 bytes of a row, of the second sixteen columns, and of the others nothing.
fn kernel_for(
    cuda: &Cuda,
    [piece, sixteen, long, any]: [&'static str; 4],
    inputs: &[Tensor; 4],
    outs: &[Tensor],
) -> (&'static str, usize) {
    let [dy, x, _, scale] = *inputs;
    let addresses: Vec<usize> = [&[dy, x, scale], outs].concat().iter().map(|x| x.addr()).collect();
    let threads = |columns: usize| x.cols.div_ceil(columns).next_multiple_of(32);
    let wide = wide(x.dtype);
    match vector(x.cols, x.dtype, &addresses) {
        true if threads(wide) <= cuda.most_threads(piece) => (piece, threads(wide)),
        true if threads(16) <= cuda.most_threads(sixteen) => (sixteen, threads(16)),
        true => (long, READING_TWICE),
        false => (any, READING_TWICE),
    }
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
