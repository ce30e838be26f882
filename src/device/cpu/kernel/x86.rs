//! Registers of AVX2 and AVX-512, and the functions compiled for them.

use super::{Lanes, Panels, Product, Registers, cover, cover_panels};
use std::arch::x86_64::*;

/// Defines functions that are compiled for features of the processor.
macro_rules! compiled {
    ($($name:ident($argument:ident: $type:ty), $features:literal => $body:expr;)*) => { $(
        /// # Safety
        /// The processor has these features, and the caller has checked the operands, if there are
        /// any.
        #[target_feature(enable = $features)]
        pub unsafe fn $name($argument: $type) {
            // SAFETY: this function has the features; the caller has checked the operands.
            unsafe { $body }
        }
    )* };
}
pub(super) use compiled;

compiled! {
    avx512(p: Product), "avx512f" => cover::<__m512, 8, 2>(p);
    avx2(p: Product), "avx2,fma" => cover::<__m256, 4, 2>(p);
    panels_avx512(p: Panels), "avx512f" =>
        cover_panels(p, &mut Registers::<__m512, 8, 3>::new());
    panels_avx2(p: Panels), "avx2,fma" =>
        cover_panels(p, &mut Registers::<__m256, 6, 2>::new());
    panels_dot_bf16(p: Panels), "avx512f,avx512bf16" =>
        cover_panels(p, &mut Registers::<DotBf16, 8, 3>::new());
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

macro_rules! lanes {
    ($register:ty, $n:literal, $load:ident, $store:ident, $splat:ident, $multiply_add:ident) => {
        impl Lanes for $register {
            const N: usize = $n;

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: the caller has the register, and `N` elements to read at `from`, at any
                // alignment.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: the caller has the register, and `N` elements to write at `to`, at any
                // alignment.
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            unsafe fn splat(x: f32) -> Self {
                // SAFETY: the caller has the register.
                unsafe { $splat(x) }
            }

            #[inline(always)]
            unsafe fn plus_product(self, a: Self, b: Self) -> Self {
                // SAFETY: the caller has the register and its multiply-add.
                unsafe { $multiply_add(a, b, self) }
            }
        }
    };
}
lanes!(__m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps);
lanes!(__m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps);
