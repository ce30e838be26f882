//! How far the formulas were off for runs like this one: a Gaussian process over what is left of the
//! measurements (kriging). Near a measured run its residual counts; far from all, nothing does, and
//! the error bar says so.

use super::kernel::{Kernel, Point, weight};
use super::linear::Cholesky;

/// Measured runs and what each says.
#[derive(Clone)]
pub struct Neighbours {
    kernel: Kernel,
    points: Vec<Point>,
    factor: Cholesky,
    pull: Vec<f64>,
}

impl Neighbours {
    /// From each run's residual. A residual that its neighbours contradict counts less.
    pub fn new(kernel: Kernel, points: Vec<Point>, residuals: &[f64]) -> Neighbours {
        let covariance = covariances(&kernel, &points);
        let mut noise: Vec<f64> = points.iter().map(|point| kernel.noise(point)).collect();
        let pull = factored(&covariance, &noise).solve(residuals);
        for (noise, pull) in noise.iter_mut().zip(pull) {
            *noise /= weight(*noise * pull, noise.sqrt());
        }
        let factor = factored(&covariance, &noise);
        let pull = factor.solve(residuals);
        Neighbours { kernel, points, factor, pull }
    }

    /// The residual to expect, and its standard deviation.
    pub fn at(&self, point: &Point) -> (f64, f64) {
        let near: Vec<f64> =
            self.points.iter().map(|other| self.kernel.covariance(point, other)).collect();
        let mean = near.iter().zip(&self.pull).map(|(k, p)| k * p).sum();
        let known: f64 = self.factor.half(&near).iter().map(|x| x * x).sum();
        let own = self.kernel.covariance(point, point);
        (mean, ((own - known).max(0.0) + self.kernel.noise(point)).sqrt())
    }
}

/// Of each run with those before it and itself: the lower triangle.
pub(super) fn covariances(kernel: &Kernel, points: &[Point]) -> Vec<Vec<f64>> {
    let row = |(i, a): (usize, &Point)| -> Vec<f64> {
        points[..=i].iter().map(|b| kernel.covariance(a, b)).collect()
    };
    points.iter().enumerate().map(row).collect()
}

/// The covariance with noise, factored.
pub(super) fn factored(covariance: &[Vec<f64>], noise: &[f64]) -> Cholesky {
    let mut with = covariance.to_vec();
    with.iter_mut().zip(noise).enumerate().for_each(|(i, (row, noise))| row[i] += noise);
    Cholesky::new(with)
}
