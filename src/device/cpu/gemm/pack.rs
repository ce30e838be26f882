//! Packs operands in the order in which the kernel reads them.

use crate::Tensor;
use crate::cpu::Cpu;
use crate::cpu::instructions::Instructions;
use crate::cpu::kernel::{TILE, transpose};
use crate::cpu::memory::{load, load_pairs, with_words};
use crate::cpu::scratch::Shared;
use base::DType;
use std::ops::Range;

/// Maximum lines of which words are loaded at once: 24 KiB of a tile's words. A multiple of the
/// lines of any panel.
const LINES: usize = 384;

/// One word of each line in a group.
type Line = [f32; LINES];

/// Words per line that are transposed at a time: of eight lines, 4 KiB.
const STRETCH: usize = 128;

/// Operand of a product: rows of A or columns of B, here called lines, each as long as the depth.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub x: Tensor,
    /// Whether a line is contiguous in memory; otherwise the words of all lines at one depth are.
    along: bool,
    /// Determines the content of words: an f32, or two bf16 that are adjacent along the depth.
    pub set: Instructions,
}

impl Operand {
    pub fn new(x: Tensor, along: bool, set: Instructions) -> Operand {
        assert!(!set.multiplies_bf16() || x.dtype == DType::BF16, "pairs of {:?}", x.dtype);
        Operand { x, along, set }
    }

    pub fn lines(self) -> usize {
        if self.along { self.x.rows } else { self.x.cols }
    }

    pub fn depth(self) -> usize {
        if self.along { self.x.cols } else { self.x.rows }
    }

    /// Elements of the depth per word.
    pub fn per_word(self) -> usize {
        if self.set.multiplies_bf16() { 2 } else { 1 }
    }

    /// Loads words of a contiguous line.
    fn load_along(self, line: usize, words: Range<usize>, to: &mut [f32]) {
        let at = line * self.x.cols;
        if !self.set.multiplies_bf16() {
            return load(self.x, at + words.start, to);
        }
        for (word, to) in words.zip(to) {
            let first = at + 2 * word;
            let second = (2 * word + 1 < self.x.cols).then_some(first + 1);
            load_pairs(self.x, first, second, std::slice::from_mut(to));
        }
    }

    /// Calls `with` on the same words of contiguous lines, in place. Returns false if their memory
    /// layout differs from the packed one.
    fn with_along<const N: usize>(
        self,
        first: usize,
        words: &Range<usize>,
        with: impl FnOnce([&[f32]; N]),
    ) -> bool {
        let each = self.per_word();
        let Tensor { rows, cols, .. } = self.x;
        let as_packed = self.set.multiplies_bf16() || self.x.dtype == DType::F32;
        if !as_packed || first + N > rows || each * words.end > cols {
            return false;
        }
        let starts = std::array::from_fn(|i| (first + i) * cols + each * words.start);
        with_words(self.x, starts, words.len(), with)
    }

    /// Calls `with` on words of a contiguous line: in place, or in the buffer.
    fn with_line(
        self,
        line: usize,
        words: Range<usize>,
        buffer: &mut [f32],
        mut with: impl FnMut(&[f32]),
    ) {
        if !self.with_along(line, &words, |[line]| with(line)) {
            let len = words.len();
            self.load_along(line, words, &mut buffer[..len]);
            with(&buffer[..len]);
        }
    }

    /// Loads one word from each of some lines that are not contiguous.
    fn load_across(self, word: usize, first: usize, to: &mut [f32]) {
        let Tensor { rows, cols, .. } = self.x;
        let at = self.per_word() * word * cols + first;
        if self.set.multiplies_bf16() {
            load_pairs(self.x, at, (2 * word + 1 < rows).then_some(at + cols), to);
        } else {
            load(self.x, at, to);
        }
    }
}

/// Packs rows of A in panels: a panel holds column after column (or tiles). Missing elements of the
/// last panel and tile are 0. Here and below `depth` counts words.
pub(super) fn pack_left(
    cpu: &Cpu,
    a: Operand,
    rows: Range<usize>,
    depth: Range<usize>,
    to: &Shared,
) {
    match a.set {
        Instructions::Baseline => pack::<4>(cpu, a, rows, depth, to),
        Instructions::Avx2 => pack::<6>(cpu, a, rows, depth, to),
        Instructions::Avx512 | Instructions::Avx512Bf16 => pack::<8>(cpu, a, rows, depth, to),
        Instructions::Amx => pack_tiles(cpu, a, rows, depth, to),
    }
}

/// Packs columns of B in panels: a panel holds row after row.
pub(super) fn pack_right(
    cpu: &Cpu,
    b: Operand,
    cols: Range<usize>,
    depth: Range<usize>,
    to: &Shared,
) {
    match b.set {
        Instructions::Baseline => pack::<8>(cpu, b, cols, depth, to),
        Instructions::Avx2 => pack::<16>(cpu, b, cols, depth, to),
        Instructions::Avx512 | Instructions::Avx512Bf16 => pack::<48>(cpu, b, cols, depth, to),
        Instructions::Amx => pack::<{ 2 * TILE }>(cpu, b, cols, depth, to),
    }
}

/// Packs lines in panels of `PANEL` lines. Each task reads memory in long runs.
fn pack<const PANEL: usize>(
    cpu: &Cpu,
    x: Operand,
    lines: Range<usize>,
    depth: Range<usize>,
    to: &Shared,
) {
    let whole = depth.len().next_multiple_of(x.set.geometry().fill);
    let size = PANEL * whole;
    let panels = lines.len().div_ceil(PANEL);
    if x.along {
        return cpu.each_rows(panels, size, |some| {
            for i in some {
                let start = lines.start + i * PANEL;
                // SAFETY: tasks have disjoint ranges of panels (`each_rows`), each of `size` words, and
                // the product reads them after `pack` has returned.
                let panel = unsafe { to.range(i * size, size) };
                let (panel, rest) = panel.split_at_mut(PANEL * depth.len());
                let lines = start..lines.end.min(start + PANEL);
                transpose_panel::<PANEL>(x, lines, depth.clone(), panel);
                rest.fill(0.0);
            }
        });
    }
    each_columns(cpu, x, lines, depth, |columns, first, words| {
        for (i, start) in (0..LINES)
            .step_by(PANEL)
            .enumerate()
            .take(panels - first / PANEL)
        {
            let at = (first / PANEL + i) * size + words.start * PANEL;
            // SAFETY: tasks have disjoint words of depth (`each_columns`), here those of panel
            // `first / PANEL + i`; the product reads them after `pack` has returned.
            let to = unsafe { to.range(at, words.len().min(whole - words.start) * PANEL) };
            for (to, column) in to.as_chunks_mut::<PANEL>().0.iter_mut().zip(columns) {
                to.copy_from_slice(&column[start..start + PANEL]);
            }
        }
    });
}

/// Calls `task(columns, first, words)` on the words of lines that are not contiguous: each column
/// has a word of each line from `first` on. Both count from the start of the range; words and lines
/// beyond it are 0.
fn each_columns(
    cpu: &Cpu,
    x: Operand,
    lines: Range<usize>,
    depth: Range<usize>,
    task: impl Fn(&[Line; TILE], usize, Range<usize>) + Sync,
) {
    cpu.each_rows(depth.len().div_ceil(TILE), TILE * lines.len(), |blocks| {
        let mut columns = [[0.0; LINES]; TILE];
        for words in blocks.map(|i| i * TILE..(i + 1) * TILE) {
            for first in (0..lines.len()).step_by(LINES) {
                let some = LINES.min(lines.len() - first);
                for (column, word) in columns.iter_mut().zip(words.clone()) {
                    let present = if word < depth.len() { some } else { 0 };
                    let (present, rest) = column.split_at_mut(present);
                    if !present.is_empty() {
                        x.load_across(depth.start + word, lines.start + first, present);
                    }
                    rest.fill(0.0);
                }
                task(&columns, first, words.clone());
            }
        }
    });
}

/// Transposes at most `PANEL` contiguous lines into columns of a panel.
fn transpose_panel<const PANEL: usize>(
    x: Operand,
    lines: Range<usize>,
    words: Range<usize>,
    to: &mut [f32],
) {
    for (start, to) in words
        .clone()
        .step_by(STRETCH)
        .zip(to.chunks_mut(STRETCH * PANEL))
    {
        let part = start..words.end.min(start + STRETCH);
        for group in (0..PANEL).step_by(8) {
            let first = (lines.start + group).min(lines.end);
            let rest = first..lines.end;
            let to = &mut to[group..];
            // The lines of a panel are a multiple of eight, or fewer.
            match PANEL {
                4 => transpose_lines::<4>(x, rest, part.clone(), to, PANEL),
                6 => transpose_lines::<6>(x, rest, part.clone(), to, PANEL),
                _ => transpose_lines::<8>(x, rest, part.clone(), to, PANEL),
            }
        }
    }
}

/// Transposes the first `N` contiguous lines into columns `stride` apart, with 0 for missing lines.
fn transpose_lines<const N: usize>(
    x: Operand,
    lines: Range<usize>,
    words: Range<usize>,
    to: &mut [f32],
    stride: usize,
) {
    if lines.len() >= N
        && x.with_along::<N>(lines.start, &words, |lines: [&[f32]; N]| {
            transpose(&lines, to, stride)
        })
    {
        return;
    }
    let mut buffers = [[0.0; STRETCH]; N];
    for (buffer, line) in buffers.iter_mut().zip(lines) {
        x.load_along(line, words.clone(), &mut buffer[..words.len()]);
    }
    transpose::<N>(&std::array::from_fn(|i| &buffers[i][..words.len()]), to, stride);
}

/// Packs rows of A for AMX: for every two tiles of rows, 16 words of each after the other.
fn pack_tiles(cpu: &Cpu, a: Operand, rows: Range<usize>, depth: Range<usize>, to: &Shared) {
    let deep = depth.len().div_ceil(TILE);
    // Tile `j` of depth of panel `i`: two tiles of rows.
    let place = |i: usize, j: usize| (i * deep + j) * 2 * TILE * TILE;
    let panels = rows.len().div_ceil(2 * TILE);
    if a.along {
        return cpu.each_rows(panels, deep * 2 * TILE * TILE, |some| {
            let mut buffer = [0.0; TILE];
            for (i, j) in some.flat_map(|i| (0..deep).map(move |j| (i, j))) {
                // SAFETY: tasks have disjoint ranges of panels (`each_rows`), each of `deep` pairs of
                // tiles, and the product reads them after `pack_tiles` has returned.
                let tiles = unsafe { to.range(place(i, j), 2 * TILE * TILE) };
                let start = depth.start + j * TILE;
                let words = start..depth.end.min(start + TILE);
                for (row, to) in tiles.chunks_exact_mut(TILE).enumerate() {
                    let row = rows.start + i * 2 * TILE + row;
                    to[if row < rows.end { words.len() } else { 0 }..].fill(0.0);
                    if row < rows.end {
                        a.with_line(row, words.clone(), &mut buffer, |line| {
                            to[..line.len()].copy_from_slice(line);
                        });
                    }
                }
            }
        });
    }
    each_columns(cpu, a, rows, depth, |columns, first, words| {
        for (i, start) in (0..LINES)
            .step_by(2 * TILE)
            .enumerate()
            .take(panels - first / (2 * TILE))
        {
            let at = place(first / (2 * TILE) + i, words.start / TILE);
            // SAFETY: tasks have disjoint tiles of depth (`each_columns`), here that of panel
            // `first / (2 * TILE) + i`; the product reads it after `pack_tiles` has returned.
            let tiles = unsafe { to.range(at, 2 * TILE * TILE) };
            for (half, tile) in tiles.chunks_exact_mut(TILE * TILE).enumerate() {
                transpose_tile(columns, start + half * TILE, tile);
            }
        }
    });
}

/// Transposes adjacent columns into a tile of 16 rows that starts at row `first`.
fn transpose_tile(columns: &[Line; TILE], first: usize, tile: &mut [f32]) {
    for half in [0, TILE / 2] {
        let lines = std::array::from_fn(|word| &columns[half + word][first..first + TILE]);
        transpose::<{ TILE / 2 }>(&lines, &mut tile[half..], TILE);
    }
}
