//! Laying operands out in the order the kernel reads them.

use crate::Tensor;
use crate::cpu::Cpu;
use crate::cpu::kernel::{PANEL_COLS, PANEL_ROWS};
use crate::cpu::math::vectorised;
use crate::cpu::memory::{Shared, load};
use std::ops::Range;

/// A matrix as the product sees it.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    x: Tensor,
    /// Whether it lies in memory the other way round.
    turned: bool,
}

impl Operand {
    pub fn new(x: Tensor, turned: bool) -> Operand {
        Operand { x, turned }
    }

    pub fn rows(self) -> usize {
        if self.turned { self.x.cols } else { self.x.rows }
    }

    pub fn cols(self) -> usize {
        if self.turned { self.x.rows } else { self.x.cols }
    }
}

/// Rows of A, in panels of `PANEL_ROWS`: a panel holds column after column. Rows that are missing
/// in the last panel are 0.
pub(super) fn pack_left(a: Operand, rows: Range<usize>, depth: Range<usize>, to: &mut [f32]) {
    let panels = to.chunks_exact_mut(PANEL_ROWS * depth.len());
    if !a.turned {
        for (start, panel) in rows.clone().step_by(PANEL_ROWS).zip(panels) {
            interleave_rows(a.x, start..rows.end.min(start + PANEL_ROWS), depth.clone(), panel);
        }
        return;
    }
    let mut column = [0.0; super::ROWS];
    let len = depth.len();
    for (i, l) in depth.enumerate() {
        load(a.x, l * a.x.cols + rows.start, &mut column[..rows.len()]);
        let (pieces, _) = column.as_chunks::<PANEL_ROWS>();
        for (piece, panel) in pieces.iter().zip(to.chunks_exact_mut(PANEL_ROWS * len)) {
            panel[i * PANEL_ROWS..(i + 1) * PANEL_ROWS].copy_from_slice(piece);
        }
    }
}

/// Columns of B, in panels of `PANEL_COLS`: a panel holds row after row. Columns that are missing
/// in the last panel are 0. Tasks are cut so that each reads memory in long runs.
pub(super) fn pack_right(
    cpu: &Cpu,
    b: Operand,
    depth: Range<usize>,
    cols: Range<usize>,
    to: &Shared,
) {
    let size = PANEL_COLS * depth.len();
    if b.turned {
        cpu.each(cols.len().div_ceil(PANEL_COLS), |i| {
            let start = cols.start + i * PANEL_COLS;
            // SAFETY: panel i is this task's.
            let panel = unsafe { to.range(i * size, size) };
            turn_rows(b.x, start..cols.end.min(start + PANEL_COLS), depth.clone(), panel);
        });
        return;
    }
    cpu.each_rows(depth.len(), cols.len(), |rows| {
        for row in rows {
            let at = (depth.start + row) * b.x.cols;
            for (i, start) in cols.clone().step_by(PANEL_COLS).enumerate() {
                let len = PANEL_COLS.min(cols.end - start);
                // SAFETY: this row of the panel is this task's.
                let to = unsafe { to.range(i * size + row * PANEL_COLS, PANEL_COLS) };
                load(b.x, at + start, &mut to[..len]);
                to[len..].fill(0.0);
            }
        }
    });
}

/// At most `PANEL_COLS` rows of a matrix in memory, turned into columns of a panel.
fn turn_rows(x: Tensor, rows: Range<usize>, cols: Range<usize>, to: &mut [f32]) {
    let mut turned = [0.0; TURNED * PANEL_ROWS];
    for (start, to) in cols.clone().step_by(TURNED).zip(to.chunks_mut(TURNED * PANEL_COLS)) {
        let part = start..cols.end.min(start + TURNED);
        let turned = &mut turned[..part.len() * PANEL_ROWS];
        for group in (0..PANEL_COLS).step_by(PANEL_ROWS) {
            let first = (rows.start + group).min(rows.end);
            interleave_rows(x, first..rows.end.min(first + PANEL_ROWS), part.clone(), turned);
            for (to, from) in to.chunks_exact_mut(PANEL_COLS).zip(turned.as_chunks().0) {
                let from: &[f32; PANEL_ROWS] = from;
                to[group..group + PANEL_ROWS].copy_from_slice(from);
            }
        }
    }
}

/// Elements of a row that are turned at a time: of eight rows, 4 KiB.
const TURNED: usize = 128;

/// At most `PANEL_ROWS` rows of a matrix in memory, column after column.
fn interleave_rows(x: Tensor, rows: Range<usize>, cols: Range<usize>, to: &mut [f32]) {
    let mut buffers = [[0.0; TURNED]; PANEL_ROWS];
    for (start, to) in cols.clone().step_by(TURNED).zip(to.chunks_mut(TURNED * PANEL_ROWS)) {
        let len = TURNED.min(cols.end - start);
        for (buffer, row) in buffers.iter_mut().zip(rows.clone()) {
            load(x, row * x.cols + start, &mut buffer[..len]);
        }
        interleave(&buffers, to.as_chunks_mut().0);
    }
}

vectorised! {
    fn interleave(rows: &[[f32; TURNED]; PANEL_ROWS], to: &mut [[f32; PANEL_ROWS]]) {
        for (l, to) in to.iter_mut().enumerate().take(TURNED) {
            *to = std::array::from_fn(|i| rows[i][l]);
        }
    }
}
