//! Device memory that the measurements share, its contents, and the timing of device ops.

use super::bench_rank::BenchRank;
use base::DType;
use device::{Arena, Backend, Tensor, op};
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Maximum bytes of a message, a copy or a collective: 1 GiB.
const LARGEST: usize = 1 << 30;

/// Memory of matrix products: the minimum, and the amount for full sizes.
pub struct ProductBytes {
    pub least: usize,
    pub most: usize,
}

/// Region of device memory, equally large on every rank.
pub struct Scratch {
    arena: Arena,
    pub bytes: usize,
}

impl Scratch {
    /// Reserves as much as the largest measurement needs, or half of this rank's share of the
    /// memory; messages in flight need the other half. On the CPU untouched pages cost nothing. A
    /// collective.
    pub fn new(bench: &BenchRank, products: ProductBytes) -> anyhow::Result<Scratch> {
        let be = bench.backend();
        let free = bench
            .device
            .memory()
            .map(|(free, _)| free)
            .or(be.shared_memory());
        let parts = 2 * bench.per_node() as u64;
        let share = free.map_or(LARGEST as u64, |free| free.0 / parts);
        let wanted = products
            .most
            .max(2 * LARGEST)
            .min(share as usize)
            .max(products.least);
        let bytes = bench
            .rank
            .all_gather(&wanted)?
            .into_iter()
            .min()
            .expect("one rank at least");
        let arena = Arena::new(be, bytes);
        let arena = bench.rank.agree(arena.map_err(anyhow::Error::from))?;
        Ok(Scratch { arena, bytes })
    }

    /// Runs `work` with exclusive use of the memory.
    pub fn with<T>(&self, work: impl FnOnce(&Arena) -> T) -> T {
        self.arena.temporary(work)
    }

    /// Largest power of 4, up to 1 GiB, such that two tensors of that many bytes fit.
    pub fn half(&self) -> usize {
        let mut size = LARGEST;
        while 2 * size > self.bytes && size > 1024 {
            size /= 4;
        }
        size
    }
}

/// Fills a matrix with small numbers of both signs, because zeros would draw less power.
pub fn fill(be: &dyn Backend, x: Tensor) {
    let some = x.numel().min(1 << 18);
    let values =
        (0..some).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 7 & 0xffff) as f32 / 65536.0 - 0.5);
    let bytes: Vec<u8> = match x.dtype {
        DType::BF16 => values
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        DType::F16 => values
            .flat_map(|v| f16::from_f32(v).to_le_bytes())
            .collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    };
    be.upload(&bytes, x.span(0, some));
    let mut done = some;
    while done < x.numel() {
        let more = done.min(x.numel() - done);
        be.run(op::Copy { x: x.span(0, more), y: x.span(done, more).set() });
        done += more;
    }
}

/// Minimum duration of a batch of device ops, so that launches and the wait are negligible.
const BATCH_SECONDS: f64 = 2e-3;

/// Maximum number of batches.
const BATCHES: usize = 30;

/// Seconds per op.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// Mean of the fastest batch: the capability of the device.
    pub best: f64,
    /// Mean of all batches: the throughput if other ranks share the device.
    pub mean: f64,
}

/// Times batches of `op` for about `seconds`, at least one, after one op for warm-up.
pub fn time_batches(be: &dyn Backend, seconds: f64, op: impl Fn()) -> anyhow::Result<Timing> {
    let start = Instant::now();
    batch(be, 1, &op)?;
    let first = batch(be, 1, &op)?;
    let each = (BATCH_SECONDS / first).clamp(1.0, 100.0) as usize;
    let mut ops = 1;
    let mut spent = first;
    let mut best = first;
    for _ in 0..BATCHES {
        if start.elapsed().as_secs_f64() > seconds {
            break;
        }
        let mean = batch(be, each, &op)?;
        best = best.min(mean);
        (ops, spent) = (ops + each, spent + mean * each as f64);
    }
    Ok(Timing { best, mean: spent / ops as f64 })
}

/// Times exactly `batches` batches of `ops` ops, for ops that other ranks take part in, after one
/// op for warm-up.
pub fn timed_together(
    be: &dyn Backend,
    batches: usize,
    ops: usize,
    op: impl Fn(),
) -> anyhow::Result<Timing> {
    batch(be, 1, &op)?;
    let all = (0..batches)
        .map(|_| batch(be, ops, &op))
        .collect::<anyhow::Result<Vec<f64>>>()?;
    let best = all.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(Timing { best, mean: all.iter().sum::<f64>() / batches as f64 })
}

/// Mean seconds of some ops.
fn batch(be: &dyn Backend, ops: usize, op: &impl Fn()) -> anyhow::Result<f64> {
    let start = Instant::now();
    (0..ops).for_each(|_| op());
    be.sync()?;
    Ok(start.elapsed().as_secs_f64() / ops as f64)
}
