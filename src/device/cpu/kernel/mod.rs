//! The product of small matrices that are in cache: what attention's tiles are made of.
//!
//! A block of C is held in registers over the whole depth: 8 rows by 32 columns with AVX-512, which
//! asks 10 loads for 16 multiply-adds, below the two loads to two multiply-adds of a cycle.

mod peak;
#[cfg(test)]
mod tests;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use peak::peak;
pub(super) use tiles::SIDE as TILE;

use std::marker::PhantomData;

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

/// Rows of a packed panel of A, and columns of one of B, for registers.
pub(super) const PANEL_ROWS: usize = 8;
pub(super) const PANEL_COLS: usize = 48;

/// What a word of a packed panel holds, and by what it is multiplied.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Word {
    Float,
    /// Two bf16 that follow one another along the depth, the first in the lower half.
    Pair,
    /// The same in panels of A for AMX: see `tiles`.
    Tile,
}

impl Word {
    /// The fastest for products of bf16 here.
    pub fn of_bf16() -> Word {
        match () {
            () if super::math::has_amx() => Word::Tile,
            () if super::math::has_dot_bf16() => Word::Pair,
            () => Word::Float,
        }
    }

    /// Rows of a panel of A.
    pub fn rows(self) -> usize {
        if self == Word::Tile { tiles::ROWS } else { PANEL_ROWS }
    }

    /// Columns of a panel of B.
    pub fn cols(self) -> usize {
        if self == Word::Tile { tiles::COLS } else { PANEL_COLS }
    }

    /// Words of depth that panels have for so many: the rest is 0.
    pub fn whole(self, depth: usize) -> usize {
        if self == Word::Tile { depth.next_multiple_of(tiles::SIDE) } else { depth }
    }

    /// Words of depth that are best multiplied at once. With registers a panel of A, 24 KiB, then
    /// stays in the first-level cache, and one of B, 144 KiB, in the second while A's panels pass by;
    /// half of it is 5 % slower: the sums are then loaded and stored twice as often. With tiles a
    /// panel of B, 16 KiB, stays in the first-level cache (by its size: not measured).
    pub fn depth(self) -> usize {
        if self == Word::Tile { 128 } else { 768 }
    }
}

/// C (+)= A·B for packed panels: A's one after the other, each [depth, PANEL_ROWS] or as `tiles` has
/// it; of B's, each [whole, columns], the rows `first .. first + depth`. C is `rows` by `cols`,
/// `width` apart. Depths count words.
pub(super) struct Panels<'a> {
    pub word: Word,
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub whole: usize,
    pub first: usize,
    pub depth: usize,
    pub c: &'a mut [f32],
    pub rows: usize,
    pub cols: usize,
    pub width: usize,
    pub add: bool,
}

impl Panels<'_> {
    pub fn run(self) {
        let Panels { word, rows, cols, width, .. } = self;
        if rows == 0 || cols == 0 {
            return;
        }
        assert!(self.a.len() >= rows.next_multiple_of(word.rows()) * self.depth, "A");
        assert!(self.first + self.depth <= self.whole, "depth");
        assert!(self.b.len() >= cols.next_multiple_of(word.cols()) * self.whole, "B");
        assert!(cols <= width && self.c.len() >= (rows - 1) * width + cols, "C");
        if word == Word::Tile {
            return tiles::run(self);
        }
        // SAFETY: all operands reach as far as the sizes say (above), and the features are there.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match word {
                Word::Pair => {
                    assert!(super::math::has_dot_bf16(), "who packs pairs has asked before");
                    return x86::panels_dot_bf16(self);
                }
                _ if super::math::has_avx512() => return x86::panels_avx512(self),
                _ if super::math::has_avx2() => return x86::panels_avx2(self),
                _ => {}
            }
        }
        assert!(word == Word::Float, "pairs where nothing multiplies them");
        // SAFETY: as above.
        unsafe { cover_panels(self, &mut Registers::<[f32; 4], 4, 2>::new()) }
    }
}

/// What multiplies one panel of A with one of B.
trait Panel {
    const ROWS: usize;
    const COLS: usize;

    /// C (+)= A·B
    ///
    /// # Safety
    /// The panels have that depth, C its rows and columns, `width` apart, and the processor what
    /// multiplies.
    unsafe fn multiply(
        &mut self,
        depth: usize,
        a: &[f32],
        b: &[f32],
        c: *mut f32,
        width: usize,
        add: bool,
    );
}

/// The largest panel's C.
const EDGE: usize = tiles::ROWS * PANEL_COLS;

#[inline(always)]
unsafe fn cover_panels<P: Panel>(p: Panels, panel: &mut P) {
    let mut edge = [0.0f32; EDGE];
    for (j, b) in (0..p.cols).step_by(P::COLS).zip(p.b.chunks_exact(p.whole * P::COLS)) {
        let b = &b[p.first * P::COLS..];
        let cols = P::COLS.min(p.cols - j);
        for (i, a) in (0..p.rows).step_by(P::ROWS).zip(p.a.chunks_exact(p.depth * P::ROWS)) {
            let rows = P::ROWS.min(p.rows - i);
            let c = &mut p.c[i * p.width + j..];
            if rows == P::ROWS && cols == P::COLS {
                unsafe { panel.multiply(p.depth, a, b, c.as_mut_ptr(), p.width, p.add) };
                continue;
            }
            // What is past C's edge stays here.
            if p.add {
                let lines = edge.chunks_exact_mut(P::COLS).take(rows);
                for (line, c) in lines.zip(c.chunks(p.width)) {
                    line[..cols].copy_from_slice(&c[..cols]);
                }
            }
            unsafe { panel.multiply(p.depth, a, b, edge.as_mut_ptr(), P::COLS, p.add) };
            for (line, c) in edge.chunks_exact(P::COLS).take(rows).zip(c.chunks_mut(p.width)) {
                c[..cols].copy_from_slice(&line[..cols]);
            }
        }
    }
}

/// Panels by blocks of M rows and W registers.
struct Registers<V, const M: usize, const W: usize>(PhantomData<V>);

impl<V, const M: usize, const W: usize> Registers<V, M, W> {
    fn new() -> Self {
        Registers(PhantomData)
    }
}

impl<V: Lanes, const M: usize, const W: usize> Panel for Registers<V, M, W> {
    const ROWS: usize = PANEL_ROWS;
    const COLS: usize = PANEL_COLS;

    #[inline(always)]
    unsafe fn multiply(
        &mut self,
        depth: usize,
        a: &[f32],
        b: &[f32],
        c: *mut f32,
        width: usize,
        add: bool,
    ) {
        for col in (0..PANEL_COLS).step_by(W * V::N) {
            for row in (0..PANEL_ROWS).step_by(M) {
                unsafe {
                    let (a, b) = (a.as_ptr().add(row), b.as_ptr().add(col));
                    packed_block::<V, M, W>(depth, a, b, c.add(row * width + col), width, add);
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
