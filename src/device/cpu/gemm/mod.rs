//! Matrix products.
//!
//! After GotoBLAS (Goto & van de Geijn 2008): B is packed into panels all threads share, and a task
//! packs some rows of A, multiplies them with every panel into sums that stay in its second-level
//! cache, and puts the sums through the epilogue into C. Packing widens bf16 and f16. Each element
//! is summed along the depth in order, so how C is cut into tasks does not show in its bits.

mod pack;

use super::Cpu;
use super::kernel::{PANEL_COLS, PANEL_ROWS, panels};
use super::math;
use super::memory::{BLOCK, Block, load, put, store};
use super::parallel::blocks;
use crate::{Epilogue, Gemm, Out, Tensor};
use base::DType;
use pack::{Operand, pack_left, pack_right};
use std::ops::Range;

/// Depth of what a task multiplies at once: a panel of A, 24 KiB, then stays in the first-level
/// cache, and one of B, 144 KiB, in the second while A's panels pass by. Half of it is 5 % slower:
/// the sums are then loaded and stored twice as often.
const DEPTH: usize = 768;

/// Most rows and columns of a task's sums: 384 KiB of the second-level cache, and A's as much.
const ROWS: usize = 128;
const COLS: usize = 16 * PANEL_COLS;

/// Most elements of B packed at once: 12 MiB of the third-level cache.
const PACKED: usize = 3 << 20;

/// A deeper product is added up in parts, in C where that is f32.
const DEEP: usize = 4096;

pub(super) fn gemm(cpu: &Cpu, kind: Gemm, a: Tensor, b: Tensor, c: Out, then: Epilogue) {
    if let Epilogue::BiasBackward(db) = then {
        assert_eq!(
            (kind, c.to.dtype),
            (Gemm::TN, DType::F32),
            "gradients of a weight and its bias"
        );
        super::elementwise::bias_backward(cpu, a, db);
        return gemm(cpu, kind, a, b, c, Epilogue::Nothing);
    }
    let (left, right) = (Operand::new(a, kind == Gemm::TN), Operand::new(b, kind == Gemm::NT));
    let (m, n, k) = (left.rows(), right.cols(), left.cols());
    assert_eq!(k, right.rows(), "depth of A and B in {kind:?}: {a:?}, {b:?}");
    assert_eq!((c.to.rows, c.to.cols), (m, n), "{kind:?} of {a:?} and {b:?} into {:?}", c.to);
    assert_eq!(a.dtype, b.dtype, "dtypes of A and B");
    assert!(c.to.dtype == a.dtype || c.to.dtype == DType::F32, "dtype of C");
    let plain = matches!(then, Epilogue::Nothing);
    assert!(!c.add || plain, "accumulation has no epilogue");
    if plain && c.to.dtype == DType::F32 {
        in_parts(cpu, left, right, c);
    } else if k <= DEEP {
        multiply(cpu, left, right, 0..k, c, then);
    } else {
        cpu.sums.with(1, m * n, |scratch| {
            let sums = Tensor::at(scratch.tensor(0).addr(), m, n, DType::F32);
            in_parts(cpu, left, right, sums.set());
            // SAFETY: what wrote the sums has ended; what follows only reads.
            let sums = &*unsafe { scratch.part(0) };
            cpu.each_rows(m, n, |rows| {
                finish(&sums[rows.start * n..rows.end * n], n, [rows, 0..n], c, then);
            });
        });
    }
}

/// The product in parts of the depth, added up in C, which is f32.
fn in_parts(cpu: &Cpu, left: Operand, right: Operand, c: Out) {
    let k = left.cols();
    for start in (0..k.max(1)).step_by(DEEP) {
        let part = Out { add: c.add || start > 0, ..c };
        multiply(cpu, left, right, start..k.min(start + DEEP), part, Epilogue::Nothing);
    }
}

/// The product over a range of the depth.
fn multiply(cpu: &Cpu, left: Operand, right: Operand, depth: Range<usize>, c: Out, then: Epilogue) {
    let (m, n, k) = (left.rows(), right.cols(), depth.len());
    // As few equal widths as fit.
    let panels = n.div_ceil(PANEL_COLS);
    let fit = (PACKED / PANEL_COLS / k.max(1)).clamp(1, COLS / PANEL_COLS);
    let width = panels.div_ceil(panels.div_ceil(fit).max(1)) * PANEL_COLS;
    // Enough tasks for threads to share evenly.
    let height = m.div_ceil(4 * cpu.threads).next_multiple_of(PANEL_ROWS).min(ROWS);
    let own = height * (width + DEPTH);
    cpu.workspace.with_shared(width * k, cpu.threads, own, |packed, scratch| {
        for first in (0..n).step_by(width) {
            let cols = first..n.min(first + width);
            pack_right(cpu, right, depth.clone(), cols.clone(), packed);
            let panels = cols.len().div_ceil(PANEL_COLS);
            // SAFETY: the packing tasks have ended; what follows only reads.
            let packed = &*unsafe { packed.range(0, panels * PANEL_COLS * k) };
            cpu.each_slot(m.div_ceil(height), |i, slot| {
                let rows = i * height..m.min((i + 1) * height);
                // SAFETY: the slot is this task's.
                let (sums, pack) = unsafe { scratch.part(slot) }.split_at_mut(height * width);
                sum_rows(left, &depth, rows.clone(), packed, width, sums, pack);
                finish(sums, width, [rows, cols.clone()], c, then);
            });
        }
    });
}

/// Sums of some rows of A with all packed panels of B.
fn sum_rows(
    left: Operand,
    depth: &Range<usize>,
    rows: Range<usize>,
    packed: &[f32],
    width: usize,
    sums: &mut [f32],
    pack: &mut [f32],
) {
    if depth.is_empty() {
        sums.fill(0.0);
    }
    for start in depth.clone().step_by(DEPTH) {
        let part = start..depth.end.min(start + DEPTH);
        let pack = &mut pack[..rows.len().next_multiple_of(PANEL_ROWS) * part.len()];
        pack_left(left, rows.clone(), part.clone(), pack);
        let (from, add) = (start - depth.start, start > depth.start);
        panels(pack, packed, [depth.len(), from, part.len()], sums, width, add);
    }
}

/// Puts the epilogue of `sums`, which are those rows and columns of C, into C.
fn finish(sums: &[f32], width: usize, [rows, cols]: [Range<usize>; 2], c: Out, then: Epilogue) {
    let (mut x, mut other): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
    for (row, sums) in rows.zip(sums.chunks_exact(width)) {
        for piece in blocks(0..cols.len()) {
            let (x, other) = (&mut x[..piece.len()], &mut other[..piece.len()]);
            let col = cols.start + piece.start;
            let at = row * c.to.cols + col;
            if !c.add && matches!(then, Epilogue::Nothing) {
                store(&sums[piece], c.to, at);
                continue;
            }
            x.copy_from_slice(&sums[piece]);
            match then {
                Epilogue::Nothing | Epilogue::BiasBackward(_) => {}
                Epilogue::Bias(bias) => {
                    load(bias, col, other);
                    math::add(other, x);
                }
                Epilogue::BiasGelu { bias, pre, gelu } => {
                    if let Some(bias) = bias {
                        load(bias, col, other);
                        math::add(other, x);
                    }
                    store(x, pre, at);
                    // Of what was stored, so that `gelu` rebuilds the same bits.
                    load(pre, at, x);
                    math::gelu(gelu, x);
                }
                Epilogue::GeluBackward { pre, gelu } => {
                    load(pre, at, other);
                    math::gelu_backward(gelu, other, x);
                }
            }
            put(x, c, at);
        }
    }
}
