//! Matrix products.
//!
//! After GotoBLAS (Goto & van de Geijn 2008): all threads pack A and B into panels, then multiply
//! them. A task multiplies some rows of A with some columns of B into sums that stay in its L2
//! cache. Sums are formed in C's own rows if those are overwritten f32. The task then writes the
//! sums with the epilogue into C. The instruction set determines the shapes of panels and tasks
//! (`kernel::Geometry`). bf16 are packed in pairs if the processor multiplies pairs (AMX, AVX-512
//! BF16); otherwise bf16 and f16 are widened. Each element is summed along the depth in order, so
//! its bits do not depend on how C is split into tasks. They do depend on the multiplying
//! instruction, in the last bits of the f32 sums:
//! * f32 and widened: each product is added to the sum by one FMA (baseline: rounded, then added);
//! * AVX-512 BF16: the pair's two products are added to the sum one after the other, denormals as
//!   0;
//! * AMX: of 32 elements the even products and the odd ones are summed separately by FMA, then both
//!   are added, then that to the sum, denormals as 0. The 32 start at multiples of 32 of the depth.

mod fp8;
mod pack;

pub(super) use fp8::fp8;

use super::Cpu;
use super::instructions::Instructions;
use super::kernel::Panels;
use super::math;
use super::memory::{BLOCK, Block, Sums, load, put, store, with_block_in};
use super::parallel::blocks;
use crate::{Epilogue, Gemm, Out, Tensor, op};
use base::DType;
use pack::{Operand, pack_left, pack_right};
use std::ops::Range;

/// Maximum columns of a task's sums.
const COLS: usize = 768;

/// Maximum words of A and of B packed at once: 12 MiB each, of the L3 cache.
const PACKED: usize = 3 << 20;

/// Tasks per thread, so that threads share a product evenly.
const TASKS: usize = 4;

/// Depth above which a product is summed in parts, in C if that is f32.
const DEEP: usize = 4096;

pub(super) fn gemm(cpu: &Cpu, op: &op::Gemm) {
    if let Epilogue::BiasBackward(sums) = op.then {
        super::elementwise::column_sums(cpu, &op::ColumnSums { x: op.a, sums });
        return gemm(cpu, &op::Gemm { then: Epilogue::Nothing, ..*op });
    }
    product(cpu, op, Instructions::for_products(op.a.dtype == DType::BF16));
}

/// Product with a given instruction set.
pub(super) fn product(cpu: &Cpu, op: &op::Gemm, set: Instructions) {
    let op::Gemm { kind, a, b, c, then } = *op;
    let left = Operand::new(a, kind != Gemm::TN, set);
    let right = Operand::new(b, kind == Gemm::NT, set);
    let m = left.lines();
    let n = right.lines();
    let k = left.depth();
    if matches!(then, Epilogue::Nothing) && c.to.dtype == DType::F32 {
        in_parts(cpu, left, right, c);
    } else if k <= DEEP {
        multiply(cpu, left, right, 0..k, c, then);
    } else {
        cpu.sums.with(1, m * n, |scratch| {
            let sums = Tensor::at(scratch.tensor(0).addr(), m, n, DType::F32);
            in_parts(cpu, left, right, sums.set());
            cpu.each_rows(m, n, |rows| {
                let mut sums = Sums::from_tensor(sums, rows.clone(), 0..n);
                finish(&mut sums, rows, 0..n, c, then, false);
            });
        });
    }
}

/// Product in parts of the depth, summed in C, which is f32.
fn in_parts(cpu: &Cpu, left: Operand, right: Operand, c: Out) {
    let k = left.depth();
    for start in (0..k.max(1)).step_by(DEEP) {
        let part = Out { add: c.add || start > 0, ..c };
        multiply(cpu, left, right, start..k.min(start + DEEP), part, Epilogue::Nothing);
    }
}

/// Product over a range of the depth.
fn multiply(cpu: &Cpu, left: Operand, right: Operand, depth: Range<usize>, c: Out, then: Epilogue) {
    let m = left.lines();
    let n = right.lines();
    let panel = left.set.geometry();
    let depth = depth.start / left.per_word()..depth.end.div_ceil(left.per_word());
    let whole = depth.len().next_multiple_of(panel.fill);
    let high = packed_lines(m, panel.rows, whole);
    let wide = packed_lines(n, panel.cols, whole);
    let height = high
        .div_ceil(cpu.threads)
        .min(panel.height)
        .next_multiple_of(panel.rows);
    let spans = (TASKS * cpu.threads).div_ceil(high.div_ceil(height));
    let span = wide.div_ceil(spans).min(COLS).next_multiple_of(panel.cols);
    let in_c = sums_lie_in(c, left, right, then);
    let own = if in_c { 0 } else { height * span };
    cpu.workspace
        .with_shared([high * whole, wide * whole], cpu.threads, own, |[a, b], scratch| {
            for first_col in (0..n).step_by(wide) {
                let all_cols = first_col..n.min(first_col + wide);
                pack_right(cpu, right, all_cols.clone(), depth.clone(), b);
                for first_row in (0..m).step_by(high) {
                    let all_rows = first_row..m.min(first_row + high);
                    if high < m || first_col == 0 {
                        pack_left(cpu, left, all_rows.clone(), depth.clone(), a);
                    }
                    let spans = all_cols.len().div_ceil(span);
                    cpu.each_slot(all_rows.len().div_ceil(height) * spans, |i, slot| {
                        let rows = piece(&all_rows, height, i / spans);
                        let cols = piece(&all_cols, span, i % spans);
                        let places =
                            [(a, &rows, first_row, panel.rows), (b, &cols, first_col, panel.cols)];
                        // SAFETY: `pack_left` and `pack_right` have returned, so their tasks have ended;
                        // tasks here only read the panels.
                        let [a, b] = places.map(|(from, lines, first, side)| unsafe {
                            let len = lines.len().next_multiple_of(side) * whole;
                            &*from.range((lines.start - first) * whole, len)
                        });
                        let mut sums = if in_c {
                            Sums::from_tensor(c.to, rows.clone(), cols.clone())
                        } else {
                            // SAFETY: no other task that runs now has this slot (`each_slot`).
                            let part = unsafe { scratch.part(slot) };
                            Sums::from_slice(part, rows.len(), cols.len(), span)
                        };
                        add_up(left.set, a, b, whole, &mut sums);
                        finish(&mut sums, rows, cols, c, then, in_c);
                    });
                }
            }
        });
}

/// Lines of an operand that are packed at once: the fewest equal parts that fit.
fn packed_lines(lines: usize, panel: usize, whole: usize) -> usize {
    let panels = lines.div_ceil(panel).max(1);
    let fit = (PACKED / panel / whole.max(1)).max(1);
    panels.div_ceil(panels.div_ceil(fit)) * panel
}

/// Piece `i` of a range split into pieces of `len`.
fn piece(all: &Range<usize>, len: usize, i: usize) -> Range<usize> {
    all.start + i * len..all.end.min(all.start + (i + 1) * len)
}

/// Overwrites sums with the product of packed panels, `whole` words deep.
fn add_up(set: Instructions, a: &[f32], b: &[f32], whole: usize, sums: &mut Sums) {
    if whole == 0 {
        (0..sums.rows).for_each(|i| sums.row(i).fill(0.0));
    }
    let panel = set.geometry();
    // Equal parts of at most the best depth.
    let part = whole
        .div_ceil(whole.div_ceil(panel.depth).max(1))
        .next_multiple_of(panel.fill);
    for first in (0..whole).step_by(part.max(1)) {
        let depth = part.min(whole - first);
        Panels { set, a, b, whole, first, depth, c: sums, add: first > 0 }.run();
    }
}

/// Whether sums are formed in C: f32 that is overwritten, and apart from all that the product and
/// its epilogue access besides.
fn sums_lie_in(c: Out, left: Operand, right: Operand, then: Epilogue) -> bool {
    let pre = match then {
        Epilogue::BiasGelu { pre, .. } | Epilogue::GeluBackward { pre, .. } => Some(pre),
        _ => None,
    };
    let others = [Some(left.x), Some(right.x), pre, bias_of(then)];
    let apart = !others.into_iter().flatten().any(|x| x.overlaps(c.to));
    c.to.dtype == DType::F32 && !c.add && apart
}

/// Applies the epilogue to sums of these rows and columns, and writes C, unless the sums are `in_c`
/// already.
fn finish(
    sums: &mut Sums,
    rows: Range<usize>,
    cols: Range<usize>,
    c: Out,
    then: Epilogue,
    in_c: bool,
) {
    if in_c && matches!(then, Epilogue::Nothing) {
        return;
    }
    // The bias is the same for all rows, so it is widened once.
    let (mut bias, mut other): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
    for piece in blocks(cols.clone()) {
        let bias = bias_of(then).map(|from| {
            let bias = &mut bias[..piece.len()];
            load(from, piece.start, bias);
            &*bias
        });
        for (i, row) in rows.clone().enumerate() {
            let x = &mut sums.row(i)[piece.start - cols.start..piece.end - cols.start];
            let at = row * c.to.cols + piece.start;
            if let Some(bias) = bias {
                math::add(bias, x);
            }
            conclude(x, at, then, &mut other);
            if !in_c {
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

/// Epilogue of at most a block of sums that include their bias. The first is element `at` of C.
fn conclude(x: &mut [f32], at: usize, then: Epilogue, other: &mut Block) {
    match then {
        Epilogue::Nothing | Epilogue::Bias(_) | Epilogue::BiasBackward(_) => {}
        Epilogue::BiasGelu { pre, gelu, .. } => {
            store(x, pre, at);
            // Uses the stored, rounded value, so that `gelu` rebuilds the same bits.
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
