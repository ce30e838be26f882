//! Peak arithmetic of the processor's registers: an upper bound of any product, for benches.

#[cfg(target_arch = "x86_64")]
use super::tiles::TileOps;
use super::{Instructions, Lanes};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// FLOP/s of one thread that multiplies and adds registers only: f32, or with `pairs` bf16, with
/// the instructions of products. The best of a twentieth of a second.
pub fn peak(pairs: bool) -> f64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `for_products` is at most the processor's best set, whose features each function needs;
    // it is AMX only if Linux permits this process to use it.
    unsafe {
        match Instructions::for_products(pairs) {
            Instructions::Amx => return best(TILE_ROUND, |rounds| x86::peak_amx(rounds)),
            Instructions::Avx512Bf16 => {
                return best(CHAINS * 2 * 16, |rounds| x86::peak_dot_bf16(rounds));
            }
            Instructions::Avx512 => return best(CHAINS * 16, |rounds| x86::peak_avx512(rounds)),
            Instructions::Avx2 => return best(CHAINS * 8, |rounds| x86::peak_avx2(rounds)),
            Instructions::Baseline => {}
        }
    }
    let _ = pairs;
    // SAFETY: every processor has arrays.
    best(CHAINS * 4, |rounds| unsafe { chains::<[f32; 4]>(rounds) })
}

/// Independent sums, enough to hide the latency of an instruction.
const CHAINS: usize = 12;

/// Adds a product to each sum, `rounds` times.
///
/// # Safety
/// The processor has the register.
#[inline(always)]
pub(super) unsafe fn chains<V: Lanes>(rounds: usize) {
    // SAFETY: as the caller promises; no memory is accessed by pointer.
    unsafe {
        let a = V::splat(black_box(1e-9));
        let b = V::splat(black_box(1e-9));
        let mut sums = [V::splat(0.0); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = sum.plus_product(a, b);
            }
        }
        black_box(sums);
    }
}

/// Multiplications of a round of tiles: four products, each of 16 by 16 sums of 32.
#[cfg(target_arch = "x86_64")]
const TILE_ROUND: usize = 4 * 32 * 16 * 16;

/// Multiplies tiles of zeros and adds them to four others, `rounds` times.
///
/// # Safety
/// The processor has the instructions of `tiles`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn tile_chains(mut tiles: impl TileOps, rounds: usize) {
    // SAFETY: tiles 0 to 7 are all that there are, used by the thread that made them.
    unsafe {
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        tiles.zero::<4>();
        tiles.zero::<5>();
        tiles.zero::<6>();
        tiles.zero::<7>();
        for _ in 0..rounds {
            tiles.dot::<0, 4, 6>();
            tiles.dot::<1, 4, 7>();
            tiles.dot::<2, 5, 6>();
            tiles.dot::<3, 5, 7>();
        }
    }
}

/// Operations per second of the shortest call; a round has `products` multiplications.
fn best(products: usize, run: impl Fn(usize)) -> f64 {
    const ROUNDS: usize = 20_000;
    let start = Instant::now();
    let mut best = Duration::MAX;
    while start.elapsed() < Duration::from_millis(50) {
        let begin = Instant::now();
        run(ROUNDS);
        best = best.min(begin.elapsed());
    }
    (2 * products * ROUNDS) as f64 / best.as_secs_f64()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::tiles::amx::Amx;
    use super::super::x86::{DotBf16, compiled};
    use super::{chains, tile_chains};
    use std::arch::x86_64::{__m256, __m512};

    compiled! {
        peak_avx512(rounds: usize), "avx512f" => chains::<__m512>(rounds);
        peak_dot_bf16(rounds: usize), "avx512f,avx512bf16" => chains::<DotBf16>(rounds);
        peak_avx2(rounds: usize), "avx2,fma" => chains::<__m256>(rounds);
    }

    /// # Safety
    /// As for `Amx::begin`.
    pub unsafe fn peak_amx(rounds: usize) {
        // SAFETY: as the caller promises.
        unsafe { tile_chains(Amx::begin(), rounds) }
    }
}
