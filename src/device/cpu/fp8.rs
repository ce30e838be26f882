//! fp8: maxima of lines, quantization, and products. A product multiplies the numbers as bf16,
//! which represents them exactly, and applies the scales.

use super::Cpu;
use super::math::vectorised;
use super::memory::{BLOCK, Block, load, scalar, store, store_bytes};
use super::parallel::blocks;
use crate::fp8::scale_of;
use crate::{Fp8Scaling, Lines, Quantized, QuantizedBy, Tensor, op};
use base::Fp8;
use std::ops::Range;

/// Columns per task: with a block of rows, 32 KiB of codes.
const WIDTH: usize = 64;

pub(super) fn line_maxima(cpu: &Cpu, &op::LineMaxima { x, rows, columns }: &op::LineMaxima) {
    for (lines, out) in Lines::BOTH.into_iter().zip([rows, columns]) {
        let Some(out) = out else { continue };
        match lines {
            Lines::Rows => cpu.each_rows(x.rows, x.cols, |rows| {
                rows.for_each(|row| store(&[row_maximum(x, row)], out.to, row));
            }),
            Lines::Columns => each_columns(cpu, x, |cols| column_maxima(x, cols, out.to)),
        }
    }
}

pub(super) fn quantize(cpu: &Cpu, &op::Quantize { x, rows, columns }: &op::Quantize) {
    for (lines, to) in Lines::BOTH.into_iter().zip([rows, columns]) {
        let Some(QuantizedBy { maxima, to }) = to else { continue };
        let to = to.to;
        scales(maxima, &to);
        match lines {
            Lines::Rows => cpu.each_rows(x.rows, x.cols, |rows| {
                rows.for_each(|row| quantize_row(x, row, &to));
            }),
            Lines::Columns => each_columns(cpu, x, |cols| quantize_columns(x, cols, &to)),
        }
    }
}

pub(super) fn quantize_rows(cpu: &Cpu, op: &op::QuantizeRows) {
    let op::QuantizeRows { x, to: out, columns } = *op;
    let to = out.to;
    cpu.each_rows(x.rows, x.cols, |rows| {
        rows.for_each(|row| {
            store(&[scale_of(row_maximum(x, row), to.format)], to.scales, row);
            quantize_row(x, row, &to);
        });
    });
    line_maxima(cpu, &op::LineMaxima { x, rows: None, columns });
}

/// Covers the columns with tasks of `WIDTH`.
fn each_columns(cpu: &Cpu, x: Tensor, task: impl Fn(Range<usize>) + Sync) {
    cpu.each(x.cols.div_ceil(WIDTH), |i| task(i * WIDTH..x.cols.min((i + 1) * WIDTH)));
}

fn row_maximum(x: Tensor, row: usize) -> f32 {
    let (mut buffer, mut maxima): (Block, Block) = ([0.0; BLOCK], [0.0; BLOCK]);
    for cols in blocks(0..x.cols) {
        let buffer = &mut buffer[..cols.len()];
        load(x, row * x.cols + cols.start, buffer);
        larger_of_each(buffer, &mut maxima[..cols.len()]);
    }
    maxima.into_iter().fold(0.0, larger_magnitude)
}

fn column_maxima(x: Tensor, cols: Range<usize>, to: Tensor) {
    let mut maxima = [0.0; WIDTH];
    let mut buffer = [0.0; WIDTH];
    let maxima = &mut maxima[..cols.len()];
    let buffer = &mut buffer[..cols.len()];
    for row in 0..x.rows {
        load(x, row * x.cols + cols.start, buffer);
        larger_of_each(buffer, maxima);
    }
    store(maxima, to, cols.start);
}

/// Larger magnitude; NaN counts as larger than any number.
fn larger_magnitude(x: f32, y: f32) -> f32 {
    let size = |x: f32| x.to_bits() & (u32::MAX >> 1);
    f32::from_bits(size(x).max(size(y)))
}

vectorised! {
    fn larger_of_each(x: &[f32], maxima: &mut [f32]) {
        maxima.iter_mut().zip(x).for_each(|(maximum, x)| *maximum = larger_magnitude(*maximum, *x));
    }

    fn encode(format: Fp8, factor: f32, x: &[f32], codes: &mut [u8]) {
        codes.iter_mut().zip(x).for_each(|(code, x)| *code = format.encode(x * factor));
    }

    fn encode_each(format: Fp8, factors: &[f32], x: &[f32], codes: &mut [u8]) {
        let factors = factors.iter().zip(x);
        codes.iter_mut().zip(factors).for_each(|(code, (f, x))| *code = format.encode(x * f));
    }
}

/// Scale of a line, or the common scale of all lines.
fn scales(maxima: Tensor, to: &Quantized) {
    let of_line = |line| {
        let shares = (0..maxima.rows).map(|share| scalar(maxima, share * maxima.cols + line));
        shares.fold(0.0, larger_magnitude)
    };
    let shared = (to.scaling == Fp8Scaling::TensorWise)
        .then(|| (0..maxima.cols).map(of_line).fold(0.0, larger_magnitude));
    for line in 0..maxima.cols {
        let maximum = shared.unwrap_or_else(|| of_line(line));
        store(&[scale_of(maximum, to.format)], to.scales, line);
    }
}

fn quantize_row(x: Tensor, row: usize, to: &Quantized) {
    let factor = 1.0 / scalar(to.scales, row);
    let (mut buffer, mut codes): (Block, _) = ([0.0; BLOCK], [0; BLOCK]);
    for cols in blocks(0..x.cols) {
        let buffer = &mut buffer[..cols.len()];
        let codes = &mut codes[..cols.len()];
        load(x, row * x.cols + cols.start, buffer);
        encode(to.format, factor, buffer, codes);
        store_bytes(codes, to.codes, row * x.cols + cols.start);
    }
}

fn quantize_columns(x: Tensor, cols: Range<usize>, to: &Quantized) {
    let mut factors = [0.0; WIDTH];
    let mut buffer = [0.0; WIDTH];
    let mut row_codes = [0; WIDTH];
    let factors = &mut factors[..cols.len()];
    let buffer = &mut buffer[..cols.len()];
    let row_codes = &mut row_codes[..cols.len()];
    load(to.scales, cols.start, factors);
    factors
        .iter_mut()
        .for_each(|factor| *factor = 1.0 / *factor);
    let mut transposed = [[0; BLOCK]; WIDTH];
    for rows in blocks(0..x.rows) {
        for (at, row) in rows.clone().enumerate() {
            load(x, row * x.cols + cols.start, buffer);
            encode_each(to.format, factors, buffer, row_codes);
            transposed
                .iter_mut()
                .zip(&*row_codes)
                .for_each(|(line, code)| line[at] = *code);
        }
        for (line, codes) in cols.clone().zip(&transposed) {
            store_bytes(&codes[..rows.len()], to.codes, line * x.rows + rows.start);
        }
    }
}
