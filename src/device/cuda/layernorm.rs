//! Layer normalisation over each row.

use super::Cuda;
use super::elementwise::add_parts;
use super::launch::{Grid, typed, vector, wide};
use crate::base::DType;
use crate::device::{Out, Tensor};

/// Rows in shared memory: of at most eight warps, in what every GPU gives at once.
const SHARED: usize = 48 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct LayerNorm {
    x: u64,
    scale: u64,
    shift: u64,
    y: u64,
    stats: u64,
    rows: u64,
    cols: u32,
    eps: f32,
    add: u32,
    vector: u32,
}

pub(super) fn forward(
    cuda: &Cuda,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    eps: f32,
    y: Out,
    stats: Out,
) {
    assert_eq!((x.rows, x.cols, x.dtype), (y.to.rows, y.to.cols, y.to.dtype), "x and y");
    assert_eq!((scale.numel(), shift.numel()), (x.cols, x.cols), "scale and shift");
    assert_eq!((scale.dtype, shift.dtype), (x.dtype, x.dtype), "scale and shift");
    assert_eq!((stats.to.numel(), stats.to.dtype, stats.add), (2 * x.rows, DType::F32, false));
    let bytes = x.cols * x.dtype.size();
    let warps = (SHARED / bytes.max(1)).clamp(1, 8);
    let addresses = [x.addr(), scale.addr(), shift.addr(), y.to.addr()];
    let arguments = LayerNorm {
        x: x.addr() as u64,
        scale: scale.addr() as u64,
        shift: shift.addr() as u64,
        y: y.to.addr() as u64,
        stats: stats.to.addr() as u64,
        rows: x.rows as u64,
        cols: x.cols as u32,
        eps,
        add: y.add.into(),
        vector: vector(x.cols, x.dtype, &addresses).into(),
    };
    let blocks = [x.rows.div_ceil(warps).max(1), 1, 1];
    let grid = Grid { blocks, threads: [32, warps], shared: warps * bytes };
    cuda.launch(typed!("layernorm", x.dtype), grid, arguments);
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LayerNormBackward {
    dy: u64,
    x: u64,
    stats: u64,
    scale: u64,
    dx: u64,
    parts: u64,
    rows: u64,
    cols: u32,
    chunk: u32,
    add: u32,
    unused: u32,
}

/// Rows a block works on at least, and blocks to have work for a whole GPU.
const CHUNK: usize = 16;
const BLOCKS: usize = 1056;

/// `inputs` are dy, x, stats and scale.
pub(super) fn backward(cuda: &Cuda, inputs: [Tensor; 4], dx: Out, dscale: Out, dshift: Out) {
    let [dy, x, stats, scale] = inputs;
    for other in [dy, dx.to] {
        assert_eq!((x.rows, x.cols, x.dtype), (other.rows, other.cols, other.dtype), "shapes");
    }
    assert_eq!((stats.numel(), scale.numel()), (2 * x.rows, x.cols), "stats and scale");
    assert!(dscale.add && dshift.add, "the gradients of scale and shift accumulate");
    let blocks = x.rows.div_ceil(CHUNK).clamp(1, BLOCKS);
    let chunk = x.rows.div_ceil(blocks).max(1);
    let blocks = x.rows.div_ceil(chunk).max(1);
    let parts = cuda.scratch(blocks * 2 * x.cols * 4);
    let arguments = LayerNormBackward {
        dy: dy.addr() as u64,
        x: x.addr() as u64,
        stats: stats.addr() as u64,
        scale: scale.addr() as u64,
        dx: dx.to.addr() as u64,
        parts: parts as u64,
        rows: x.rows as u64,
        cols: x.cols as u32,
        chunk: chunk as u32,
        add: dx.add.into(),
        unused: 0,
    };
    let (kernel, threads) = columns(x, &[dy.addr(), x.addr(), scale.addr(), dx.to.addr()]);
    let grid = Grid::line(blocks, threads).with_shared(2 * x.cols * 4);
    cuda.launch(kernel, grid, arguments);
    add_parts(cuda, parts, 2 * x.cols, blocks, dscale);
    add_parts(cuda, parts + x.cols * 4, 2 * x.cols, blocks, dshift);
}

/// The kernel whose threads hold a row, and how many they are.
fn columns(x: Tensor, addresses: &[usize]) -> (&'static str, usize) {
    let wide = wide(x.dtype);
    let (kernel, held) = match vector(x.cols, x.dtype, addresses) {
        true if x.cols <= 512 * wide => (typed!("layernorm_backward_wide1", x.dtype), wide),
        true => (typed!("layernorm_backward_wide16", x.dtype), 16),
        false => (typed!("layernorm_backward_any", x.dtype), 8),
    };
    let threads = x.cols.div_ceil(held).next_multiple_of(32);
    assert!(threads <= 1024, "layernorm over rows of {}", x.cols);
    (kernel, threads)
}
