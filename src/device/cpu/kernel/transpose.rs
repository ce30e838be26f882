//! Transposition of lines into panels, eight words at a time in registers.

#[cfg(target_arch = "x86_64")]
use crate::cpu::instructions::Instructions;

/// Writes word `l` of line `i` to `to[l * stride + i]`. The lines have equal lengths.
pub fn transpose<const LINES: usize>(lines: &[&[f32]; LINES], to: &mut [f32], stride: usize) {
    const { assert!(LINES <= SIDE) };
    let len = lines.first().map_or(0, |line| line.len());
    assert!(lines.iter().all(|line| line.len() == len) && LINES <= stride);
    assert!(len == 0 || to.len() >= (len - 1) * stride + LINES, "room for {len} words");
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if Instructions::in_use() >= Instructions::Avx2 {
        done = len / SIDE * SIDE;
        // SAFETY: each line has `len >= done` words and `to` room for `len` columns (above); the set
        // in use is at most the processor's best, which includes AVX2 here.
        unsafe { avx2::transpose(lines, to, stride, done) };
    }
    for l in done..len {
        for (line, to) in lines.iter().zip(&mut to[l * stride..]) {
            *to = line[l];
        }
    }
}

/// Words of an AVX2 register.
const SIDE: usize = 8;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::SIDE;
    use std::arch::x86_64::*;

    /// # Safety
    /// Each line has `len` words, a multiple of eight; `to` has `(len - 1) * stride + LINES`; and the
    /// processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn transpose<const LINES: usize>(
        lines: &[&[f32]; LINES],
        to: &mut [f32],
        stride: usize,
        len: usize,
    ) {
        for l in (0..len).step_by(SIDE) {
            let mut rows = [_mm256_setzero_ps(); SIDE];
            for (row, line) in rows.iter_mut().zip(lines) {
                // SAFETY: the line has words `l .. l + 8`: both `l` and `len` are multiples of eight.
                *row = unsafe { _mm256_loadu_ps(line.as_ptr().add(l)) };
            }
            for (i, column) in transpose_square(rows).into_iter().enumerate() {
                // SAFETY: a register is eight floats, of which at most eight (`LINES`) are copied;
                // `to` has room for them after `(l + i) * stride`, as `l + i < len`.
                unsafe {
                    let column = std::mem::transmute::<__m256, [f32; SIDE]>(column);
                    let to = to.as_mut_ptr().add((l + i) * stride);
                    std::ptr::copy_nonoverlapping(column.as_ptr(), to, LINES);
                }
            }
        }
    }

    /// Columns of an eight-by-eight matrix.
    ///
    /// # Safety
    /// The processor has AVX2, where the caller is not compiled for it.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose_square(r: [__m256; SIDE]) -> [__m256; SIDE] {
        let low = |a, b| _mm256_unpacklo_ps(a, b);
        let high = |a, b| _mm256_unpackhi_ps(a, b);
        let pairs = [
            low(r[0], r[1]),
            high(r[0], r[1]),
            low(r[2], r[3]),
            high(r[2], r[3]),
            low(r[4], r[5]),
            high(r[4], r[5]),
            low(r[6], r[7]),
            high(r[6], r[7]),
        ];
        let first = |a, b| _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
        let second = |a, b| _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
        let fours = [
            [first(pairs[0], pairs[2]), first(pairs[4], pairs[6])],
            [second(pairs[0], pairs[2]), second(pairs[4], pairs[6])],
            [first(pairs[1], pairs[3]), first(pairs[5], pairs[7])],
            [second(pairs[1], pairs[3]), second(pairs[5], pairs[7])],
        ];
        let [a, b, c, d] = fours.map(|[top, bottom]| _mm256_permute2f128_ps::<0x20>(top, bottom));
        let [e, f, g, h] = fours.map(|[top, bottom]| _mm256_permute2f128_ps::<0x31>(top, bottom));
        [a, b, c, d, e, f, g, h]
    }
}
