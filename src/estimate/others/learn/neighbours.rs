//! How far the formulas were off for runs like this one: a Gaussian process over what is left of the
//! measurements (kriging). Near a measured run its residual counts; far from all, nothing does, and
//! the error bar says so.

use super::fit::weight;
use super::linear::Cholesky;

/// A run as the neighbours see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Coordinates in which runs one apart resemble each other little.
    pub place: Vec<f64>,
    /// Runs of one family share a part of their residual.
    pub family: String,
    /// How much the same run scatters when repeated.
    pub scatter: f64,
}

/// Standard deviations of what is left by the formulas.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// What runs close to each other share, and how close is close.
    pub near: f64,
    pub reach: f64,
    /// What a family shares, as a multiple of the scatter.
    pub family: f64,
}

impl Kernel {
    fn covariance(&self, a: &Point, b: &Point) -> f64 {
        let square: f64 = a.place.iter().zip(&b.place).map(|(a, b)| (a - b).powi(2)).sum();
        let near = self.near.powi(2) * (-square / (2.0 * self.reach.powi(2))).exp();
        let kin =
            if a.family == b.family { self.family.powi(2) * a.scatter * b.scatter } else { 0.0 };
        near + kin
    }
}

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
        let n = points.len();
        let covariance: Vec<Vec<f64>> = points
            .iter()
            .map(|a| points.iter().map(|b| kernel.covariance(a, b)).collect())
            .collect();
        let mut noise: Vec<f64> = points.iter().map(|point| point.scatter.powi(2)).collect();
        let solve = |noise: &[f64]| {
            let mut a = covariance.clone();
            (0..n).for_each(|i| a[i][i] += noise[i]);
            let factor = Cholesky::new(a);
            let pull = factor.solve(residuals);
            (factor, pull)
        };
        let (mut factor, mut pull) = solve(&noise);
        for _ in 0..2 {
            for (i, point) in points.iter().enumerate() {
                noise[i] = point.scatter.powi(2) / weight(noise[i] * pull[i], point.scatter);
            }
            (factor, pull) = solve(&noise);
        }
        Neighbours { kernel, points, factor, pull }
    }

    /// The residual to expect, and its standard deviation.
    pub fn at(&self, point: &Point) -> (f64, f64) {
        let near: Vec<f64> =
            self.points.iter().map(|other| self.kernel.covariance(point, other)).collect();
        let mean = near.iter().zip(&self.pull).map(|(k, p)| k * p).sum();
        let known: f64 = self.factor.half(&near).iter().map(|x| x * x).sum();
        let own = self.kernel.covariance(point, point);
        (mean, ((own - known).max(0.0) + point.scatter.powi(2)).sqrt())
    }
}

#[test]
fn near_runs_teach_and_far_ones_do_not() {
    let kernel = Kernel { near: 0.05, reach: 0.5, family: 0.0 };
    let point = |x: f64| Point { place: vec![x], family: String::new(), scatter: 0.01 };
    let all =
        Neighbours::new(kernel, vec![point(0.0), point(0.1), point(3.0)], &[0.05, 0.05, -0.05]);
    let (near, sure) = all.at(&point(0.05));
    let (far, unsure) = all.at(&point(20.0));
    assert!((near - 0.05).abs() < 0.01 && sure < 0.02, "{near} ± {sure}");
    assert!(far.abs() < 1e-9 && (unsure - 0.051).abs() < 1e-3, "{far} ± {unsure}");
}
