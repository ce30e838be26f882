//! Inner loops: arithmetic on blocks, compiled for each vector width and selected at run time.

// Constants are given as printed in their sources.
#![allow(clippy::excessive_precision)]

use crate::Gelu;
use base::rng::philox;

/// Defines functions of slices whose loops are compiled for AVX-512, AVX2 and the baseline.
/// Functions that they call must be inlined, or remain baseline code.
macro_rules! vectorised {
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? $body:block
    )*) => {
        $($(#[$doc])*
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            fn body($($arg: $type),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                /// # Safety
                /// The processor has these features, where the caller is not compiled for them.
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    body($($arg),*)
                }
                /// # Safety
                /// As above.
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    body($($arg),*)
                }
                use $crate::cpu::instructions::Instructions;
                let set = Instructions::in_use();
                if set >= Instructions::Avx512 {
                    // SAFETY: `in_use` is at most the processor's best set, and each set includes
                    // the features of those before it (`instructions::detected`).
                    return unsafe { avx512($($arg),*) };
                }
                if set >= Instructions::Avx2 {
                    // SAFETY: as above.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        })*
    };
}
pub(super) use vectorised;

/// Lanes of a sum: the number of accumulators, for any vector width.
pub(super) const LANES: usize = 16;

vectorised! {
    /// y ← a·x + b·y.
    pub(super) fn sum_of_products(a: f32, x: &[f32], b: f32, y: &mut [f32]) {
        x.iter().zip(y).for_each(|(x, y)| *y = a.mul_add(*x, b * *y));
    }

    /// bf16 to f32, exact.
    pub(super) fn widen(from: &[u16], to: &mut [f32]) {
        for (x, y) in from.iter().zip(to) {
            *y = f32::from_bits((*x as u32) << 16);
        }
    }

    /// f32 to bf16, to nearest even; a NaN remains NaN.
    pub(super) fn narrow(from: &[f32], to: &mut [u16]) {
        for (x, y) in from.iter().zip(to) {
            let bits = x.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            *y = (if x.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16;
        }
    }

    /// Pairs of bf16, the first in the lower half.
    pub(super) fn pair(low: &[u16], high: &[u16], to: &mut [f32]) {
        for ((low, high), to) in low.iter().zip(high).zip(to) {
            *to = f32::from_bits(*low as u32 | (*high as u32) << 16);
        }
    }

    /// y += x
    pub(super) fn add(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y += x;
        }
    }

    /// y *= x
    pub(super) fn multiply(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y *= x;
        }
    }

    pub(super) fn sum(x: &[f32]) -> f32 {
        reduce(x, 0.0, |sum, x| sum + x, |a, b| a + b)
    }

    pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let xs = x.chunks_exact(LANES);
        let ys = y.chunks_exact(LANES);
        let rest = xs.remainder().iter().zip(ys.remainder());
        let rest = rest.fold(0.0, |sum: f32, (x, y)| x.mul_add(*y, sum));
        for (x, y) in xs.zip(ys) {
            for i in 0..LANES {
                lanes[i] = x[i].mul_add(y[i], lanes[i]);
            }
        }
        fold(lanes, |a, b| a + b) + rest
    }

    /// Σ (x − mean)²
    pub(super) fn square_deviations(x: &[f32], mean: f32) -> f32 {
        reduce(x, 0.0, |sum, x| (x - mean).mul_add(x - mean, sum), |a, b| a + b)
    }

    /// Maximum; NaNs are ignored.
    pub(super) fn maximum(x: &[f32]) -> f32 {
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        reduce(x, f32::NEG_INFINITY, larger, larger)
    }

    /// Σ exp(x − maximum)
    pub(super) fn sum_exp(x: &[f32], maximum: f32) -> f32 {
        reduce(x, 0.0, |sum, x| sum + exp(x - maximum), |a, b| a + b)
    }

    /// x = factor·exp(x − maximum)
    pub(super) fn exp_scaled(x: &mut [f32], maximum: f32, factor: f32) {
        for x in x {
            *x = factor * exp(*x - maximum);
        }
    }

    pub(super) fn gelu(kind: Gelu, x: &mut [f32]) {
        match kind {
            Gelu::Tanh => x.iter_mut().for_each(|x| *x = gelu_tanh(*x).0),
            Gelu::Exact => x.iter_mut().for_each(|x| *x *= normal_cdf(*x)),
        }
    }

    /// y *= gelu'(x)
    pub(super) fn gelu_backward(kind: Gelu, x: &[f32], y: &mut [f32]) {
        match kind {
            Gelu::Tanh => x.iter().zip(y).for_each(|(x, y)| *y *= gelu_tanh(*x).1),
            Gelu::Exact => x.iter().zip(y).for_each(|(x, y)| {
                let density = 0.398_942_28 * exp(-0.5 * x * x);
                *y *= x.mul_add(density, normal_cdf(*x));
            }),
        }
    }

    /// y = silu(gate)·value of pairs of gate and value.
    pub(super) fn swiglu(x: &[f32], y: &mut [f32]) {
        for ([gate, value], y) in x.as_chunks::<2>().0.iter().zip(y) {
            *y = gate * sigmoid(*gate) * value;
        }
    }

    /// Replaces pairs of gate and value by their slopes.
    pub(super) fn swiglu_backward(dy: &[f32], x: &mut [f32]) {
        for (dy, [gate, value]) in dy.iter().zip(x.as_chunks_mut::<2>().0) {
            let s = sigmoid(*gate);
            let dvalue = dy * *gate * s;
            *gate = dy * *value * s * gate.mul_add(1.0 - s, 1.0);
            *value = dvalue;
        }
    }

    /// Rotates the points (a, b) by the angles of these cosines and sines.
    pub(super) fn rotate(cos: &[f32], sin: &[f32], a: &mut [f32], b: &mut [f32]) {
        for (((cos, sin), a), b) in cos.iter().zip(sin).zip(a).zip(b) {
            let x = *a;
            let y = *b;
            *a = x.mul_add(*cos, -(y * sin));
            *b = y.mul_add(*cos, x * sin);
        }
    }

    /// Rotates the points back.
    pub(super) fn rotate_back(cos: &[f32], sin: &[f32], a: &mut [f32], b: &mut [f32]) {
        for (((cos, sin), a), b) in cos.iter().zip(sin).zip(a).zip(b) {
            let x = *a;
            let y = *b;
            *a = x.mul_add(*cos, y * sin);
            *b = y.mul_add(*cos, -(x * sin));
        }
    }

    /// x *= factor
    pub(super) fn scale(factor: f32, x: &mut [f32]) {
        for x in x {
            *x *= factor;
        }
    }

    /// dy = rstd·(dy·scale − xhat·along); dscale += dy·xhat.
    pub(super) fn rms_backward(
        dy: &mut [f32], xhat: &[f32], scale: &[f32], dscale: &mut [f32], rstd: f32
    ) {
        let mut along = [0.0f32; LANES];
        for (i, (dy, xhat)) in dy.iter_mut().zip(xhat).enumerate() {
            dscale[i] = dy.mul_add(*xhat, dscale[i]);
            *dy *= scale[i];
            along[i % LANES] = dy.mul_add(*xhat, along[i % LANES]);
        }
        let along = fold(along, |a, b| a + b) / xhat.len() as f32;
        for (dy, xhat) in dy.iter_mut().zip(xhat) {
            *dy = rstd * (-xhat).mul_add(along, *dy);
        }
    }

    /// 0 for elements whose random word is below `bound`, else `kept`.
    pub(super) fn dropout_factors(index: &MaskIndex, bound: u32, kept: f32, factors: &mut [f32]) {
        let (quads, rest) = factors.as_chunks_mut::<4>();
        let whole = quads.len();
        for (i, quad) in quads.iter_mut().enumerate() {
            *quad = index.words(0, i).map(|word| if word < bound { 0.0 } else { kept });
        }
        for (factor, word) in rest.iter_mut().zip(index.words(0, whole)) {
            *factor = if word < bound { 0.0 } else { kept };
        }
    }

    /// Σ x, in f64.
    pub(super) fn sum_f64(x: &[f32]) -> f64 {
        reduce_f64(x, |x| x)
    }

    /// Σ x², in f64.
    pub(super) fn square_sum_f64(x: &[f32]) -> f64 {
        reduce_f64(x, |x| x * x)
    }

    /// Number of zeros.
    pub(super) fn zeros_f64(x: &[f32]) -> f64 {
        reduce_f64(x, |x| if x == 0.0 { 1.0 } else { 0.0 })
    }
}

/// Index of the random words of dropout: row in the whole run, head and first column.
pub(super) struct MaskIndex {
    pub key: u64,
    pub row: u64,
    pub head: usize,
    /// A multiple of 4.
    pub col: usize,
}

impl MaskIndex {
    /// Random words of the `quad`-th four columns and the `row`-th row, relative to this index.
    #[inline(always)]
    pub fn words(&self, row: usize, quad: usize) -> [u32; 4] {
        // No carry leaves the lowest word, because columns / 4 fit in it.
        let low = (self.col / 4) as u32 + quad as u32;
        let row = self.row + row as u64;
        philox(self.key, ((row as u128) << 64) | ((self.head as u128) << 32) | low as u128)
    }
}

#[inline(always)]
fn reduce(
    x: &[f32],
    start: f32,
    join: impl Fn(f32, f32) -> f32,
    merge: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut lanes = [start; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = join(lanes[i], chunk[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = join(*lane, *x);
    }
    fold(lanes, merge)
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES], merge: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = merge(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn reduce_f64(x: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += term(chunk[i] as f64);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|x| term(*x as f64)).sum::<f64>()
}

/// e^x to 1 ulp; 0 and ∞ beyond the range, NaN for NaN. x = n·ln 2 + r, and e^r for |r| ≤ ln 2 / 2
/// by the polynomial of Cephes' expf (Moshier).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    // Adding 1.5·2^23 puts the nearest integer into the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = (shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32);
    let whole = shifted - SHIFT;
    let r = whole.mul_add(2.121_944_4e-4, whole.mul_add(-0.693_359_4, x));
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = r.mul_add(p, c);
    }
    let p = (r * r).mul_add(p, r + 1.0);
    // In two factors, because n may exceed either end of the exponent.
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let half = n >> 1;
    p * power(half) * power(n.wrapping_sub(half))
}

/// 1/(1 + e^−x)
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// gelu and its derivative by the tanh approximation, written x·σ(2u) with u = √(2/π)·(x +
/// 0.044715·x³), which does not cancel for negative x.
#[inline(always)]
fn gelu_tanh(x: f32) -> (f32, f32) {
    const C: f32 = 0.797_884_56;
    let twice = 2.0 * C * x * (0.044_715 * x).mul_add(x, 1.0);
    let twice = if twice < -40.0 { -40.0 } else { twice };
    let e = exp(-twice);
    let sigmoid = 1.0 / (1.0 + e);
    let slope = 2.0 * C * (3.0 * 0.044_715 * x).mul_add(x, 1.0);
    (x * sigmoid, (x * slope * e * sigmoid).mul_add(sigmoid, sigmoid))
}

/// Φ(x) to 2e-7, by erfc's Chebyshev fit (Press et al., Numerical Recipes, erfcc).
#[inline(always)]
fn normal_cdf(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.5, 1.0);
    let mut p = 0.170_872_77;
    for c in [
        -0.822_152_23,
        1.488_515_9,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ] {
        p = t.mul_add(p, c);
    }
    let tail = 0.5 * t * exp((-z).mul_add(z, p));
    if x < 0.0 { tail } else { 1.0 - tail }
}
