//! Registers of AVX2 and AVX-512, and the functions compiled for them.

use super::{Lanes, Panels, Product, Registers, cover, cover_panels};
use std::arch::x86_64::*;

/// # Safety
/// The processor has AVX-512 F, and `Product::run` has checked the operands.
#[target_feature(enable = "avx512f")]
pub unsafe fn avx512(p: Product) {
    // SAFETY: this function has the features; the caller has checked the operands.
    unsafe { cover::<__m512, 8, 2>(p) }
}

/// # Safety
/// The processor has AVX2 and FMA, and `Product::run` has checked the operands.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn avx2(p: Product) {
    // SAFETY: this function has the features; the caller has checked the operands.
    unsafe { cover::<__m256, 4, 2>(p) }
}

/// # Safety
/// The processor has AVX-512 F, and `Panels::run` has checked the operands.
#[target_feature(enable = "avx512f")]
pub unsafe fn panels_avx512(p: Panels) {
    // SAFETY: this function has the features; the caller has checked the operands.
    unsafe { cover_panels(p, &mut Registers::<__m512, 8, 3>::new()) }
}

/// # Safety
/// The processor has AVX2 and FMA, and `Panels::run` has checked the operands.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn panels_avx2(p: Panels) {
    // SAFETY: this function has the features; the caller has checked the operands.
    unsafe { cover_panels(p, &mut Registers::<__m256, 6, 2>::new()) }
}

/// # Safety
/// The processor has AVX-512 F and BF16, and `Panels::run` has checked the operands.
#[target_feature(enable = "avx512f,avx512bf16")]
pub unsafe fn panels_dot_bf16(p: Panels) {
    // SAFETY: this function has the features; the caller has checked the operands.
    unsafe { cover_panels(p, &mut Registers::<DotBf16, 8, 3>::new()) }
}

/// f32 sums; the operands of a product are pairs of bf16.
#[derive(Clone, Copy)]
pub struct DotBf16(__m512);

impl Lanes for DotBf16 {
    const N: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has AVX-512, and 16 elements to read at `from`, at any alignment.
        DotBf16(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has AVX-512, and 16 elements to write at `to`, at any alignment.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller has AVX-512.
        DotBf16(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn plus_product(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has AVX-512 BF16; both types are the same 64 bytes, any of which are valid.
        unsafe {
            let pairs = |x: Self| std::mem::transmute::<__m512, __m512bh>(x.0);
            DotBf16(_mm512_dpbf16_ps(self.0, pairs(a), pairs(b)))
        }
    }
}

impl Lanes for __m512 {
    const N: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has AVX-512, and 16 elements to read at `from`, at any alignment.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has AVX-512, and 16 elements to write at `to`, at any alignment.
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn plus_product(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has AVX-512, whose multiply-add this is.
        unsafe { _mm512_fmadd_ps(a, b, self) }
    }
}

impl Lanes for __m256 {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has AVX2, and 8 elements to read at `from`, at any alignment.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has AVX2, and 8 elements to write at `to`, at any alignment.
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller has AVX2.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn plus_product(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller has FMA.
        unsafe { _mm256_fmadd_ps(a, b, self) }
    }
}
