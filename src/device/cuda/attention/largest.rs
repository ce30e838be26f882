//! Largest launch of each kernel, for the check of the compiled kernels' registers and shared memory
//! (`tests/ops/resources.rs`).

use super::hopper;
use super::kernels::{self, Kernel, Kernels};
use crate::cuda::launch::THREADS;
use crate::cuda::{adafactor, cross_entropy, embed, fp8, layernorm, low_rank, query_key};
use base::DType;

/// Block of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestLaunch {
    /// Name of the kernel, or the beginning of the names of several.
    pub kernel: &'static str,
    /// Threads; None for kernels launched with as many as the driver reports for them.
    pub threads: Option<usize>,
    /// Bytes of dynamic shared memory. Kernels that size it by their rows first query the limit.
    pub shared: usize,
}

/// Largest launches of all kernels. A kernel's own entry is the one with the longest name that its name
/// begins with; "" is that of kernels that process elements or rows.
pub fn largest_launches() -> Vec<LargestLaunch> {
    let fixed = [
        ("", THREADS),
        ("adafactor_scalars", 1),
        ("adam_scalars", 1),
        ("clip", 32),
        ("cross_entropy", cross_entropy::MOST_THREADS),
        ("embed_count", embed::TILE),
        ("embed_place", embed::TILE),
        ("embed_start", embed::STARTERS),
        ("fp8_own_rows", fp8::ROW_THREADS),
        ("layernorm_backward_any", layernorm::READING_TWICE),
        ("layernorm_backward_long", layernorm::READING_TWICE),
        ("loss_scale_step", 1),
        ("move_second_moment", adafactor::MOMENT_THREADS),
        ("norm_residual_backward_any", layernorm::READING_TWICE),
        ("norm_residual_backward_long", layernorm::READING_TWICE),
        ("orthogonalize", low_rank::THREADS),
        ("query_key", 32 * query_key::WARPS),
        ("skip_above", 1),
    ];
    let asked = ["layernorm_backward_wide", "norm_residual_backward_wide"];
    let fixed = fixed.map(|(kernel, threads)| (kernel, Some(threads)));
    let asked = asked.map(|kernel| (kernel, None));
    let mut all: Vec<_> = fixed
        .into_iter()
        .chain(asked)
        .map(|(kernel, threads)| LargestLaunch { kernel, threads, shared: 0 })
        .collect();
    all.extend(attention_launches());
    all
}

/// Launches of attention's kernels; those for ordinary cores with the widest head that they support.
fn attention_launches() -> Vec<LargestLaunch> {
    let mut all: Vec<LargestLaunch> = Vec::new();
    let mut add = |Kernels { forward, kv, q }: Kernels| {
        for Kernel { name, threads, shared, .. } in [forward, kv, q] {
            let launch = LargestLaunch { kernel: name, threads: Some(threads), shared };
            all.retain(|known| known.kernel != name || known.shared > shared);
            if all.iter().all(|known| known.kernel != name) {
                all.push(launch);
            }
        }
    };
    for d in 1..=256 {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            add(kernels::any_width(d, dtype));
            if dtype == DType::F32 {
                continue;
            }
            if let Some(others) = kernels::tensor_cores(d, dtype) {
                add(others);
                add(hopper::kernels(d, others));
            }
        }
    }
    all
}
