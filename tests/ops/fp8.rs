//! 8-bit floats: maxima of lines, codes, products, sums of columns.

use crate::bench::{Bench, Known};
use crate::reference::{column_sums, gelu, plus, slopes};
use crate::{Case, case};
use gptrain::base::{DType, Fp8, Gelu};
use gptrain::device::{Epilogue, Fp8Scaling, Lines, Quantized, QuantizedBy, Tensor, op};
use std::cell::LazyCell;

const FORMATS: [Fp8; 2] = [Fp8::E4M3, Fp8::E5M2];
const SCALINGS: [Fp8Scaling; 2] = [Fp8Scaling::RowWise, Fp8Scaling::TensorWise];
/// 2⁻¹⁰⁰: what a maximum is taken for at least.
const SMALLEST: f64 = 7.888609052210118e-31;

pub fn table() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols) in [(1, 1), (16, 32), (5, 513), (70, 33), (130, 64), (48, 1040)] {
        cases.push(case(format!("fp8 of {rows}x{cols}"), move |b| quantized(b, rows, cols)));
    }
    for (m, n, k) in [(16, 16, 16), (32, 48, 80), (64, 16, 144)] {
        cases.push(case(format!("fp8 product {m}x{n}x{k}"), move |b| products(b, m, n, k)));
    }
    cases.push(case("fp8 of what is not finite", not_finite));
    cases
}

/// Numbers of sizes that lie far apart, a line of zeros among them.
fn uneven(b: &Bench, rows: usize, cols: usize) -> Known {
    let x = b.normal_f32(rows, cols).x;
    let size = |at: usize| match at / cols % 5 {
        3 => 0.0,
        line => f64::powi(4.0, line as i32 - 2) * f64::powi(2.0, (at % cols % 7) as i32 - 3),
    };
    let x: Vec<f64> = x.iter().enumerate().map(|(at, x)| x * size(at)).collect();
    b.known(rows, cols, b.dtype, &x)
}

/// Numbers of the lines, one after the other.
fn lines_of(x: &[f64], cols: usize, lines: Lines) -> Vec<Vec<f64>> {
    match lines {
        Lines::Rows => x.chunks(cols).map(<[f64]>::to_vec).collect(),
        Lines::Columns => (0..cols)
            .map(|col| x.iter().skip(col).step_by(cols).copied().collect())
            .collect(),
    }
}

fn maximum(line: &[f64]) -> f64 {
    line.iter().fold(0.0, |most, x| x.abs().max(most))
}

/// Blank destination for quantizing x.
fn blank(b: &Bench, [lines, depth]: [usize; 2], format: Fp8, scaling: Fp8Scaling) -> Quantized {
    let codes = b
        .known(lines, depth, DType::U8, &vec![77.0; lines * depth])
        .on;
    Quantized { codes, scales: b.blank(1, lines, DType::F32), format, scaling }
}

/// Codes, and the scales to the bit: every device computes them by the same f32 operations. Rows,
/// columns, and both at once give the same.
pub fn quantized(b: &Bench, rows: usize, cols: usize) {
    let x = uneven(b, rows, cols);
    let all = Lines::BOTH.map(|lines| lines_of(&x.x, cols, lines));
    for asked in ASKED {
        let maxima = Lines::BOTH.map(|lines| b.blank(1, lines.shape(x.on)[0], DType::F32));
        let [rows, columns] = pick(asked, maxima.map(Tensor::set));
        b.run(op::LineMaxima { x: x.on, rows, columns });
        for at in (0..2).filter(|at| asked[*at]) {
            b.exactly("maxima", maxima[at], || all[at].iter().map(|l| maximum(l)).collect());
        }
    }
    // Another share has larger numbers in every other line.
    let shares = [0, 1].map(|at| {
        let own: Vec<f64> = all[at].iter().map(|line| maximum(line)).collect();
        let other = |(at, x): (usize, &f64)| if at % 2 == 0 { 2.5 * x } else { 0.5 * x };
        let others: Vec<f64> = own.iter().enumerate().map(other).collect();
        b.known(2, own.len(), DType::F32, &[&others[..], &own].concat())
    });
    for (asked, format, scaling) in ASKED
        .into_iter()
        .flat_map(|a| FORMATS.map(|f| SCALINGS.map(|s| (a, f, s))))
        .flatten()
    {
        let to = Lines::BOTH.map(|lines| blank(b, lines.shape(x.on), format, scaling));
        let lines = |at: usize| QuantizedBy { maxima: shares[at].on, to: to[at].set() };
        let [rows, columns] = pick(asked, [0, 1].map(lines));
        b.run(op::Quantize { x: x.on, rows, columns });
        for at in (0..2).filter(|at| asked[*at]) {
            let (shares, count) = (&shares[at].x, all[at].len());
            let most = (0..count).map(|line| shares[line].max(shares[count + line]));
            are_codes(b, &to[at], &all[at], &most.collect::<Vec<_>>());
        }
    }
    by_own_maxima(b, &x, &all);
    let (old, sums) = (b.normal_f32(1, cols), b.blank(1, cols, DType::F32));
    b.run(op::ColumnSums { x: x.on, sums: sums.set() });
    b.expect("sums of columns", sums, || column_sums(&x.x, cols));
    b.run(op::ColumnSums { x: x.on, sums: old.on.add() });
    b.expect("sums of columns +=", old.on, || plus(&old.x, &column_sums(&x.x, cols)));
}

/// Whether rows and columns are requested.
const ASKED: [[bool; 2]; 3] = [[true, false], [false, true], [true, true]];

fn pick<T>(asked: [bool; 2], of: [T; 2]) -> [Option<T>; 2] {
    let [rows, columns] = of;
    [asked[0].then_some(rows), asked[1].then_some(columns)]
}

/// Rows in one go, with and without the maxima of columns.
fn by_own_maxima(b: &Bench, x: &Known, [rows, columns]: &[Vec<Vec<f64>>; 2]) {
    let of = |lines: &[Vec<f64>]| lines.iter().map(|line| maximum(line)).collect::<Vec<_>>();
    for (format, takes) in FORMATS
        .into_iter()
        .flat_map(|format| [(format, true), (format, false)])
    {
        let to = blank(b, Lines::Rows.shape(x.on), format, Fp8Scaling::RowWise);
        let maxima = b.blank(1, columns.len(), DType::F32);
        b.run(op::QuantizeRows { x: x.on, to: to.set(), columns: takes.then(|| maxima.set()) });
        are_codes(b, &to, rows, &of(rows));
        if takes {
            b.exactly("maxima of columns in passing", maxima, || of(columns));
        }
    }
}

/// Compares with the codes of lines whose largest numbers are `most`.
fn are_codes(b: &Bench, to: &Quantized, lines: &[Vec<f64>], most: &[f64]) {
    let Quantized { codes, scales, format, scaling } = *to;
    let whole = most.iter().copied().fold(0.0, f64::max);
    let scale = |line: usize| {
        let most = if scaling == Fp8Scaling::RowWise { most[line] } else { whole };
        most.max(SMALLEST) as f32 / format.largest()
    };
    let what = format!("{format:?} {scaling:?}, {} lines", lines.len());
    let all = || {
        (0..lines.len())
            .map(|line| f64::from(scale(line)))
            .collect()
    };
    b.exactly(&format!("scales, {what}"), scales, all);
    let code = |at: usize, x: f64| format.encode(x as f32 * (1.0 / scale(at)));
    b.exactly(&format!("codes, {what}"), codes, || {
        let numbers = lines.iter().enumerate();
        let coded = numbers.flat_map(|(at, line)| line.iter().map(move |x| (at, *x)));
        coded.map(|(at, x)| f64::from(code(at, x))).collect()
    });
}

/// Quantizes x by its own maxima; also the numbers that it then has.
fn own(b: &Bench, x: &Known, format: Fp8, scaling: Fp8Scaling) -> (Quantized, Vec<f64>) {
    let (size, to) = (Lines::Rows.shape(x.on), blank(b, Lines::Rows.shape(x.on), format, scaling));
    let maxima = b.blank(1, size[0], DType::F32);
    b.run(op::LineMaxima { x: x.on, rows: Some(maxima.set()), columns: None });
    let rows = Some(QuantizedBy { maxima, to: to.set() });
    b.run(op::Quantize { x: x.on, rows, columns: None });
    let scales = b.numbers(to.scales);
    let number = |(at, code): (usize, &u8)| f64::from(format.decode(*code)) * scales[at / size[1]];
    let numbers = b.bytes(to.codes).iter().enumerate().map(number).collect();
    (to, numbers)
}

/// Products of both scalings and of formats that go together, with their epilogues.
pub fn products(b: &Bench, m: usize, n: usize, k: usize) {
    // C is bf16 or f32.
    let to = if b.dtype == DType::F16 { DType::F32 } else { b.dtype };
    let (x, y) = (uneven(b, m, k), uneven(b, n, k));
    let bias = b.normal_f32(1, n);
    let bias = b.known(1, n, to, &bias.x);
    let formats = [[Fp8::E4M3; 2], [Fp8::E5M2, Fp8::E4M3], [Fp8::E4M3, Fp8::E5M2]];
    for (formats, scaling) in formats.into_iter().flat_map(|f| SCALINGS.map(|s| (f, s))) {
        let (a, of_a) = own(b, &x, formats[0], scaling);
        let (w, of_w) = own(b, &y, formats[1], scaling);
        let product = LazyCell::new(|| product(&of_a, &of_w, k));
        let biased = || {
            product
                .chunks(n)
                .flat_map(|row| plus(row, &bias.x))
                .collect::<Vec<_>>()
        };
        let run = |c, then| b.run(op::Fp8Gemm { a, b: w, c, then });
        let c = b.blank(m, n, to);
        run(c.set(), Epilogue::Nothing);
        b.expect("C", c, || product.clone());
        for dtype in [to, DType::F32] {
            let old = b.normal_f32(m, n);
            let old = b.known(m, n, dtype, &old.x);
            run(old.on.add(), Epilogue::Nothing);
            b.expect("C +=", old.on, || plus(&product, &old.x));
        }
        run(c.set(), Epilogue::Bias(bias.on));
        b.expect("C with bias", c, biased);
        for kind in [Gelu::Tanh, Gelu::Exact] {
            let pre = b.blank(m, n, to);
            run(c.set(), Epilogue::BiasGelu { bias: Some(bias.on), pre, gelu: kind });
            b.expect("pre", pre, biased);
            b.expect("gelu(pre)", c, || biased().into_iter().map(|x| gelu(kind, x)).collect());
            let pre = b.normal_f32(m, n);
            let pre = b.known(m, n, to, &pre.x);
            run(c.set(), Epilogue::GeluBackward { pre: pre.on, gelu: kind });
            b.expect("dpre", c, || {
                let slope = |x: &f64| slopes(&[*x], |x| gelu(kind, x[0]))[0];
                product
                    .iter()
                    .zip(&pre.x)
                    .map(|(dy, x)| dy * slope(x))
                    .collect()
            });
        }
    }
}

/// Numbers of a product whose left operand has that format.
pub fn product_of(b: &Bench, format: Fp8, [m, n, k]: [usize; 3]) -> Vec<f64> {
    let (x, y) = (uneven(b, m, k), uneven(b, n, k));
    let (a, _) = own(b, &x, format, Fp8Scaling::RowWise);
    let (w, _) = own(b, &y, Fp8::E4M3, Fp8Scaling::RowWise);
    let c = b.blank(m, n, DType::F32);
    b.run(op::Fp8Gemm { a, b: w, c: c.set(), then: Epilogue::Nothing });
    b.numbers(c)
}

/// A product onto f32, of a side that takes more than one part of a device's scratch.
pub fn added(b: &Bench, m: usize, n: usize, k: usize) {
    let (x, y, old) = (uneven(b, m, k), uneven(b, n, k), b.normal_f32(m, n));
    let (a, of_a) = own(b, &x, Fp8::E5M2, Fp8Scaling::RowWise);
    let (w, of_w) = own(b, &y, Fp8::E4M3, Fp8Scaling::RowWise);
    b.run(op::Fp8Gemm { a, b: w, c: old.on.add(), then: Epilogue::Nothing });
    b.expect("C +=", old.on, || plus(&product(&of_a, &of_w, k), &old.x));
}

/// Infinity and NaN in two lines: those of the product are NaN, the others are what they are.
fn not_finite(b: &Bench) {
    let (lines, depth) = (16, 16);
    let mut x = b.normal(lines, depth).x;
    (x[3], x[2 * depth + 5]) = (f64::INFINITY, f64::NAN);
    let (x, y) = (b.known(lines, depth, b.dtype, &x), b.normal(lines, depth));
    for format in FORMATS {
        let (a, of_a) = own(b, &x, format, Fp8Scaling::RowWise);
        let (w, of_w) = own(b, &y, Fp8::E4M3, Fp8Scaling::RowWise);
        let c = b.blank(lines, lines, DType::F32);
        b.run(op::Fp8Gemm { a, b: w, c: c.set(), then: Epilogue::Nothing });
        b.expect("C", c, || {
            let product = product(&of_a, &of_w, depth);
            let spoilt = |at: usize| [0, 2].contains(&(at / lines));
            let right = |(at, x): (usize, &f64)| x.is_nan() == spoilt(at);
            assert!(product.iter().enumerate().all(right), "{product:?}");
            product
        });
    }
}

/// A·Bᵀ of rows of that depth.
fn product(a: &[f64], b: &[f64], depth: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    a.chunks(depth)
        .flat_map(|a| b.chunks(depth).map(move |b| dot(a, b)))
        .collect()
}
