//! Normalisation of each row: layer (Ba, Kiros & Hinton 2016) and RMS (Zhang & Sennrich 2019),
//! which has neither mean nor shift.

use super::Cpu;
use super::elementwise;
use super::math::{self, LANES, vectorised};
use super::memory::{BLOCK, Block, load, put, round, scalar, store};
use super::parallel::blocks;
use crate::{Out, Tensor, op};

pub(super) fn residual_norm(cpu: &Cpu, op: &op::ResidualNorm) {
    elementwise::residual(cpu, &op.residual);
    forward(cpu, &op.norm);
}

pub(super) fn norm_residual_backward(cpu: &Cpu, op: &op::NormResidualBackward) {
    backward(cpu, &op.norm);
    elementwise::residual_backward(cpu, &op.residual);
}

pub(super) fn forward(cpu: &Cpu, &op::LayerNorm { x, norm, y, stats }: &op::LayerNorm) {
    let (scale, shift, eps) = norm.parts();
    let width = x.cols;
    cpu.each_rows(x.rows, width, |rows| {
        let (mut a, mut b, mut c): (Block, Block, Block) =
            ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for row in rows {
            let (mean, rstd) = moments(x, row, eps, shift.is_some());
            store(&[mean, rstd], stats.to, 2 * row);
            for cols in blocks(0..width) {
                let len = cols.len();
                let at = row * width + cols.start;
                load(x, at, &mut a[..len]);
                load(scale, cols.start, &mut b[..len]);
                match shift {
                    Some(shift) => {
                        load(shift, cols.start, &mut c[..len]);
                        normalise(&mut a[..len], mean, rstd, &b[..len], &c[..len]);
                    }
                    None => {
                        standardise(&mut a[..len], mean, rstd);
                        round(x.dtype, &mut a[..len]);
                        math::multiply(&b[..len], &mut a[..len]);
                    }
                }
                put(&mut a[..len], y, at);
            }
        }
    });
}

/// Mean and 1/√(variance + eps) of a row, in two passes. Without `mean`, 0 replaces the mean.
fn moments(x: Tensor, row: usize, eps: f32, mean: bool) -> (f32, f32) {
    let mut buffer: Block = [0.0; BLOCK];
    let mut sum_blocks = |of: &dyn Fn(&[f32]) -> f32| {
        let mut sum = 0.0;
        for cols in blocks(0..x.cols) {
            let buffer = &mut buffer[..cols.len()];
            load(x, row * x.cols + cols.start, buffer);
            sum += of(buffer) as f64;
        }
        sum / x.cols as f64
    };
    let mean = if mean { sum_blocks(&math::sum) as f32 } else { 0.0 };
    let variance = sum_blocks(&|block| math::square_deviations(block, mean));
    (mean, (1.0 / (variance + eps as f64).sqrt()) as f32)
}

pub(super) fn backward(cpu: &Cpu, op: &op::LayerNormBackward) {
    let op::LayerNormBackward { dy, x, stats, scale, dx, dscale, dshift } = *op;
    let outs: Vec<Out> = std::iter::once(dscale).chain(dshift).collect();
    let width = x.cols;
    let centred = dshift.is_some();
    cpu.sum_rows(x.rows, width, &outs, |rows, sums| {
        let (dscale, dshift) = sums.split_at_mut(width);
        let [mut g, mut xhat, mut s]: [Block; 3] = [[0.0; BLOCK]; 3];
        for row in rows {
            let mean = scalar(stats, 2 * row);
            let rstd = scalar(stats, 2 * row + 1);
            let mut sum = 0.0;
            let mut along = 0.0;
            for cols in blocks(0..width) {
                let g = &mut g[..cols.len()];
                let xhat = &mut xhat[..cols.len()];
                let s = &mut s[..cols.len()];
                load(dy, row * width + cols.start, g);
                load(x, row * width + cols.start, xhat);
                load(scale, cols.start, s);
                standardise(xhat, mean, rstd);
                let (a, b) = project(g, xhat, s, &mut dscale[cols.clone()]);
                if centred {
                    math::add(g, &mut dshift[cols]);
                    sum += a as f64;
                }
                along += b as f64;
            }
            let sum = sum / width as f64;
            let along = along / width as f64;
            for cols in blocks(0..width) {
                let at = row * width + cols.start;
                let g = &mut g[..cols.len()];
                let xhat = &mut xhat[..cols.len()];
                let s = &mut s[..cols.len()];
                // A row of one block is still in the buffers.
                if width > BLOCK {
                    load(dy, at, g);
                    load(x, at, xhat);
                    load(scale, cols.start, s);
                    standardise(xhat, mean, rstd);
                }
                slope(g, xhat, s, rstd, sum as f32, along as f32);
                put(g, dx, at);
            }
        }
    });
}

vectorised! {
    /// x = (x − mean)·rstd·scale + shift
    fn normalise(x: &mut [f32], mean: f32, rstd: f32, scale: &[f32], shift: &[f32]) {
        for ((x, scale), shift) in x.iter_mut().zip(scale).zip(shift) {
            *x = ((*x - mean) * rstd).mul_add(*scale, *shift);
        }
    }

    /// x = (x − mean)·rstd
    fn standardise(x: &mut [f32], mean: f32, rstd: f32) {
        for x in x {
            *x = (*x - mean) * rstd;
        }
    }

    /// Σ dy·scale and Σ dy·scale·xhat; dscale += dy·xhat
    fn project(dy: &[f32], xhat: &[f32], scale: &[f32], dscale: &mut [f32]) -> (f32, f32) {
        let mut sum = [0.0f32; LANES];
        let mut along = [0.0f32; LANES];
        let whole = dy.len() / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            let dy = &dy[at..at + LANES];
            let xhat = &xhat[at..at + LANES];
            let scale = &scale[at..at + LANES];
            let dscale = &mut dscale[at..at + LANES];
            for i in 0..LANES {
                let g = dy[i] * scale[i];
                sum[i] += g;
                along[i] = g.mul_add(xhat[i], along[i]);
                dscale[i] = dy[i].mul_add(xhat[i], dscale[i]);
            }
        }
        for i in whole..dy.len() {
            let g = dy[i] * scale[i];
            sum[i - whole] += g;
            along[i - whole] = g.mul_add(xhat[i], along[i - whole]);
            dscale[i] = dy[i].mul_add(xhat[i], dscale[i]);
        }
        (sum.iter().sum(), along.iter().sum())
    }

    /// dy = rstd·(dy·scale − sum − xhat·along)
    fn slope(dy: &mut [f32], xhat: &[f32], scale: &[f32], rstd: f32, sum: f32, along: f32) {
        for ((dy, xhat), scale) in dy.iter_mut().zip(xhat).zip(scale) {
            *dy = rstd * (-xhat).mul_add(along, *dy * scale - sum);
        }
    }
}
