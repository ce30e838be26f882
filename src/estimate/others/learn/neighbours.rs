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
    /// Runs of one kind resemble each other; those of others less.
    pub kind: String,
    /// Runs of one family share a part of their residual beside that.
    pub family: String,
    /// Measured by whoever asks, as what is predicted then is.
    pub own: bool,
    /// How much the same run scatters when repeated.
    pub scatter: f64,
}

/// Standard deviations of what is left by the formulas.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// What runs close to each other share, and how close is close: nearby, and further off.
    pub near: (f64, f64),
    pub wide: (f64, f64),
    /// What all runs share that stand together here.
    pub all: f64,
    /// What a family shares, as a multiple of the scatter.
    pub family: f64,
    /// What runs share that whoever asks has measured.
    pub own: f64,
}

/// Of what runs of one kind share, the part that they share with another kind; and of what others
/// measured, the part that holds for who asks.
const OTHER_KIND: f64 = 0.3;
const OTHERS: f64 = 0.7;

impl Kernel {
    fn covariance(&self, a: &Point, b: &Point) -> f64 {
        let square: f64 = a.place.iter().zip(&b.place).map(|(a, b)| (a - b).powi(2)).sum();
        let falling =
            |(share, reach): (f64, f64)| share.powi(2) * (-square / (2.0 * reach.powi(2))).exp();
        let kind = if a.kind == b.kind { 1.0 } else { OTHER_KIND };
        let asked = if a.own == b.own { 1.0 } else { OTHERS };
        let both = if a.own && b.own { self.own.powi(2) } else { 0.0 };
        let kin =
            if a.family == b.family { self.family.powi(2) * a.scatter * b.scatter } else { 0.0 };
        let shared = falling(self.near) + falling(self.wide) + self.all.powi(2);
        asked * (kind * shared + kin) + both
    }

    /// Of a run that is not measured, far from all others: its standard deviation.
    pub fn alone(&self, point: &Point) -> f64 {
        (self.covariance(point, point) + point.scatter.powi(2)).sqrt()
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

#[cfg(test)]
const KERNEL: Kernel =
    Kernel { near: (0.05, 0.5), wide: (0.0, 1.0), all: 0.0, family: 0.0, own: 0.3 };

#[cfg(test)]
fn point(x: f64, own: bool) -> Point {
    Point { place: vec![x], kind: String::new(), family: String::new(), own, scatter: 0.01 }
}

#[test]
fn near_runs_teach_and_far_ones_do_not() {
    let points = [0.0, 0.1, 3.0].map(|x| point(x, false)).to_vec();
    let all = Neighbours::new(KERNEL, points, &[0.05, 0.05, -0.05]);
    let (near, sure) = all.at(&point(0.05, false));
    let (far, unsure) = all.at(&point(20.0, false));
    assert!((near - 0.05).abs() < 0.01 && sure < 0.02, "{near} ± {sure}");
    assert!(far.abs() < 1e-9 && (unsure - 0.051).abs() < 1e-3, "{far} ± {unsure}");
}

/// Own runs are all slower by half: so are others of the same owner, however far.
#[test]
fn what_own_runs_share_holds_for_all_of_the_owners() {
    let points = vec![point(0.0, true), point(3.0, true), point(6.0, true), point(0.0, false)];
    let all = Neighbours::new(KERNEL, points, &[0.4, 0.41, 0.39, 0.0]);
    let (own, _) = all.at(&point(20.0, true));
    assert!((own - 0.4).abs() < 0.03, "{own}");
}
