//! Product of small matrices that are in cache, for the tiles of attention.
//!
//! A block of C is held in registers over the whole depth: 8 rows by 32 columns with AVX-512. This
//! needs 10 loads per 16 multiply-adds, while a cycle can do two loads and two multiply-adds.

mod peak;
#[cfg(test)]
mod tests;
mod tiles;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use peak::peak;
pub(super) use tiles::SIDE as TILE;
pub(super) use transpose::transpose;

use super::instructions::Instructions;
use super::memory::Sums;
use std::marker::PhantomData;

/// C (+)= A·B with C m by n and depth k. Element (i, l) of A is `a[i·a_row + l·a_depth]`; rows of B
/// and of C are contiguous, `b_row` and `c_row` apart.
pub(super) struct Product<'a> {
    pub m: usize,
    /// A multiple of `COLUMNS`.
    pub n: usize,
    /// At least 1.
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

/// Columns of C are a multiple of this, the widest register.
pub(super) const COLUMNS: usize = 16;

impl Product<'_> {
    pub fn run(self) {
        let Product { m, n, k, .. } = self;
        if m == 0 || n == 0 {
            return;
        }
        assert!(n.is_multiple_of(COLUMNS) && k > 0, "{n} columns, depth {k}");
        assert!(self.c.len() >= (m - 1) * self.c_row + n, "C");
        assert!(self.a.len() > (m - 1) * self.a_row + (k - 1) * self.a_depth, "A");
        assert!(self.b.len() >= (k - 1) * self.b_row + n, "B");
        // SAFETY: the slices hold the last element of each operand (above), and the set in use is at
        // most the processor's best, which includes the features of those before it.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match Instructions::in_use() {
                Instructions::Baseline => {}
                Instructions::Avx2 => return x86::avx2(self),
                _ => return x86::avx512(self),
            }
        }
        // SAFETY: the slices hold the last element of each operand (above); every processor has
        // arrays.
        unsafe { cover::<[f32; 4], 4, 2>(self) }
    }
}

/// Shapes of packed panels, and best sizes of partial products, for an instruction set.
pub(super) struct Geometry {
    /// Rows of a panel of A. With the columns of B, its sums fill the registers, except for a row
    /// of B and an element of A.
    pub rows: usize,
    /// Columns of a panel of B.
    pub cols: usize,
    /// Maximum words of depth multiplied at once.
    pub depth: usize,
    /// Maximum rows of A that a task multiplies with each panel of B. They stay in the L2 cache;
    /// more rows mean fewer reads of B from the L3 cache.
    pub height: usize,
    /// Multiple of words to which panels are filled with zeros along the depth.
    pub fill: usize,
}

impl Instructions {
    pub(super) fn geometry(self) -> Geometry {
        let (rows, cols, depth, height, fill) = match self {
            Instructions::Baseline => (4, 8, 384, 128, 1),
            // 12 sums, two registers of B and one of A: 15 of 16. With 4 rows of 24, LLVM moves
            // sums between registers in each iteration, at half the speed.
            Instructions::Avx2 => (6, 16, 256, 126, 1),
            // 24 sums, three registers of B: 27 of 32.
            Instructions::Avx512 | Instructions::Avx512Bf16 => (8, 48, 768, 256, 1),
            Instructions::Amx => (tiles::ROWS, tiles::COLS, 192, 256, tiles::SIDE),
        };
        Geometry { rows, cols, depth, height, fill }
    }
}

/// C (+)= A·B for consecutive packed panels: of A each [whole, rows], or as in `tiles`; of B each
/// [whole, columns]. Multiplies the words `first .. first + depth`. Depths count words of four
/// bytes: an f32, or two bf16 that are adjacent along the depth, the first in the lower half.
pub(super) struct Panels<'a, 'b> {
    pub set: Instructions,
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub whole: usize,
    pub first: usize,
    pub depth: usize,
    pub c: &'a mut Sums<'b>,
    pub add: bool,
}

impl Panels<'_, '_> {
    pub fn run(self) {
        let Panels { set, c: &mut Sums { rows, cols, .. }, .. } = self;
        let panel = set.geometry();
        assert!(self.a.len() >= rows.next_multiple_of(panel.rows) * self.whole, "A");
        assert!(self.first + self.depth <= self.whole, "depth");
        assert!(self.b.len() >= cols.next_multiple_of(panel.cols) * self.whole, "B");
        assert!(set == Instructions::Amx || set <= Instructions::best(), "{set} is not here");
        // SAFETY: the panels hold `whole` words of each row and column, of which the product uses
        // `first .. first + depth` (above); `Sums` holds C; the processor has the set (above; for AMX
        // `tiles::run` looks itself, and otherwise computes on its model).
        unsafe {
            match set {
                Instructions::Amx => tiles::run(self),
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx512Bf16 => x86::panels_dot_bf16(self),
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx512 => x86::panels_avx512(self),
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx2 => x86::panels_avx2(self),
                _ => cover_panels(self, &mut Registers::<[f32; 4], 4, 2>::new()),
            }
        }
    }
}

/// Product of one panel of A with one of B.
trait Panel {
    const ROWS: usize;
    const COLS: usize;

    /// C (+)= A·B. Also prefetches the data at `next`, which is multiplied later.
    ///
    /// # Safety
    /// `depth * ROWS` words can be read at `a` and `depth * COLS` at `b`; `ROWS` rows of `COLS`
    /// elements, `width` apart, can be read and written at `c`, by this thread alone; and the
    /// processor has the instructions.
    unsafe fn multiply(
        &mut self,
        depth: usize,
        a: *const f32,
        b: *const f32,
        c: *mut f32,
        width: usize,
        add: bool,
        next: *const f32,
    );
}

/// Elements of the largest panel's C.
const EDGE: usize = tiles::ROWS * tiles::COLS;

/// Elements of a cache line.
const LINE: usize = 16;

/// Words of depth per cache line that is prefetched.
const AHEAD: usize = 8;

/// Covers C with the products of panels.
///
/// # Safety
/// `first + depth` is at most `whole`, and the processor has the instructions of `panel`. Lengths
/// need no promise: a panel that the slices do not hold whole is skipped.
#[inline(always)]
unsafe fn cover_panels<P: Panel>(p: Panels, panel: &mut P) {
    const { assert!(P::ROWS * P::COLS <= EDGE) };
    let mut edge = [0.0f32; EDGE];
    let left = p.whole * P::ROWS;
    let right = p.whole * P::COLS;
    for (j, b) in (0..p.c.cols).step_by(P::COLS).zip(p.b.chunks_exact(right)) {
        let b = b[p.first * P::COLS..].as_ptr();
        // Next panel of B; a part of it is prefetched with each panel of A.
        let mut next = b.wrapping_add(right);
        let cols = j..p.c.cols.min(j + P::COLS);
        for (i, a) in (0..p.c.rows).step_by(P::ROWS).zip(p.a.chunks_exact(left)) {
            let a = a[p.first * P::ROWS..].as_ptr();
            let rows = i..p.c.rows.min(i + P::ROWS);
            if rows.len() == P::ROWS && cols.len() == P::COLS {
                let c = p.c.at(i, j);
                let width = p.c.width;
                // SAFETY: each chunk has `whole` words of each row or column, of which `depth` follow
                // `first`; C has these rows and columns, and is this task's; the caller has the
                // instructions.
                unsafe { panel.multiply(p.depth, a, b, c, width, p.add, next) };
            } else {
                // Elements past the edge of C are kept in this buffer.
                for (line, i) in edge.chunks_exact_mut(P::COLS).zip(rows.clone()) {
                    line[..cols.len()].copy_from_slice(&p.c.row(i)[cols.clone()]);
                }
                // SAFETY: the panels as above; the buffer has `ROWS` rows of `COLS` (asserted above).
                unsafe { panel.multiply(p.depth, a, b, edge.as_mut_ptr(), P::COLS, p.add, next) };
                for (line, i) in edge.chunks_exact(P::COLS).zip(rows) {
                    p.c.row(i)[cols.clone()].copy_from_slice(&line[..cols.len()]);
                }
            }
            next = next.wrapping_add(p.depth / AHEAD * LINE);
        }
    }
}

/// Panels whose C has M rows of W registers.
struct Registers<V, const M: usize, const W: usize>(PhantomData<V>);

impl<V, const M: usize, const W: usize> Registers<V, M, W> {
    fn new() -> Self {
        Registers(PhantomData)
    }
}

impl<V: Lanes, const M: usize, const W: usize> Panel for Registers<V, M, W> {
    const ROWS: usize = M;
    const COLS: usize = W * V::N;

    #[inline(always)]
    unsafe fn multiply(
        &mut self,
        depth: usize,
        mut a: *const f32,
        mut b: *const f32,
        c: *mut f32,
        width: usize,
        add: bool,
        mut next: *const f32,
    ) {
        // SAFETY: the caller has the registers. C holds M rows of W registers, `width` apart. The
        // loops call `add_products` `depth` times, which reads M words of A and W registers of B and
        // advances past them.
        unsafe {
            let mut sums = [[V::splat(0.0); W]; M];
            if add {
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(c.add(i * width + j * V::N));
                    }
                }
            }
            for _ in 0..depth / AHEAD {
                fetch(next);
                next = next.wrapping_add(LINE);
                for _ in 0..AHEAD {
                    add_products(&mut sums, &mut a, &mut b);
                }
            }
            for _ in 0..depth % AHEAD {
                add_products(&mut sums, &mut a, &mut b);
            }
            for (i, sums) in sums.into_iter().enumerate() {
                for (j, sum) in sums.into_iter().enumerate() {
                    sum.store(c.add(i * width + j * V::N));
                }
            }
        }
    }
}

/// Adds the products of a column of A's panel and a row of B's, and advances both pointers. Loops
/// over this keep their sums in registers only without checks in between, so pointers wrap.
///
/// # Safety
/// M words can be read at `a`, W registers at `b`, and the processor has the register.
#[inline(always)]
unsafe fn add_products<V: Lanes, const M: usize, const W: usize>(
    sums: &mut [[V; W]; M],
    a: &mut *const f32,
    b: &mut *const f32,
) {
    // SAFETY: the caller's promise: `i < M` and `j < W`.
    unsafe {
        let mut right = [V::splat(0.0); W];
        for (j, right) in right.iter_mut().enumerate() {
            *right = V::load(b.wrapping_add(j * V::N));
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            let left = V::splat(*a.wrapping_add(i));
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = sum.plus_product(left, right);
            }
        }
        *a = a.wrapping_add(M);
        *b = b.wrapping_add(W * V::N);
    }
}

/// Prefetches a cache line into the L2 cache.
#[inline(always)]
fn fetch(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, of SSE, which every x86-64 has; an unmapped address raises no fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(line.cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Register of f32.
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
///
/// # Safety
/// The operands have the lengths that `Product::run` checks, and the processor has the register.
#[inline(always)]
unsafe fn cover<V: Lanes, const M: usize, const W: usize>(p: Product) {
    const { assert!(COLUMNS.is_multiple_of(V::N)) };
    let c = p.c.as_mut_ptr();
    let mut col = 0;
    while col < p.n {
        let wide = p.n - col >= W * V::N;
        let mut row = 0;
        while row < p.m {
            let tall = p.m - row >= M;
            // SAFETY: `m - row` is at least the block's rows. `n - col` is at least its columns: both
            // are multiples of a register. The rest is the caller's promise.
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

/// Block of C with M rows and W registers that starts at a row and a column.
///
/// # Safety
/// As for `cover`; the block is inside C, and `c` is the start of `p.c`.
#[inline(always)]
unsafe fn block<V: Lanes, const M: usize, const W: usize>(
    p: &Product,
    c: *mut f32,
    row: usize,
    col: usize,
) {
    // SAFETY: element (row + i, l) of A, (l, col + j) of B and (row + i, col + j) of C are inside the
    // operands for `i < M`, `j < W * V::N` and `l < k`, as the block is inside C.
    unsafe {
        let c = c.add(row * p.c_row + col);
        let a = p.a.as_ptr().add(row * p.a_row);
        let b = p.b.as_ptr().add(col);
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

/// Registers of any processor.
impl Lanes for [f32; 4] {
    const N: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's four elements, at any alignment.
        unsafe { from.cast::<[f32; 4]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's four elements, at any alignment.
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
