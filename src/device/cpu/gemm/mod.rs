//! Matrix products.
//!
//! After GotoBLAS (Goto & van de Geijn 2008): B is packed into panels all threads share, and a task
//! packs some rows of A, multiplies them with every panel into sums that stay in its second-level
//! cache, in C's own rows where those are overwritten f32, and puts the sums through the epilogue
//! into C. bf16 are packed in pairs where the processor multiplies those (AMX, AVX-512 BF16), else
//! bf16 and f16 are widened. Each element is summed along the depth in order, so how C is cut into
//! tasks does not show in its bits; which instruction multiplies does, as the last bits of f32 sums:
//! * f32 and widened: each product is added to the sum by one FMA (baseline: rounded, then added);
//! * AVX-512 BF16: the pair's two products are added to the sum one after the other, denormals as 0;
//! * AMX: of 32 elements the even products and the odd ones are summed up apart by FMA, then both
//!   are added, then that to the sum, denormals as 0. The 32 begin at multiples of 32 of the depth.

mod fp8;
mod pack;

pub(super) use fp8::fp8;

use super::Cpu;
use super::kernel::{PANEL_COLS, Panels, Word};
use super::math;
use super::memory::{BLOCK, Block, load, put, store, with_block_in, with_rows_mut};
use super::parallel::blocks;
use crate::{Epilogue, Gemm, Out, Tensor};
use base::DType;
use pack::{Operand, pack_left, pack_right};
use std::ops::Range;

/// Most rows and columns of a task's sums: 384 KiB of the second-level cache, and A's as much.
const ROWS: usize = 128;
const COLS: usize = 16 * PANEL_COLS;

/// Most words of B packed at once: 12 MiB of the third-level cache.
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
    let word = if a.dtype == DType::BF16 { Word::of_bf16() } else { Word::Float };
    product(cpu, kind, [a, b], word, c, then);
}

/// The product by words of that kind.
pub(super) fn product(
    cpu: &Cpu,
    kind: Gemm,
    [a, b]: [Tensor; 2],
    word: Word,
    c: Out,
    then: Epilogue,
) {
    let left = Operand::new(a, kind == Gemm::TN, word);
    let right = Operand::new(b, kind == Gemm::NT, word);
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
            cpu.each_rows(m, n, |rows| {
                with_rows_mut(sums, rows.clone(), |sums| {
                    finish(sums, n, [rows, 0..n], c, then, false);
                });
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
    let (m, n, word) = (left.rows(), right.cols(), left.word);
    let depth = depth.start / left.per_word()..depth.end.div_ceil(left.per_word());
    let k = word.whole(depth.len());
    // As few equal widths as fit.
    let panels = n.div_ceil(word.cols());
    let fit = (PACKED / word.cols() / k.max(1)).clamp(1, COLS / word.cols());
    let width = panels.div_ceil(panels.div_ceil(fit).max(1)) * word.cols();
    // Enough tasks for threads to share evenly.
    let height = m.div_ceil(4 * cpu.threads).next_multiple_of(word.rows()).min(ROWS);
    let there = sums_lie_in(c, [left, right], then);
    let part = depth_part(word, k);
    let own = height * (part + if there { 0 } else { width });
    cpu.workspace.with_shared(width * k, cpu.threads, own, |packed, scratch| {
        for first in (0..n).step_by(width) {
            let cols = first..n.min(first + width);
            pack_right(cpu, right, depth.clone(), cols.clone(), packed);
            let panels = cols.len().div_ceil(word.cols());
            // SAFETY: the packing tasks have ended; what follows only reads.
            let packed = &*unsafe { packed.range(0, panels * word.cols() * k) };
            cpu.each_slot(m.div_ceil(height), |i, slot| {
                let rows = i * height..m.min((i + 1) * height);
                // SAFETY: the slot is this task's.
                let (pack, sums) = unsafe { scratch.part(slot) }.split_at_mut(height * part);
                let mut sum = |sums: &mut [f32], width| {
                    sum_rows(left, &depth, rows.clone(), packed, [cols.len(), width], sums, pack);
                    finish(sums, width, [rows.clone(), cols.clone()], c, then, there);
                };
                match there {
                    true => with_rows_mut(c.to, rows.clone(), |c| sum(&mut c[first..], n)),
                    false => sum(sums, width),
                }
            });
        }
    });
}

/// Whether sums are formed in C: overwritten f32 that nothing reads meanwhile.
fn sums_lie_in(c: Out, [left, right]: [Operand; 2], then: Epilogue) -> bool {
    let pre = match then {
        Epilogue::GeluBackward { pre, .. } => Some(pre),
        _ => None,
    };
    let bytes = |x: Tensor| x.addr()..x.addr() + x.bytes();
    let apart = |x: Tensor| {
        let (x, c) = (bytes(x), bytes(c.to));
        x.end <= c.start || c.end <= x.start
    };
    let apart_from = [Some(left.x), Some(right.x), pre];
    c.to.dtype == DType::F32 && !c.add && apart_from.into_iter().flatten().all(apart)
}

/// Words of depth multiplied at once, of `k`: equal parts of at most what is best.
fn depth_part(word: Word, k: usize) -> usize {
    word.whole(k.div_ceil(k.div_ceil(word.depth()).max(1)).max(1))
}

/// Sums of some rows of A with all packed panels of B, `cols` columns, in rows `width` apart.
fn sum_rows(
    left: Operand,
    depth: &Range<usize>,
    rows: Range<usize>,
    packed: &[f32],
    [cols, width]: [usize; 2],
    sums: &mut [f32],
    pack: &mut [f32],
) {
    if depth.is_empty() {
        sums.chunks_mut(width).take(rows.len()).for_each(|row| row[..cols].fill(0.0));
    }
    let word = left.word;
    let whole = word.whole(depth.len());
    let step = depth_part(word, whole);
    for start in depth.clone().step_by(step) {
        let part = start..depth.end.min(start + step);
        let deep = word.whole(part.len());
        let pack = &mut pack[..rows.len().next_multiple_of(word.rows()) * deep];
        pack_left(left, rows.clone(), part, pack);
        Panels {
            word,
            a: pack,
            b: packed,
            whole,
            first: start - depth.start,
            depth: deep,
            c: sums,
            rows: rows.len(),
            cols,
            width,
            add: start > depth.start,
        }
        .run();
    }
}

/// Puts the epilogue of `sums`, which are those rows and columns of C, in rows `width` apart, into
/// C, unless they lie `there` already.
fn finish(
    sums: &mut [f32],
    width: usize,
    [rows, cols]: [Range<usize>; 2],
    c: Out,
    then: Epilogue,
    there: bool,
) {
    if there && matches!(then, Epilogue::Nothing) {
        return;
    }
    // Of all rows, so it is widened once.
    let (mut bias, mut other): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
    for piece in blocks(cols.clone()) {
        let bias = bias_of(then).map(|from| {
            let bias = &mut bias[..piece.len()];
            load(from, piece.start, bias);
            &*bias
        });
        for (row, sums) in rows.clone().zip(sums.chunks_mut(width)) {
            let x = &mut sums[piece.start - cols.start..piece.end - cols.start];
            let at = row * c.to.cols + piece.start;
            if let Some(bias) = bias {
                math::add(bias, x);
            }
            conclude(x, at, then, &mut other);
            if !there {
                put(x, c, at);
            }
        }
    }
}

fn bias_of(then: Epilogue) -> Option<Tensor> {
    match then {
        Epilogue::Bias(bias) => Some(bias),
        Epilogue::BiasGelu { bias, .. } => bias,
        _ => None,
    }
}

/// The epilogue of at most a block of sums with their bias, of which the first is that element of C.
fn conclude(x: &mut [f32], at: usize, then: Epilogue, other: &mut Block) {
    match then {
        Epilogue::Nothing | Epilogue::Bias(_) | Epilogue::BiasBackward(_) => {}
        Epilogue::BiasGelu { pre, gelu, .. } => {
            store(x, pre, at);
            // Of what was stored, so that `gelu` rebuilds the same bits.
            if pre.dtype != DType::F32 {
                load(pre, at, x);
            }
            math::gelu(gelu, x);
        }
        Epilogue::GeluBackward { pre, gelu } => {
            with_block_in(pre, at..at + x.len(), other, |pre| math::gelu_backward(gelu, pre, x));
        }
    }
}
