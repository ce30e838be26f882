//! Bulk normal random numbers: the bits of `base::rng::normals`, eight or more at a time.
//!
//! Logarithm, sine and cosine are polynomials in f64 (FreeBSD's msun, e_log.c, k_sin.c and k_cos.c;
//! errors below 2^-57), different from libm's. Both are within a few ulp (f64) of the exact number,
//! so both round to the same f32 unless it is close to a midpoint. Such numbers, one in four
//! million, are computed by `rng::normals` itself.

// Constants are given as printed in their source.
#![allow(clippy::excessive_precision)]

use super::math::vectorised;
use base::rng::{self, philox};

/// Counters computed at a time; each gives four numbers.
const AT_ONCE: usize = 16;

/// Standard normals `first .. first + out.len()` of the stream `key`: the bits of `rng::normals`.
pub fn normals(key: u64, first: u64, out: &mut [f32]) {
    let before = (first.next_multiple_of(4) - first).min(out.len() as u64) as usize;
    let (head, rest) = out.split_at_mut(before);
    rng::normals(key, first, head);
    let mut at = first + before as u64;
    for group in rest.chunks_mut(4 * AT_ONCE) {
        let whole = group.len() == 4 * AT_ONCE;
        if !(whole && draw(key, at / 4, group)) {
            rng::normals(key, at, group);
        }
        at += group.len() as u64;
    }
}

vectorised! {
    /// Computes the numbers of `AT_ONCE` counters. Returns whether they round like exact ones.
    fn draw(key: u64, counter: u64, out: &mut [f32]) -> bool {
        let mut words = [[0u32; AT_ONCE]; 4];
        for i in 0..AT_ONCE {
            let four = philox(key, (counter + i as u64) as u128);
            for (words, word) in words.iter_mut().zip(four) {
                words[i] = word;
            }
        }
        let mut values = [[0.0f32; AT_ONCE]; 4];
        let mut doubts = [0u64; AT_ONCE];
        for pair in 0..2 {
            for i in 0..AT_ONCE {
                let (x, y) = box_muller(words[2 * pair][i], words[2 * pair + 1][i]);
                values[2 * pair][i] = x as f32;
                values[2 * pair + 1][i] = y as f32;
                doubts[i] |= doubtful(x) | doubtful(y);
            }
        }
        for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *out = std::array::from_fn(|j| values[j][i]);
        }
        doubts.iter().fold(0, |any, doubt| any | doubt) == 0
    }
}

/// 1 if a number is so close to the midpoint of two f32, or to 0, that another algorithm may round
/// differently.
#[inline(always)]
fn doubtful(x: f64) -> u64 {
    /// Distance in f64 ulp; the two algorithms differ by at most about eight.
    const NEAR: u64 = 64;
    const MIDDLE: u64 = 1 << 28;
    let from_middle = x.to_bits().wrapping_add(NEAR).wrapping_sub(MIDDLE) & (2 * MIDDLE - 1);
    u64::from(from_middle <= 2 * NEAR) | u64::from(x.abs() < 1e-14)
}

/// Same formula as `rng::normals`, before rounding to f32. Without fused products, so that all
/// registers give the same bits.
#[inline(always)]
fn box_muller(a: u32, b: u32) -> (f64, f64) {
    const UNIT: f64 = 1.0 / 4_294_967_296.0;
    let radius = (-2.0 * ln((a as f64 + 0.5) * UNIT)).sqrt();
    let (sin, cos) = sin_cos(std::f64::consts::TAU * (b as f64 * UNIT));
    (radius * cos, radius * sin)
}

/// ln x of a normal number, as k·ln 2 + ln m with m from √½ to √2.
#[inline(always)]
fn ln(x: f64) -> f64 {
    const ROOT_HALF: u64 = 0x3fe6_a09e_0000_0000;
    const ONE: u64 = 0x3ff0_0000_0000_0000;
    const MANTISSA: u64 = (1 << 52) - 1;
    /// 2^52, whose low bits hold whole numbers.
    const WHOLE: u64 = 0x4330_0000_0000_0000;
    let bits = x.to_bits().wrapping_add(ONE - ROOT_HALF);
    let k = f64::from_bits(WHOLE | (bits >> 52)) - (f64::from_bits(WHOLE) + 1023.0);
    let f = f64::from_bits((bits & MANTISSA) + ROOT_HALF) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let mut r = 1.479_819_860_511_658_591e-1;
    for c in [
        1.531_383_769_920_937_332e-1,
        1.818_357_216_161_805_012e-1,
        2.222_219_843_214_978_396e-1,
        2.857_142_874_366_239_149e-1,
        3.999_999_999_940_941_908e-1,
        6.666_666_666_666_735_130e-1,
    ] {
        r = r * z + c;
    }
    let half = 0.5 * f * f;
    let low = s * (half + r * z) + k * 1.908_214_929_270_587_700_02e-10;
    k * 6.931_471_803_691_238_164_90e-1 - ((half - low) - f)
}

/// Sine and cosine of an angle from 0 to 2π, minus the nearest multiple of π/2, in two parts.
#[inline(always)]
fn sin_cos(angle: f64) -> (f64, f64) {
    /// Adding 1.5·2^52 puts the nearest integer into the low bits.
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    let shifted = angle * std::f64::consts::FRAC_2_PI + SHIFT;
    let quarter = shifted.to_bits();
    let n = shifted - SHIFT;
    let x = (angle - n * 1.570_796_326_734_125_614_17) - n * 6.077_100_506_506_192_249_32e-11;
    let z = x * x;
    let mut s = 1.589_690_995_211_550_102_21e-10;
    let mut c = -1.135_964_755_778_819_482_65e-11;
    for (to_s, to_c) in [
        (-2.505_076_025_340_686_341_95e-8, 2.087_572_321_298_174_827_90e-9),
        (2.755_731_370_707_006_767_89e-6, -2.755_731_435_139_066_330_35e-7),
        (-1.984_126_982_985_794_931_34e-4, 2.480_158_728_947_672_941_78e-5),
        (8.333_333_333_322_489_461_24e-3, -1.388_888_888_887_410_957_49e-3),
        (-1.666_666_666_666_663_243_48e-1, 4.166_666_666_666_660_190_37e-2),
    ] {
        s = s * z + to_s;
        c = c * z + to_c;
    }
    let sin = x + x * z * s;
    let half = 0.5 * z;
    let cos = 1.0 - half;
    let cos = cos + (((1.0 - cos) - half) + z * z * c);
    let (sin, cos) = if quarter & 1 == 0 { (sin, cos) } else { (cos, sin) };
    let negative = |bit: u64, x: f64| f64::from_bits(x.to_bits() ^ (bit & 2) << 62);
    (negative(quarter, sin), negative(quarter.wrapping_add(1), cos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agree(key: u64, first: u64, len: usize) {
        let mut fast = vec![0.0; len];
        let mut plain = vec![0.0; len];
        normals(key, first, &mut fast);
        rng::normals(key, first, &mut plain);
        let differ = (0..len).find(|i| fast[*i].to_bits() != plain[*i].to_bits());
        assert_eq!(differ, None, "of {len} from {first} on");
    }

    #[test]
    fn bulk_has_the_bits_of_one_at_a_time() {
        agree(rng::key(1, "weight"), 0, 2_000_000);
        for (first, len) in [(0, 1), (3, 1), (1, 64), (2, 131), (5, 2), ((1 << 40) + 7, 1000)] {
            agree(7, first, len);
        }
    }

    /// Critical inputs: words at the ends, and angles close to multiples of π/2.
    #[test]
    fn what_is_not_doubtful_is_rounded_as_libm_rounds_it() {
        let ends = [0, 1, 2, u32::MAX, u32::MAX - 1, 1 << 31, (1 << 31) - 1, 3_037_000_499];
        let quarters = (0..4u32)
            .flat_map(|i| (0..5u32).map(move |d| (i << 30).wrapping_add(d).wrapping_sub(2)));
        for (a, b) in quarters.flat_map(|b| ends.map(|a| (a, b))) {
            let (x, y) = box_muller(a, b);
            let u = (a as f64 + 0.5) / 4_294_967_296.0;
            let angle = std::f64::consts::TAU * (b as f64 / 4_294_967_296.0);
            let radius = (-2.0 * u.ln()).sqrt();
            for (x, want) in [(x, radius * angle.cos()), (y, radius * angle.sin())] {
                let same = (x as f32).to_bits() == (want as f32).to_bits();
                assert!(same || doubtful(x) == 1, "{a} {b}: {x:e}, {want:e}");
            }
        }
    }
}
