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

#[cfg(test)]
use super::kernel::Shared;

#[cfg(test)]
pub(super) const KERNEL: Kernel = Kernel {
    program: Shared { whole: 0.1, part: 0.0 },
    machine: Shared { whole: 0.0, part: 0.0 },
    cluster: Shared { whole: 0.0, part: 0.3 },
    parts: &[1.0, 1.0],
    near: (0.05, 0.5),
    wide: (0.0, 1.0),
    other_program: 0.0,
    other_machine: 0.0,
    period: 0.0,
    single: 1.0,
    others: 0.5,
};

#[cfg(test)]
pub(super) fn point(machine: &'static str, x: f64, launches: f64) -> Point {
    let (place, parts) = (vec![x], vec![1.0 - launches, launches]);
    let period = String::new();
    Point { program: "nemo", machine, period, parts, place, own: false, scatter: 0.01 }
}

#[test]
fn near_runs_teach_and_far_ones_do_not() {
    let kernel = Kernel { cluster: Shared { whole: 0.0, part: 0.0 }, ..KERNEL };
    let kernel = Kernel { program: Shared { whole: 0.0, part: 0.0 }, ..kernel };
    let points = [0.0, 0.1, 3.0].map(|x| point("a", x, 0.0)).to_vec();
    let all = Neighbours::new(kernel, points, &[0.05, 0.05, -0.05]);
    let (near, sure) = all.at(&point("a", 0.05, 0.0));
    let (far, unsure) = all.at(&point("a", 20.0, 0.0));
    assert!((near - 0.05).abs() < 0.01 && sure < 0.02, "{near} ± {sure}");
    assert!(far.abs() < 1e-9 && (unsure - 0.051).abs() < 1e-3, "{far} ± {unsure}");
}

/// Of runs that are half launches and run late by a fifth, one that is all launches is late by two fifths,
/// one without them is not: three runs tell of which part it is. Another machine is late by what the
/// program does everywhere, and nobody is sure of it.
#[test]
fn a_part_that_runs_late_tells_of_runs_with_more_of_it() {
    let points = vec![point("a", 0.0, 0.5), point("a", 3.0, 0.0), point("a", 6.0, 0.25)];
    let all = Neighbours::new(KERNEL, points, &[0.2, 0.0, 0.1]);
    let (none, _) = all.at(&point("a", 20.0, 0.0));
    let (whole, sure) = all.at(&point("a", 20.0, 1.0));
    let (other, unsure) = all.at(&point("b", 20.0, 1.0));
    assert!(none.abs() < 0.03 && (0.25..0.45).contains(&whole), "{none} and {whole}");
    assert!(other.abs() < 0.1 && unsure > 0.3 && unsure > 2.0 * sure, "{other} ± {unsure}, {sure}");
}

/// One's own runs are slower by half: so are others of one's own, however far; not those of strangers.
#[test]
fn own_runs_tell_most_of_ones_own() {
    let own = |x: f64| Point { own: true, ..point("a", x, 0.0) };
    let points = vec![own(0.0), own(3.0), own(6.0), point("a", 0.0, 0.0)];
    let all = Neighbours::new(KERNEL, points, &[0.4, 0.41, 0.39, 0.0]);
    let (mine, _) = all.at(&own(20.0));
    let (theirs, _) = all.at(&point("a", 20.0, 0.0));
    assert!((mine - 0.4).abs() < 0.05 && theirs < 0.15, "{mine} and {theirs}");
}
