//! The product of small matrices that are in cache: what attention's tiles are made of.
//!
//! A block of C is held in registers over the whole depth: 8 rows by 32 columns with AVX-512, which
//! asks 10 loads for 16 multiply-adds, below the two loads to two multiply-adds of a cycle.

/// C (+)= A·B with C m by n and depth k. A's element (i, l) is `a[i·a_row + l·a_depth]`; rows of B
/// and of C are contiguous, `b_row` and `c_row` apart.
pub(super) struct Product<'a> {
    pub m: usize,
    /// A multiple of `COLUMNS`.
    pub n: usize,
    pub k: usize,
    pub a: &'a [f32],
    pub a_row: usize,
    pub a_depth: usize,
    pub b: &'a [f32],
    pub b_row: usize,
    pub c: &'a mut [f32],
    pub c_row: usize,
    pub add: bool,
}

/// Columns of C come in multiples of this, the widest register.
pub(super) const COLUMNS: usize = 16;

impl Product<'_> {
    pub fn run(self) {
        let Product { m, n, k, .. } = self;
        if m == 0 || n == 0 {
            return;
        }
        assert!(n.is_multiple_of(COLUMNS), "{n} columns");
        assert!(self.c.len() >= (m - 1) * self.c_row + n, "C");
        if k > 0 {
            assert!(self.a.len() > (m - 1) * self.a_row + (k - 1) * self.a_depth, "A");
            assert!(self.b.len() >= (k - 1) * self.b_row + n, "B");
        }
        // SAFETY: all operands reach as far as the sizes say (above), and the features are there.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            if super::math::has_avx512() {
                return x86::avx512(self);
            }
            if super::math::has_avx2() {
                return x86::avx2(self);
            }
        }
        // SAFETY: as above.
        unsafe { cover::<[f32; 4], 4, 2>(self) }
    }
}

/// Rows of a packed panel of A, and columns of one of B.
pub(super) const PANEL_ROWS: usize = 8;
pub(super) const PANEL_COLS: usize = 48;

/// C (+)= A·B for packed panels: A's one after the other, each [depth, PANEL_ROWS]; of B's, each
/// [whole, PANEL_COLS], the rows `first .. first + depth`, with `[whole, first, depth]` given. C
/// has a row for each row of A, `width` apart, and at least as many columns as B.
pub(super) fn panels(
    a: &[f32],
    b: &[f32],
    [whole, first, depth]: [usize; 3],
    c: &mut [f32],
    width: usize,
    add: bool,
) {
    let rows = a.len() / depth;
    assert!(rows.is_multiple_of(PANEL_ROWS) && first + depth <= whole, "A");
    assert!(b.len() <= whole * width && c.len() >= rows * width, "B and C");
    let p = Panels { a, b, whole, first, depth, c: c.as_mut_ptr(), width, add };
    // SAFETY: all operands reach as far as the sizes say (above), and the features are there.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        if super::math::has_avx512() {
            return x86::panels_avx512(&p);
        }
        if super::math::has_avx2() {
            return x86::panels_avx2(&p);
        }
    }
    // SAFETY: as above.
    unsafe { cover_panels::<[f32; 4], 4, 2>(&p) }
}

/// The operands of `panels`.
struct Panels<'a> {
    a: &'a [f32],
    b: &'a [f32],
    whole: usize,
    first: usize,
    depth: usize,
    c: *mut f32,
    width: usize,
    add: bool,
}

#[inline(always)]
unsafe fn cover_panels<V: Lanes, const M: usize, const W: usize>(p: &Panels) {
    for (j, b) in p.b.chunks_exact(p.whole * PANEL_COLS).enumerate() {
        for (i, a) in p.a.chunks_exact(p.depth * PANEL_ROWS).enumerate() {
            for col in (0..PANEL_COLS).step_by(W * V::N) {
                for row in (0..PANEL_ROWS).step_by(M) {
                    unsafe {
                        let c = (i * PANEL_ROWS + row) * p.width + j * PANEL_COLS + col;
                        let b = b.as_ptr().add(p.first * PANEL_COLS + col);
                        packed_block::<V, M, W>(
                            p.depth,
                            a.as_ptr().add(row),
                            b,
                            p.c.add(c),
                            p.width,
                            p.add,
                        );
                    }
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn packed_block<V: Lanes, const M: usize, const W: usize>(
    depth: usize,
    mut a: *const f32,
    mut b: *const f32,
    c: *mut f32,
    width: usize,
    add: bool,
) {
    unsafe {
        let mut sums = [[V::splat(0.0); W]; M];
        if add {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(c.add(i * width + j * V::N));
                }
            }
        }
        for _ in 0..depth {
            let mut right = [V::splat(0.0); W];
            for (j, right) in right.iter_mut().enumerate() {
                *right = V::load(b.add(j * V::N));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = V::splat(*a.add(i));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = sum.plus_product(left, right);
                }
            }
            a = a.add(PANEL_ROWS);
            b = b.add(PANEL_COLS);
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                sum.store(c.add(i * width + j * V::N));
            }
        }
    }
}

/// A register of f32.
trait Lanes: Copy {
    const N: usize;
    /// # Safety
    /// `N` elements can be read, and the processor has the register.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `N` elements can be written, and the processor has the register.
    unsafe fn store(self, to: *mut f32);
    /// # Safety
    /// The processor has the register.
    unsafe fn splat(x: f32) -> Self;
    /// self + a·b
    ///
    /// # Safety
    /// The processor has the register.
    unsafe fn plus_product(self, a: Self, b: Self) -> Self;
}

/// Covers C with blocks of M rows and W registers, then with narrower ones.
#[inline(always)]
unsafe fn cover<V: Lanes, const M: usize, const W: usize>(p: Product) {
    let c = p.c.as_mut_ptr();
    let mut col = 0;
    while col < p.n {
        let wide = p.n - col >= W * V::N;
        let mut row = 0;
        while row < p.m {
            let tall = p.m - row >= M;
            unsafe {
                match (tall, wide) {
                    (true, true) => block::<V, M, W>(&p, c, row, col),
                    (true, false) => block::<V, M, 1>(&p, c, row, col),
                    (false, true) => block::<V, 1, W>(&p, c, row, col),
                    (false, false) => block::<V, 1, 1>(&p, c, row, col),
                }
            }
            row += if tall { M } else { 1 };
        }
        col += if wide { W * V::N } else { V::N };
    }
}

/// The block of C of M rows and W registers that starts at a row and a column.
#[inline(always)]
unsafe fn block<V: Lanes, const M: usize, const W: usize>(
    p: &Product,
    c: *mut f32,
    row: usize,
    col: usize,
) {
    unsafe {
        let c = c.add(row * p.c_row + col);
        let (a, b) = (p.a.as_ptr().add(row * p.a_row), p.b.as_ptr().add(col));
        let mut sums = [[V::splat(0.0); W]; M];
        if p.add {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(c.add(i * p.c_row + j * V::N));
                }
            }
        }
        for l in 0..p.k {
            let mut right = [V::splat(0.0); W];
            for (j, right) in right.iter_mut().enumerate() {
                *right = V::load(b.add(l * p.b_row + j * V::N));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = V::splat(*a.add(i * p.a_row + l * p.a_depth));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = sum.plus_product(left, right);
                }
            }
        }
        for (i, sums) in sums.into_iter().enumerate() {
            for (j, sum) in sums.into_iter().enumerate() {
                sum.store(c.add(i * p.c_row + j * V::N));
            }
        }
    }
}

/// What any processor has.
impl Lanes for [f32; 4] {
    const N: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; 4]
    }

    #[inline(always)]
    unsafe fn plus_product(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|i| self[i] + a[i] * b[i])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, Panels, Product, cover, cover_panels};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512(p: Product) {
        unsafe { cover::<__m512, 8, 2>(p) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn avx2(p: Product) {
        unsafe { cover::<__m256, 4, 2>(p) }
    }

    #[target_feature(enable = "avx512f")]
    pub unsafe fn panels_avx512(p: &Panels) {
        unsafe { cover_panels::<__m512, 8, 3>(p) }
    }

    #[target_feature(enable = "avx2,fma")]
    pub unsafe fn panels_avx2(p: &Panels) {
        unsafe { cover_panels::<__m256, 4, 3>(p) }
    }

    impl Lanes for __m512 {
        const N: usize = 16;

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm512_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { _mm512_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn plus_product(self, a: Self, b: Self) -> Self {
            unsafe { _mm512_fmadd_ps(a, b, self) }
        }
    }

    impl Lanes for __m256 {
        const N: usize = 8;

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            unsafe { _mm256_loadu_ps(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self) }
        }

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { _mm256_set1_ps(x) }
        }

        #[inline(always)]
        unsafe fn plus_product(self, a: Self, b: Self) -> Self {
            unsafe { _mm256_fmadd_ps(a, b, self) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small whole numbers: sums are exact, so every register gives the same bits.
    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * i % 17) as f32 - 8.0).collect()
    }

    /// What `run` leaves in C, for a sum over part of the depth.
    fn sums(run: unsafe fn(&Panels)) -> Vec<f32> {
        let [whole, first, depth, width] = [9, 2, 5, 3 * PANEL_COLS];
        let (a, b) = (numbers(2 * PANEL_ROWS * depth), numbers(2 * PANEL_COLS * whole));
        let mut c = numbers(2 * PANEL_ROWS * width);
        let p = Panels { a: &a, b: &b, whole, first, depth, c: c.as_mut_ptr(), width, add: true };
        // SAFETY: the sizes above agree, and the caller saw to the features.
        unsafe { run(&p) };
        c
    }

    /// As above, of a product whose sides leave remainders.
    fn product(run: unsafe fn(Product)) -> Vec<f32> {
        let (m, n, k) = (13, 5 * COLUMNS, 7);
        let (a, b) = (numbers(m * k), numbers(k * n));
        let mut c = numbers(m * n);
        let (a_row, a_depth, b_row, c_row, add) = (1, m, n, n, true);
        let (a, b, c_) = (&a, &b, &mut c);
        // SAFETY: as above.
        unsafe { run(Product { m, n, k, a, a_row, a_depth, b, b_row, c: c_, c_row, add }) };
        c
    }

    #[test]
    fn all_registers_give_the_same_sums() {
        let by_definition = {
            let (m, n, k) = (13, 5 * COLUMNS, 7);
            let (a, b, mut c) = (numbers(m * k), numbers(k * n), numbers(m * n));
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                c[i * n + j] += (0..k).map(|l| a[i + l * m] * b[l * n + j]).sum::<f32>();
            }
            c
        };
        assert_eq!(product(cover::<[f32; 4], 4, 2>), by_definition);
        let any = sums(cover_panels::<[f32; 4], 4, 2>);
        #[cfg(target_arch = "x86_64")]
        {
            if crate::cpu::math::has_avx2() {
                assert_eq!(sums(x86::panels_avx2), any);
                assert_eq!(product(x86::avx2), by_definition);
            }
            if crate::cpu::math::has_avx512() {
                assert_eq!(sums(x86::panels_avx512), any);
                assert_eq!(product(x86::avx512), by_definition);
            }
        }
        assert_ne!(any, numbers(any.len()));
    }
}
