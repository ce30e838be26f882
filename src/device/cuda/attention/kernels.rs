//! Kernels of attention by dtype and width of a head: on tensor cores if these allow it, otherwise on
//! ordinary cores.

use crate::cuda::launch::typed;
use base::DType;

/// One kernel: its name, and the positions, threads and shared memory of a block.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub name: &'static str,
    pub tile: usize,
    pub threads: usize,
    pub shared: usize,
    /// Whether its arguments include tensor maps.
    pub mapped: bool,
}

/// The kernels for one dtype and width of a head.
#[derive(Clone, Copy)]
pub struct Kernels {
    pub forward: Kernel,
    pub kv: Kernel,
    pub q: Kernel,
}

/// Names of the kernels of forward, and of backward for keys and values and for queries.
macro_rules! names {
    ($($kind:literal)+, $dtype:expr) => {
        [
            typed!("attention_" $($kind)+, $dtype),
            typed!("attention_kv_" $($kind)+, $dtype),
            typed!("attention_q_" $($kind)+, $dtype),
        ]
    };
}

/// Kernels of `attention_mma.cu`, which copy rows in pieces of 16 bytes.
pub fn tensor_cores(head: usize, dtype: DType) -> Option<Kernels> {
    if !head.is_multiple_of(8) {
        return None;
    }
    macro_rules! at_least {
        ($($d:literal)*) => {
            match head {
                $(..=$d => ($d, names!("mma_" $d, dtype)),)*
                _ => return None,
            }
        };
    }
    let (d, [forward, kv, q]) = at_least!(32 64 80 96 128 160);
    // As in the kernels' source: a block's rows, the rows streamed at once, and the numbers kept per
    // row.
    let row = 2 * (d + 8);
    let kernel = |name, own: usize, passing: usize, shared: usize| {
        let shared = (own + passing) * row + shared + 16;
        Kernel { name, tile: own, threads: 128, shared, mapped: false }
    };
    let forward_own = if d <= 128 { 128 } else { 64 };
    let own = if d <= 64 { 128 } else { 64 };
    let forward_keys = if d <= 80 { 64 } else { 32 };
    let kv_queries = if d == 64 || d == 160 { 16 } else { 32 };
    let q_keys = if (65..=96).contains(&d) { 64 } else { 32 };
    Some(Kernels {
        forward: kernel(forward, forward_own, 2 * forward_keys, 8 * forward_own),
        // Keys and values, or queries and dy, are two; of the streamed operands there are two tiles each.
        kv: kernel(kv, own, own + 4 * kv_queries, 2 * 16 * kv_queries),
        q: kernel(q, own, own + 4 * q_keys, 8 * own),
    })
}

/// Kernels of `attention.cu`.
pub fn any_width(d: usize, dtype: DType) -> Kernels {
    let [forward, kv, q] = match d {
        ..=64 => names!("4", dtype),
        65..=128 => names!("8", dtype),
        129..=256 => names!("16", dtype),
        _ => panic!("a head of {d} is wider than 256"),
    };
    // As `Small` in the kernels' source, and tiles of f32.
    let small = 4 * (2 * 32 * 33 + 3 * 32) + 8 * 32 + 16;
    let kernel = |name, tiles: usize| {
        let shared = tiles * 4 * 32 * (d + 1) + small;
        Kernel { name, tile: 32, threads: 256, shared, mapped: false }
    };
    Kernels { forward: kernel(forward, 3), kv: kernel(kv, 4), q: kernel(q, 4) }
}
