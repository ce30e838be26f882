//! Residual of a run from those of similar runs: a Gaussian process over the residuals of the measurements
//! (kriging). Near a measured run its residual counts; far from all, none does, and the error bar is
//! wide. The bar includes the uncertainty that the covariance does not model (`uncertainty`).

use super::kernel::{Features, Kernel, weight};
use super::linear::Cholesky;
use super::uncertainty::{RelatedRuns, excess_squares, nine_in_ten_quantile};

/// Measured runs, and the weight of each residual.
#[derive(Clone)]
pub struct Neighbours {
    kernel: Kernel,
    points: Vec<Features>,
    factor: Cholesky,
    pull: Vec<f64>,
    /// Excess of each run's squared residual over its expectation from the others.
    excesses: Vec<f64>,
    /// Number of programs that were measured, on any machine.
    programs: usize,
}

impl Neighbours {
    /// Learns from each run's residual. A residual that its neighbours contradict counts less.
    pub fn new(kernel: Kernel, points: Vec<Features>, residuals: &[f64]) -> Neighbours {
        let covariance = covariances(&kernel, &points);
        let quiet: Vec<f64> = points.iter().map(|point| kernel.noise(point)).collect();
        let pull = factor_with_noise(&covariance, &quiet).solve(residuals);
        let noise: Vec<f64> = quiet
            .iter()
            .zip(pull)
            .map(|(quiet, pull)| quiet / weight(quiet * pull, quiet.sqrt()))
            .collect();
        let factor = factor_with_noise(&covariance, &noise);
        let pull = factor.solve(residuals);
        let excesses = excess_squares(&factor, &pull, &noise, &quiet);
        Neighbours { kernel, points, factor, pull, excesses, programs: 0 }
    }

    /// With so many programs measured, of which these runs are a part.
    pub fn with_programs(self, programs: usize) -> Neighbours {
        Neighbours { programs, ..self }
    }

    /// Expected residual, and half the width of an interval around it that contains nine in ten.
    pub fn predict_at(&self, point: &Features) -> (f64, f64) {
        let near: Vec<f64> = self
            .points
            .iter()
            .map(|other| self.kernel.covariance(point, other))
            .collect();
        let mean = near.iter().zip(&self.pull).map(|(k, p)| k * p).sum();
        let known: f64 = self.factor.solve_lower(&near).iter().map(|x| x * x).sum();
        let own = self.kernel.covariance(point, point);
        let expected = (own - known).max(0.0) + self.kernel.noise(point);
        let related = RelatedRuns::new(point, &self.points);
        let unmodelled = related.variance(&self.kernel.halving, point.unseen, &self.excesses);
        let quantile = nine_in_ten_quantile(related.cluster, self.programs);
        let network = if related.only_site.is_some() { point.unseen.network } else { 0.0 };
        (mean, quantile * (expected + unmodelled).sqrt() + network)
    }

    /// The only site that measured the program of this run, if that is another.
    pub fn only_site(&self, point: &Features) -> Option<&'static str> {
        RelatedRuns::new(point, &self.points).only_site
    }
}

/// Covariance of each run with those before it and itself: the lower triangle.
pub(super) fn covariances(kernel: &Kernel, points: &[Features]) -> Vec<Vec<f64>> {
    points
        .iter()
        .enumerate()
        .map(|(i, a)| -> Vec<f64> {
            points[..=i]
                .iter()
                .map(|b| kernel.covariance(a, b))
                .collect()
        })
        .collect()
}

/// The covariance with noise, factored.
pub(super) fn factor_with_noise(covariance: &[Vec<f64>], noise: &[f64]) -> Cholesky {
    let mut with = covariance.to_vec();
    with.iter_mut()
        .zip(noise)
        .enumerate()
        .for_each(|(i, (row, noise))| row[i] += noise);
    Cholesky::new(with)
}
