//! Self-attention: on tensor cores where dtype and width of a head allow it, else on the others.

use super::elementwise::Drop;
use super::launch::{Grid, typed};
use super::preflight::AMPERE;
use super::{Cuda, hopper};
use crate::base::{DType, div_exact};
use crate::device::{Attend, Out, Tensor, Visible};

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub qkv: u64,
    y: u64,
    lse: u64,
    pub dy: u64,
    along: u64,
    dqkv: u64,
    ranges: u64,
    slopes: u64,
    pub rows: u64,
    pub seq: u32,
    pub heads: u32,
    first_head: u32,
    pub d: u32,
    scale: f32,
    unused: u32,
    drop: Drop,
}

/// One kernel: what it is called, the positions a block has, its threads and shared memory.
pub(super) struct Kernel {
    pub name: &'static str,
    pub tile: usize,
    pub threads: usize,
    pub shared: usize,
    /// Whether it takes tensor maps of what it reads.
    pub mapped: bool,
}

/// The kernels for one dtype and width of a head.
pub(super) struct Kernels {
    pub forward: Kernel,
    pub kv: Kernel,
    pub q: Kernel,
}

pub(super) fn forward(cuda: &Cuda, qkv: Tensor, how: &Attend, y: Out, lse: Out) {
    assert!(!y.add && !lse.add, "attention overwrites");
    let (arguments, kernels) = prepare(cuda, qkv, how, y.to, lse.to);
    launch(cuda, &kernels.forward, &arguments);
}

/// `inputs` are dy, qkv, y and lse.
pub(super) fn backward(cuda: &Cuda, inputs: [Tensor; 4], how: &Attend, dqkv: Out) {
    let [dy, qkv, y, lse] = inputs;
    assert_eq!((dy.rows, dy.cols, dy.dtype), (y.rows, y.cols, y.dtype), "dy and y");
    assert_eq!((dqkv.to.rows, dqkv.to.cols, dqkv.add), (qkv.rows, qkv.cols, false), "dqkv");
    let (common, kernels) = prepare(cuda, qkv, how, y, lse);
    let arguments = Attention {
        dy: dy.addr() as u64,
        along: cuda.scratch(lse.bytes()) as u64,
        dqkv: dqkv.to.addr() as u64,
        ..common
    };
    let grid = Grid::line(lse.numel().div_ceil(8), 256);
    cuda.launch(typed!("attention_along", dy.dtype), grid, arguments);
    launch(cuda, &kernels.kv, &arguments);
    launch(cuda, &kernels.q, &arguments);
}

fn launch(cuda: &Cuda, kernel: &Kernel, arguments: &Attention) {
    let (seq, heads) = (arguments.seq as usize, arguments.heads as usize);
    let samples = arguments.rows as usize / seq;
    assert!(heads <= 65_535 && samples <= 65_535, "{heads} heads, {samples} samples");
    let blocks = [seq.div_ceil(kernel.tile), heads, samples];
    let grid = Grid { blocks, threads: [kernel.threads, 1], shared: kernel.shared };
    match &cuda.hopper {
        Some(hopper) if kernel.mapped => {
            cuda.launch(kernel.name, grid, hopper.mapped(&cuda.device, arguments));
        }
        _ => cuda.launch(kernel.name, grid, *arguments),
    }
}

fn prepare(cuda: &Cuda, qkv: Tensor, how: &Attend, y: Tensor, lse: Tensor) -> (Attention, Kernels) {
    let d = div_exact(qkv.cols, 3 * how.heads);
    assert_eq!((y.rows, y.cols, y.dtype), (qkv.rows, how.heads * d, qkv.dtype), "y");
    assert_eq!((lse.rows, lse.cols, lse.dtype), (qkv.rows, how.heads, DType::F32), "lse");
    let ranges = match how.visible {
        Visible::Causal => 0,
        Visible::Ranges(ranges) => {
            assert_eq!((ranges.rows, ranges.cols), (qkv.rows, 2), "visible ranges");
            ranges.addr()
        }
    };
    let slopes = how.slopes.map_or(0, |slopes| {
        assert_eq!(slopes.numel(), how.heads, "slopes");
        slopes.addr()
    });
    div_exact(qkv.rows, how.seq);
    let arguments = Attention {
        qkv: qkv.addr() as u64,
        y: y.addr() as u64,
        lse: lse.addr() as u64,
        dy: 0,
        along: 0,
        dqkv: 0,
        ranges: ranges as u64,
        slopes: slopes as u64,
        rows: qkv.rows as u64,
        seq: how.seq as u32,
        heads: how.heads as u32,
        first_head: how.first_head as u32,
        d: d as u32,
        scale: 1.0 / (d as f32).sqrt(),
        unused: 0,
        drop: Drop::new(&how.dropout),
    };
    let fits = qkv.dtype != DType::F32 && (qkv.addr() | y.addr()).is_multiple_of(16);
    let kernels = if fits && cuda.capability >= AMPERE { tensor_cores(d, qkv.dtype) } else { None };
    let kernels = kernels.map(|kernels| match cuda.hopper {
        Some(_) if qkv.dtype == DType::BF16 => hopper::kernels(d, kernels),
        _ => kernels,
    });
    (arguments, kernels.unwrap_or_else(|| any_width(d, qkv.dtype)))
}

/// Kernels of `attention_mma.cu`, which copy rows in pieces of 16 bytes.
fn tensor_cores(head: usize, dtype: DType) -> Option<Kernels> {
    if !head.is_multiple_of(8) {
        return None;
    }
    macro_rules! at_least {
        ($($d:literal)*) => {
            match head {
                $(..=$d => ($d, [
                    typed!("attention_mma_" $d, dtype),
                    typed!("attention_kv_mma_" $d, dtype),
                    typed!("attention_q_mma_" $d, dtype),
                ]),)*
                _ => return None,
            }
        };
    }
    let (d, [forward, kv, q]) = at_least!(32 64 80 96 128 160);
    // As in the kernels' source: a block's rows, those that pass by at once, and what is kept of each.
    let row = 2 * (d + 8);
    let kernel = |name, own: usize, passing: usize, shared: usize| {
        let shared = (own + passing) * row + shared + 16;
        Kernel { name, tile: own, threads: 128, shared, mapped: false }
    };
    let (forward_own, own) = (if d <= 128 { 128 } else { 64 }, if d <= 64 { 128 } else { 64 });
    let forward_keys = if d <= 80 { 64 } else { 32 };
    let kv_queries = if d == 64 { 16 } else { 32 };
    let q_keys = if (65..=96).contains(&d) { 64 } else { 32 };
    Some(Kernels {
        forward: kernel(forward, forward_own, 2 * forward_keys, 8 * forward_own),
        // Keys and values, or queries and dy, are two; what passes by is two of each.
        kv: kernel(kv, own, own + 4 * kv_queries, 24 * kv_queries),
        q: kernel(q, own, own + 4 * q_keys, 8 * own),
    })
}

/// Kernels of `attention.cu`.
fn any_width(d: usize, dtype: DType) -> Kernels {
    let [forward, kv, q] = match d {
        ..=64 => [
            typed!("attention_4", dtype),
            typed!("attention_kv_4", dtype),
            typed!("attention_q_4", dtype),
        ],
        65..=128 => [
            typed!("attention_8", dtype),
            typed!("attention_kv_8", dtype),
            typed!("attention_q_8", dtype),
        ],
        129..=256 => [
            typed!("attention_16", dtype),
            typed!("attention_kv_16", dtype),
            typed!("attention_q_16", dtype),
        ],
        _ => panic!("a head of {d} is wider than 256"),
    };
    // As `Small` in the kernels' source, and tiles of f32.
    let small = 4 * (2 * 32 * 33 + 3 * 32) + 8 * 32 + 16;
    let tiles = |count: usize| count * 4 * 32 * (d + 1) + small;
    let kernel =
        |name, count| Kernel { name, tile: 32, threads: 256, shared: tiles(count), mapped: false };
    Kernels { forward: kernel(forward, 3), kv: kernel(kv, 4), q: kernel(q, 4) }
}
