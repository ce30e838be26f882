//! Products with AMX: eight registers of 16 rows of 64 bytes, and one instruction, `tdpbf16ps`. It
//! adds the product of two registers, 16 by 16 sums of 32 bf16 products, to a third.
//!
//! A panel of A has 32 rows. For every 16 words of depth it holds two tiles, each [16 rows, 16
//! words]. A panel of B has 32 columns in the layout of pairs for AVX-512, [depth, 32]: a tile of
//! it is half of 16 of its rows. Four tiles of C are held in registers over the depth, which needs
//! four loads per four products. The loop is written once, over a trait of the instructions.
//! `Model` implements them as described in Intel's manual, so the loop and the packing are tested
//! on every machine.

use super::{AHEAD, Instructions, LINE, Panel, Panels, fetch};
use crate::cpu::math::vectorised;

/// Rows of a tile, and words of four bytes in a row.
pub(in crate::cpu) const SIDE: usize = 16;

/// Rows of a panel of A.
pub(in crate::cpu) const ROWS: usize = 2 * SIDE;
/// Columns of a panel of B.
pub(super) const COLS: usize = 2 * SIDE;

/// Implementation of `Panels::run`, which has checked the operands.
pub(super) fn run(p: Panels) {
    #[cfg(target_arch = "x86_64")]
    if Instructions::best() == Instructions::Amx {
        // SAFETY: `Panels::run` has checked the depth. `best` is AMX only if the processor has it and
        // Linux permits this process to use it.
        return unsafe { super::cover_panels(p, &mut Tiles(amx::Amx::begin())) };
    }
    // SAFETY: `Panels::run` has checked the depth; the model needs no instruction.
    unsafe { super::cover_panels(p, &mut Tiles(Model::new())) }
}

/// Instructions of AMX for a product, on tiles by number.
pub(super) trait TileOps {
    /// tilezero
    ///
    /// # Safety
    /// `TILE < 8`, here and below; for `Amx`, its thread calls (`Amx` is not `Send`).
    unsafe fn zero<const TILE: usize>(&mut self);
    /// tileloadd of 16 rows that are `stride` words apart.
    ///
    /// # Safety
    /// All 16 words of each row can be read.
    unsafe fn load<const TILE: usize>(&mut self, from: *const f32, stride: usize);
    /// tilestored, likewise.
    ///
    /// # Safety
    /// All 16 words of each row can be written.
    unsafe fn store<const TILE: usize>(&mut self, to: *mut f32, stride: usize);
    /// tdpbf16ps: C += A·B
    ///
    /// # Safety
    /// As for `zero`; the three tiles differ.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);
}

/// Panels that use these instructions. Tiles 0 to 3 hold C, 4 and 5 A, 6 and 7 B.
pub(super) struct Tiles<I>(pub I);

impl<I: TileOps> Panel for Tiles<I> {
    const ROWS: usize = ROWS;
    const COLS: usize = COLS;

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
        assert!(depth.is_multiple_of(SIDE), "whole tiles");
        let Tiles(i) = self;
        // SAFETY: C has 32 rows of 32 columns, `width` apart: four tiles. For every 16 words of depth,
        // of which there are a whole number (above), A has 32 * 16 words in two tiles, and B 16 rows
        // of 32 words; `a` and `b` advance past them.
        unsafe {
            let low = c.add(SIDE * width);
            if add {
                i.load::<0>(c, width);
                i.load::<1>(c.add(SIDE), width);
                i.load::<2>(low, width);
                i.load::<3>(low.add(SIDE), width);
            } else {
                i.zero::<0>();
                i.zero::<1>();
                i.zero::<2>();
                i.zero::<3>();
            }
            for _ in 0..depth / SIDE {
                for _ in 0..SIDE / AHEAD {
                    fetch(next);
                    next = next.wrapping_add(LINE);
                }
                i.load::<4>(a, SIDE);
                i.load::<6>(b, COLS);
                i.dot::<0, 4, 6>();
                i.load::<7>(b.add(SIDE), COLS);
                i.dot::<1, 4, 7>();
                i.load::<5>(a.add(SIDE * SIDE), SIDE);
                i.dot::<2, 5, 6>();
                i.dot::<3, 5, 7>();
                a = a.add(ROWS * SIDE);
                b = b.add(COLS * SIDE);
            }
            i.store::<0>(c, width);
            i.store::<1>(c.add(SIDE), width);
            i.store::<2>(low, width);
            i.store::<3>(low.add(SIDE), width);
        }
    }
}

/// Tile, row by row.
type Tile = [[f32; SIDE]; SIDE];

/// Model of the instructions (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
/// 2, TDPBF16PS). For a row of A and a column of B the 16 products of first halves are summed in
/// order by FMA from 0, and those of second halves separately. The two sums are added, and the
/// result is added to C. Each operation rounds to nearest even; denormal operands and results are
/// 0.
pub(super) struct Model([Tile; 8]);

impl Model {
    pub fn new() -> Model {
        Model([[[0.0; SIDE]; SIDE]; 8])
    }
}

impl TileOps for Model {
    unsafe fn zero<const TILE: usize>(&mut self) {
        self.0[TILE] = [[0.0; SIDE]; SIDE];
    }

    unsafe fn load<const TILE: usize>(&mut self, from: *const f32, stride: usize) {
        for (i, row) in self.0[TILE].iter_mut().enumerate() {
            // SAFETY: the caller has 16 words to read in each of 16 rows, at any alignment.
            *row = unsafe { from.add(i * stride).cast::<[f32; SIDE]>().read_unaligned() };
        }
    }

    unsafe fn store<const TILE: usize>(&mut self, to: *mut f32, stride: usize) {
        for (i, row) in self.0[TILE].iter().enumerate() {
            // SAFETY: the caller has 16 words to write in each of 16 rows, at any alignment.
            unsafe {
                to.add(i * stride)
                    .cast::<[f32; SIDE]>()
                    .write_unaligned(*row)
            };
        }
    }

    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        let [c, a, b] = self.0.get_disjoint_mut([C, A, B]).expect("three tiles");
        add_products(a, b, c);
    }
}

vectorised! {
    /// C += A·B of tiles.
    fn add_products(a: &Tile, b: &Tile, c: &mut Tile) {
        for (a, c) in a.iter().zip(c) {
            let mut sums = [[0.0f32; SIDE]; 2];
            for (a, b) in a.iter().zip(b) {
                for (half, sums) in sums.iter_mut().enumerate() {
                    let a = element(*a, half);
                    for (b, sum) in b.iter().zip(sums) {
                        *sum = flushed(a.mul_add(element(*b, half), *sum));
                    }
                }
            }
            for (i, c) in c.iter_mut().enumerate() {
                *c = flushed(flushed(*c) + flushed(sums[0][i] + sums[1][i]));
            }
        }
    }
}

/// First or second bf16 of a pair.
#[inline(always)]
fn element(pair: f32, half: usize) -> f32 {
    let bits = pair.to_bits();
    flushed(f32::from_bits(if half == 0 { bits << 16 } else { bits & 0xffff_0000 }))
}

/// Replaces a denormal number by 0.
#[inline(always)]
fn flushed(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

#[cfg(target_arch = "x86_64")]
pub(super) mod amx {
    use super::{SIDE, TileOps};
    use std::arch::asm;
    use std::marker::PhantomData;

    /// Tiles of this thread, configured until this is dropped.
    ///
    /// The compiler does not know tiles, so their contents persist between `asm!` blocks. Not `Send`:
    /// the tiles are those of the thread that configured them.
    pub struct Amx(PhantomData<*const ()>);

    impl Amx {
        /// Configures all eight tiles: 16 rows of 64 bytes.
        ///
        /// # Safety
        /// The processor has AMX, and Linux permits this process to use it (`Instructions::best`).
        pub unsafe fn begin() -> Amx {
            #[repr(C, align(64))]
            struct Shape {
                palette: u8,
                start_row: u8,
                reserved: [u8; 14],
                row_bytes: [u16; 16],
                rows: [u8; 16],
            }
            let eight = |i| i < 8;
            let shape = Shape {
                palette: 1,
                start_row: 0,
                reserved: [0; 14],
                row_bytes: std::array::from_fn(|i| if eight(i) { 4 * SIDE as u16 } else { 0 }),
                rows: std::array::from_fn(|i| if eight(i) { SIDE as u8 } else { 0 }),
            };
            // SAFETY: the caller has AMX; `shape` is the instruction's 64 bytes, which set eight tiles
            // of at most 16 rows of 64 bytes (palette 1).
            unsafe { asm!("ldtilecfg [{}]", in(reg) &shape, options(nostack, readonly)) };
            Amx(PhantomData)
        }
    }

    impl Drop for Amx {
        fn drop(&mut self) {
            // SAFETY: `begin` required AMX; this is the same thread, and no other `Amx` is in use on it.
            // Its state is empty afterwards: Linux need not save it.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    impl TileOps for Amx {
        #[inline(always)]
        unsafe fn zero<const TILE: usize>(&mut self) {
            // SAFETY: `begin` configured the tile, on this thread; no memory is accessed.
            unsafe { asm!("tilezero tmm{t}", t = const TILE, options(nostack, nomem)) };
        }

        #[inline(always)]
        unsafe fn load<const TILE: usize>(&mut self, from: *const f32, stride: usize) {
            // SAFETY: `begin` configured the tile; the caller has 16 words to read in each of 16 rows.
            unsafe {
                asm!("tileloadd tmm{t}, [{from} + {stride}*1]", t = const TILE, from = in(reg) from,
                    stride = in(reg) 4 * stride, options(nostack, readonly));
            }
        }

        #[inline(always)]
        unsafe fn store<const TILE: usize>(&mut self, to: *mut f32, stride: usize) {
            // SAFETY: `begin` configured the tile; the caller has 16 words to write in each of 16 rows.
            unsafe {
                asm!("tilestored [{to} + {stride}*1], tmm{t}", t = const TILE, to = in(reg) to,
                    stride = in(reg) 4 * stride, options(nostack));
            }
        }

        #[inline(always)]
        unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
            // SAFETY: `begin` configured the tiles, on this thread; no memory is accessed.
            unsafe {
                asm!("tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                    options(nostack, nomem));
            }
        }
    }
}
