//! Laying operands out in the order the kernel reads them.

use super::{COLS, ROWS};
use crate::Tensor;
use crate::cpu::Cpu;
use crate::cpu::kernel::{PANEL_COLS, PANEL_ROWS, TILE, Word};
use crate::cpu::math::vectorised;
use crate::cpu::memory::{Shared, load, load_pairs, with_words};
use base::DType;
use std::ops::Range;

/// A word of each line that is packed together.
type Line = [f32; COLS];

/// A matrix as the product sees it.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub x: Tensor,
    /// Whether it lies in memory the other way round.
    turned: bool,
    /// What it is packed into.
    pub word: Word,
}

impl Operand {
    pub fn new(x: Tensor, turned: bool, word: Word) -> Operand {
        assert!(word == Word::Float || x.dtype == DType::BF16, "pairs of {:?}", x.dtype);
        Operand { x, turned, word }
    }

    pub fn rows(self) -> usize {
        if self.turned { self.x.cols } else { self.x.rows }
    }

    pub fn cols(self) -> usize {
        if self.turned { self.x.rows } else { self.x.cols }
    }

    /// Elements of the depth in a word.
    pub fn per_word(self) -> usize {
        match self.word {
            Word::Float => 1,
            Word::Pair | Word::Tile => 2,
        }
    }

    /// Words of a line of memory that runs along the depth.
    fn load_along(self, line: usize, words: Range<usize>, to: &mut [f32]) {
        let at = line * self.x.cols;
        match self.word {
            Word::Float => load(self.x, at + words.start, to),
            Word::Pair | Word::Tile => {
                for (word, to) in words.zip(to) {
                    let first = at + 2 * word;
                    let second = (2 * word + 1 < self.x.cols).then_some(first + 1);
                    load_pairs(self.x, first, second, std::slice::from_mut(to));
                }
            }
        }
    }

    /// Calls `with` on the same words of eight such lines, in place; false where they are not there
    /// as they are packed.
    fn with_along(
        self,
        first: usize,
        words: &Range<usize>,
        with: impl FnOnce([&[f32]; PANEL_ROWS]),
    ) -> bool {
        let (each, Tensor { rows, cols, .. }) = (self.per_word(), self.x);
        let there = self.word != Word::Float || self.x.dtype == DType::F32;
        if !there || first + PANEL_ROWS > rows || each * words.end > cols {
            return false;
        }
        let starts = std::array::from_fn(|i| (first + i) * cols + each * words.start);
        with_words(self.x, starts, words.len(), with)
    }

    /// Calls `with` on words of a line that runs along the depth: in place, or in the buffer.
    fn with_line(
        self,
        line: usize,
        words: Range<usize>,
        buffer: &mut [f32],
        mut with: impl FnMut(&[f32]),
    ) {
        let (each, len) = (self.per_word(), words.len());
        let start = line * self.x.cols + each * words.start;
        let there = each * words.end <= self.x.cols;
        if !there || !with_words(self.x, [start], len, |[words]| with(words)) {
            self.load_along(line, words, &mut buffer[..len]);
            with(&buffer[..len]);
        }
    }

    /// A word of each of some lines, where lines of memory run across the depth.
    fn load_across(self, word: usize, first: usize, to: &mut [f32]) {
        let Tensor { rows, cols, .. } = self.x;
        let at = self.per_word() * word * cols + first;
        match self.word {
            Word::Float => load(self.x, at, to),
            Word::Pair | Word::Tile => {
                load_pairs(self.x, at, (2 * word + 1 < rows).then_some(at + cols), to);
            }
        }
    }

    /// Calls `with` on a word of each of some lines, where lines of memory run across the depth: in
    /// place, or in the buffer.
    fn with_across(
        self,
        word: usize,
        lines: Range<usize>,
        buffer: &mut Line,
        with: impl FnOnce(&[f32]),
    ) {
        let Tensor { cols, dtype, .. } = self.x;
        if self.word == Word::Float && dtype == DType::F32 {
            let at = word * cols + lines.start;
            let there = with_words(self.x, [at], lines.len(), |[line]| with(line));
            return assert!(there, "f32 are aligned");
        }
        let line = &mut buffer[..lines.len()];
        self.load_across(word, lines.start, line);
        with(line);
    }
}

/// Rows of A, in panels of `PANEL_ROWS`: a panel holds column after column (or tiles). Rows that are
/// missing in the last panel are 0. Here and below `depth` counts words.
pub(super) fn pack_left(a: Operand, rows: Range<usize>, depth: Range<usize>, to: &mut [f32]) {
    if a.word == Word::Tile {
        return pack_tiles(a, rows, depth, to);
    }
    let len = depth.len();
    if !a.turned {
        let panels = to.chunks_exact_mut(PANEL_ROWS * len);
        for (start, panel) in rows.clone().step_by(PANEL_ROWS).zip(panels) {
            interleave_rows(a, start..rows.end.min(start + PANEL_ROWS), depth.clone(), panel);
        }
        return;
    }
    let mut buffer = [0.0; COLS];
    for (i, word) in depth.enumerate() {
        a.with_across(word, rows.clone(), &mut buffer, |column| {
            let (pieces, rest) = column.as_chunks::<PANEL_ROWS>();
            let mut panels = to.chunks_exact_mut(PANEL_ROWS * len);
            let place = i * PANEL_ROWS..(i + 1) * PANEL_ROWS;
            for (piece, panel) in pieces.iter().zip(&mut panels) {
                panel[place.clone()].copy_from_slice(piece);
            }
            if !rest.is_empty() {
                let last = &mut panels.next().expect("a panel for the last rows")[place];
                last[..rest.len()].copy_from_slice(rest);
                last[rest.len()..].fill(0.0);
            }
        });
    }
}

/// Rows of A for AMX: of every two tiles of rows, 16 words of each after the other. Rows and words
/// that are missing in the last tile are 0.
fn pack_tiles(a: Operand, rows: Range<usize>, depth: Range<usize>, to: &mut [f32]) {
    let (tiles, _) = to.as_chunks_mut::<{ TILE * TILE }>();
    let deep = depth.len().div_ceil(TILE);
    // Tile `i` of rows, `j` of depth: a panel has two tiles of rows.
    let place = |i: usize, j: usize| (i / 2 * deep + j) * 2 + i % 2;
    let whole = rows.len().is_multiple_of(2 * TILE) && depth.len().is_multiple_of(TILE);
    if !whole {
        tiles.as_flattened_mut().fill(0.0);
    }
    if !a.turned {
        let mut buffer = [0.0; TURNED];
        for (row, line) in rows.enumerate() {
            for (first, start) in depth.clone().step_by(TURNED).enumerate() {
                let words = start..depth.end.min(start + TURNED);
                a.with_line(line, words, &mut buffer, |words| {
                    for (j, words) in words.chunks(TILE).enumerate() {
                        let tile = &mut tiles[place(row / TILE, first * (TURNED / TILE) + j)];
                        tile[row % TILE * TILE..][..words.len()].copy_from_slice(words);
                    }
                });
            }
        }
        return;
    }
    let mut columns = [[0.0; ROWS]; TILE];
    for (j, start) in depth.clone().step_by(TILE).enumerate() {
        let words = start..depth.end.min(start + TILE);
        columns[words.len()..].fill([0.0; ROWS]);
        for (column, word) in columns.iter_mut().zip(words) {
            let column = &mut column[..rows.len()];
            a.load_across(word, rows.start, column);
        }
        for i in 0..rows.len().div_ceil(TILE) {
            turn_tile(&columns, i * TILE, &mut tiles[place(i, j)]);
        }
    }
}

/// Columns of B, in panels: a panel holds row after row. Columns that are missing in the last panel
/// are 0, and so are rows that tiles want beside the depth. Tasks are cut so that each reads memory
/// in long runs.
pub(super) fn pack_right(
    cpu: &Cpu,
    b: Operand,
    depth: Range<usize>,
    cols: Range<usize>,
    to: &Shared,
) {
    match b.word {
        Word::Tile => pack_columns::<{ 2 * TILE }>(cpu, b, depth, cols, to),
        Word::Float | Word::Pair => pack_columns::<PANEL_COLS>(cpu, b, depth, cols, to),
    }
}

/// The same in panels of that many columns.
fn pack_columns<const PANEL: usize>(
    cpu: &Cpu,
    b: Operand,
    depth: Range<usize>,
    cols: Range<usize>,
    to: &Shared,
) {
    let whole = b.word.whole(depth.len());
    let size = PANEL * whole;
    if b.turned {
        cpu.each(cols.len().div_ceil(PANEL), |i| {
            let start = cols.start + i * PANEL;
            // SAFETY: panel i is this task's.
            let panel = unsafe { to.range(i * size, size) };
            let (panel, rest) = panel.split_at_mut(PANEL * depth.len());
            turn_rows::<PANEL>(b, start..cols.end.min(start + PANEL), depth.clone(), panel);
            rest.fill(0.0);
        });
        return;
    }
    cpu.each_rows(whole, cols.len(), |words| {
        let mut buffer = [0.0; COLS];
        for word in words {
            // SAFETY: this row of each panel is this task's.
            let place = |i| unsafe { to.range(i * size + word * PANEL, PANEL) };
            if word >= depth.len() {
                (0..cols.len().div_ceil(PANEL)).for_each(|i| place(i).fill(0.0));
                continue;
            }
            b.with_across(depth.start + word, cols.clone(), &mut buffer, |line| {
                let (pieces, rest) = line.as_chunks::<PANEL>();
                for (i, piece) in pieces.iter().enumerate() {
                    place(i).copy_from_slice(piece);
                }
                if !rest.is_empty() {
                    let last = place(pieces.len());
                    last[..rest.len()].copy_from_slice(rest);
                    last[rest.len()..].fill(0.0);
                }
            });
        }
    });
}

/// At most `PANEL` lines along the depth, turned into columns of a panel.
fn turn_rows<const PANEL: usize>(
    b: Operand,
    lines: Range<usize>,
    words: Range<usize>,
    to: &mut [f32],
) {
    let mut turned = [0.0; TURNED * PANEL_ROWS];
    for (start, to) in words.clone().step_by(TURNED).zip(to.chunks_mut(TURNED * PANEL)) {
        let part = start..words.end.min(start + TURNED);
        let turned = &mut turned[..part.len() * PANEL_ROWS];
        for group in (0..PANEL).step_by(PANEL_ROWS) {
            let first = (lines.start + group).min(lines.end);
            interleave_rows(b, first..lines.end.min(first + PANEL_ROWS), part.clone(), turned);
            for (to, from) in to.chunks_exact_mut(PANEL).zip(turned.as_chunks().0) {
                let from: &[f32; PANEL_ROWS] = from;
                to[group..group + PANEL_ROWS].copy_from_slice(from);
            }
        }
    }
}

/// Words of a line that are turned at a time: of eight lines, 4 KiB.
const TURNED: usize = 128;

/// At most `PANEL_ROWS` lines along the depth, column after column.
fn interleave_rows(x: Operand, lines: Range<usize>, words: Range<usize>, to: &mut [f32]) {
    if lines.len() == PANEL_ROWS
        && x.with_along(lines.start, &words, |lines| interleave(&lines, to.as_chunks_mut().0))
    {
        return;
    }
    let mut buffers = [[0.0; TURNED]; PANEL_ROWS];
    for (start, to) in words.clone().step_by(TURNED).zip(to.chunks_mut(TURNED * PANEL_ROWS)) {
        let part = start..words.end.min(start + TURNED);
        for (buffer, line) in buffers.iter_mut().zip(lines.clone()) {
            x.load_along(line, part.clone(), &mut buffer[..part.len()]);
        }
        let rows = std::array::from_fn(|i| &buffers[i][..part.len()]);
        interleave(&rows, to.as_chunks_mut().0);
    }
}

vectorised! {
    fn interleave(rows: &[&[f32]; PANEL_ROWS], to: &mut [[f32; PANEL_ROWS]]) {
        let rows = rows.map(|row| &row[..to.len()]);
        for (l, to) in to.iter_mut().enumerate() {
            *to = std::array::from_fn(|i| rows[i][l]);
        }
    }

    /// 16 rows from `first` on of columns, which lie one after the other.
    fn turn_tile(columns: &[[f32; ROWS]; TILE], first: usize, to: &mut [f32; TILE * TILE]) {
        for (i, row) in to.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
            *row = std::array::from_fn(|word| columns[word][first + i]);
        }
    }
}
