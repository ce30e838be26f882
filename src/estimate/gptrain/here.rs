//! The processor at hand in place of the table's row: a matrix product and a copy, timed for 16 ms.

use crate::hardware::{Hardware, MEASURED};
use base::DType;
use device::cpu::Cpu;
use device::{Arena, Backend, Epilogue, Gemm};
use std::time::Instant;

/// Of each of the two.
const SECONDS: f64 = 0.008;

/// C [ROWS, WIDTH] = A [ROWS, WIDTH] · Bᵀ: what a small model multiplies.
const ROWS: usize = 512;
const WIDTH: usize = 512;

/// Copied at once: more than caches hold.
const COPIED: usize = 32 << 20;

/// `cpu`'s row with the figures of this machine: all its processors, in elements of `dtype`. The row
/// as it is where the threads or the memory for a try cannot be had.
pub fn measured(cpu: &Hardware, dtype: DType) -> Hardware {
    let Ok(be) = Cpu::open(None) else { return cpu.clone() };
    let Ok(arena) = Arena::new(&be, 2 * COPIED + (1 << 16)) else { return cpu.clone() };
    let product = arena.temporary(|arena| {
        let [a, c] = [0; 2].map(|_| arena.matrix(ROWS, WIDTH, dtype));
        let b = arena.matrix(WIDTH, WIDTH, dtype);
        [a, b].into_iter().for_each(|x| be.zero(x));
        best(|| be.gemm(Gemm::NT, a, b, c.set(), Epilogue::Nothing))
    });
    let copy = arena.temporary(|arena| {
        let [x, y] = [0; 2].map(|_| arena.matrix(1, COPIED / 4, DType::F32));
        [x, y].into_iter().for_each(|x| be.zero(x));
        best(|| be.copy(x, y.set()))
    });
    let copied = rounded(2.0 * COPIED as f64 / copy / 1e9);
    Hardware {
        peak_tflops: rounded(2.0 * (ROWS * WIDTH * WIDTH) as f64 / product / 1e12),
        hbm_gb_s: copied,
        host_gb_s: copied,
        here: true,
        doubt: MEASURED,
        ..cpu.clone()
    }
}

/// To a thousandth, which is more than the next try would repeat.
fn rounded(speed: f64) -> f64 {
    (speed * 1e3).ceil() / 1e3
}

/// Seconds of the fastest of several.
fn best(op: impl Fn()) -> f64 {
    op(); // warms up
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while best == f64::INFINITY || start.elapsed().as_secs_f64() < SECONDS {
        let start = Instant::now();
        op();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

#[test]
fn this_processor_has_positive_speeds() {
    let row = crate::hardware::find("cpu", "test").unwrap();
    for dtype in [DType::F32, DType::BF16] {
        let here = measured(row, dtype);
        let speeds = [here.peak_tflops, here.hbm_gb_s, here.host_gb_s];
        assert!(here.here && speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0));
        assert_eq!(here.memory_gib, row.memory_gib);
    }
}
