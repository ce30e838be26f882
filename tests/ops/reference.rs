//! Definitions in f64, written for reading.

use gptrain::base::rng::philox;
use gptrain::device::{Dropout, Gelu};

/// ∂f/∂xᵢ for every i, by five-point differences: exact to about 1e-11 for smooth f near 1.
pub fn slopes(x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const H: f64 = 1e-3;
    let mut x = x.to_vec();
    (0..x.len())
        .map(|i| {
            let here = x[i];
            let mut at = |steps: f64| {
                x[i] = here + steps * H;
                f(&x)
            };
            let slope = (at(-2.0) - 8.0 * at(-1.0) + 8.0 * at(1.0) - at(2.0)) / (12.0 * H);
            x[i] = here;
            slope
        })
        .collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn plus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

pub fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// Σ over rows of `cols` elements.
pub fn column_sums(x: &[f64], cols: usize) -> Vec<f64> {
    let mut sums = vec![0.0; cols];
    for row in x.chunks(cols) {
        sums = plus(&sums, row);
    }
    sums
}

pub fn gelu(kind: Gelu, x: f64) -> f64 {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};
    match kind {
        Gelu::Tanh => 0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        Gelu::Exact => 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2)),
    }
}

/// Abramowitz & Stegun 7.1.6: all terms are positive.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / (2 * n + 1) as f64;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// Dropout factor of element (row, column), as documented in `Dropout`.
pub fn dropout(drop: &Dropout, first_sample: i64, row: usize, head: usize, column: usize) -> f64 {
    let g = first_sample as u128 * drop.seq as u128 + (drop.first_row + row) as u128;
    let words = philox(drop.key, g << 64 | (head as u128) << 32 | (column / 4) as u128);
    if (words[column % 4] as f64) < drop.rate as f64 * 2f64.powi(32) {
        0.0
    } else {
        1.0 / (1.0 - drop.rate as f64)
    }
}

/// The factors of a whole matrix outside attention.
pub fn dropout_matrix(drop: &Dropout, first_sample: i64, rows: usize, cols: usize) -> Vec<f64> {
    let places = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
    places
        .map(|(row, col)| dropout(drop, first_sample, row, 0, col))
        .collect()
}

pub fn layernorm(x: &[f64], cols: usize, scale: &[f64], shift: &[f64], eps: f64) -> Vec<f64> {
    let row = |x: &[f64]| {
        let (mean, rstd) = moments(x, eps);
        let y = x.iter().zip(scale.iter().zip(shift));
        y.map(|(x, (scale, shift))| (x - mean) * rstd * scale + shift)
            .collect::<Vec<_>>()
    };
    x.chunks(cols).flat_map(row).collect()
}

/// Mean and 1/√(variance + eps).
pub fn moments(x: &[f64], eps: f64) -> (f64, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    (mean, 1.0 / (variance + eps).sqrt())
}

/// RMS norm of rows as long as the scale.
pub fn rms_norm(x: &[f64], scale: &[f64], eps: f64) -> Vec<f64> {
    let row = |x: &[f64]| {
        let root = root(x, eps);
        x.iter()
            .zip(scale)
            .map(|(x, scale)| x * root * scale)
            .collect::<Vec<_>>()
    };
    x.chunks(scale.len()).flat_map(row).collect()
}

/// 1/√(mean of x² + eps).
pub fn root(x: &[f64], eps: f64) -> f64 {
    1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt()
}

/// silu(gate)·value.
pub fn swiglu(gate: f64, value: f64) -> f64 {
    gate / (1.0 + (-gate).exp()) * value
}
