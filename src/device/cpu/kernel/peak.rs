//! What the processor's registers reach: the ceiling of any product, for benches.

use super::Lanes;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Floating-point operations a second of one thread that multiplies and adds registers only: f32, or
/// with `pairs` bf16 as products of them do. The best of a twentieth of a second.
pub fn peak(pairs: bool) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        use super::x86;
        use crate::cpu::math;
        if pairs && math::has_dot_bf16() {
            // SAFETY: the feature is there.
            return best(2 * 16, |rounds| unsafe { x86::peak_dot_bf16(rounds) });
        }
        if math::has_avx512() {
            // SAFETY: the feature is there.
            return best(16, |rounds| unsafe { x86::peak_avx512(rounds) });
        }
        if math::has_avx2() {
            // SAFETY: the feature is there.
            return best(8, |rounds| unsafe { x86::peak_avx2(rounds) });
        }
    }
    let _ = pairs;
    // SAFETY: any processor has these registers.
    best(4, |rounds| unsafe { chains::<[f32; 4]>(rounds) })
}

/// Sums that grow side by side, as many as hide how long an instruction takes.
const CHAINS: usize = 12;

/// Adds a product to each sum, that often.
#[inline(always)]
pub(super) unsafe fn chains<V: Lanes>(rounds: usize) {
    unsafe {
        let (a, b) = (V::splat(black_box(1e-9)), V::splat(black_box(1e-9)));
        let mut sums = [V::splat(0.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = sum.plus_product(a, b);
            }
        }
        black_box(sums);
    }
}

/// Operations a second of the shortest call; a product has `products` multiplications.
fn best(products: usize, run: impl Fn(usize)) -> f64 {
    const ROUNDS: usize = 20_000;
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < Duration::from_millis(50) {
        let begin = Instant::now();
        run(ROUNDS);
        best = best.min(begin.elapsed());
    }
    (2 * products * CHAINS * ROUNDS) as f64 / best.as_secs_f64()
}
