//! Fits constants to measurements: the most probable ones under their prior.
//!
//! A run's ln(measured / predicted) is the sum of a part that runs of its program, machine and shape share
//! (normal, with the covariance in `kernel`) and a part of its own (Student's t, so that outliers hardly
//! count). The fit maximises the joint probability of the constants and the shared part by alternating
//! descent: a damped Gauss-Newton step of the constants (Levenberg and Marquardt) with fixed weights of
//! the runs; then the weights from the residuals (re-weighted squares for Student's t; Lange, Little and
//! Taylor 1989). It ends when neither half of a round improves.

use super::kernel::{Features, Kernel, improbability, weight};
use super::linear::Cholesky;
use super::neighbours::{covariances, factor_with_noise};

const ROUNDS: usize = 400;
/// Damping of a step: initial, minimum, and the maximum, above which no step descends.
const DAMPING: Damping = Damping { start: 1e-3, least: 1e-9, most: 1e3 };

struct Damping {
    start: f64,
    least: f64,
    most: f64,
}

/// Prior of the logarithm of a constant.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    pub log: f64,
    pub spread: f64,
}

/// Measurements: ln(measured / predicted) of each run as a function of the constants, and the features
/// that runs share.
pub struct Runs<'a> {
    pub residuals: &'a dyn Fn(&[f64]) -> Vec<f64>,
    pub kernel: &'a Kernel,
    pub points: &'a [Features],
}

/// Positive constants that explain the runs best, from `start`. The last round is the first with a gain
/// below `rest`, in ln of the probability.
pub fn fit(beliefs: &[Belief], start: &[f64], runs: &Runs, rest: f64) -> Vec<f64> {
    let covariance = covariances(runs.kernel, runs.points);
    let quiet: Vec<f64> = runs
        .points
        .iter()
        .map(|point| runs.kernel.noise(point))
        .collect();
    let mut noise = quiet.clone();
    let logs: Vec<f64> = start.iter().map(|value| value.ln()).collect();
    let mut iterate = Iterate { residuals: residuals(runs, &logs), logs };
    let mut damping = DAMPING.start;
    let mut last = f64::INFINITY;
    for _ in 0..ROUNDS {
        let factor = factor_with_noise(&covariance, &noise);
        let round = Round { beliefs, quiet: &quiet, noise: &noise, factor: &factor };
        let value = round.improbability(&iterate);
        if last - value < rest {
            break;
        }
        last = value;
        iterate = round.improve(runs, iterate, value, &mut damping);
        let own = round.own_parts(&iterate);
        noise = own
            .iter()
            .zip(&quiet)
            .map(|(r, q)| q / weight(*r, q.sqrt()))
            .collect();
    }
    iterate.logs.iter().map(|log| log.exp()).collect()
}

/// Logarithms of the constants, and the residuals.
struct Iterate {
    logs: Vec<f64>,
    residuals: Vec<f64>,
}

impl Iterate {
    fn step_by(&self, runs: &Runs, by: &[f64]) -> Iterate {
        let logs: Vec<f64> = self.logs.iter().zip(by).map(|(x, d)| x + d).collect();
        Iterate { residuals: residuals(runs, &logs), logs }
    }
}

fn residuals(runs: &Runs, logs: &[f64]) -> Vec<f64> {
    (runs.residuals)(&logs.iter().map(|log| log.exp()).collect::<Vec<f64>>())
}

/// Derivatives of the residuals with respect to each constant's logarithm.
fn columns(runs: &Runs, at: &Iterate) -> Vec<Vec<f64>> {
    let small = 1e-4;
    (0..at.logs.len())
        .map(|j| -> Vec<f64> {
            let mut by = vec![0.0; at.logs.len()];
            by[j] = small;
            let then = at.step_by(runs, &by).residuals;
            then.iter()
                .zip(&at.residuals)
                .map(|(a, b)| (a - b) / small)
                .collect()
        })
        .collect()
}

fn step(known: &[Vec<f64>], damping: f64, slopes: &[f64]) -> Vec<f64> {
    let mut damped = known.to_vec();
    damped
        .iter_mut()
        .enumerate()
        .for_each(|(i, row)| row[i] *= 1.0 + damping);
    Cholesky::new(damped).solve(slopes)
}

/// Problem of a round, with fixed weights of the runs: `noise` is `quiet` divided by the weight.
struct Round<'a> {
    beliefs: &'a [Belief],
    quiet: &'a [f64],
    noise: &'a [f64],
    /// Factor of the covariance with the noise.
    factor: &'a Cholesky,
}

impl Round<'_> {
    /// Iterate with a lower value than `before`, else the current one.
    fn improve(&self, runs: &Runs, at: Iterate, before: f64, damping: &mut f64) -> Iterate {
        let (known, slopes) = self.slopes(&at, &columns(runs, &at));
        while *damping < DAMPING.most {
            let next = at.step_by(runs, &step(&known, *damping, &slopes));
            if self.improbability(&next) < before {
                *damping = (*damping / 5.0).max(DAMPING.least);
                return next;
            }
            *damping *= 4.0;
        }
        *damping = DAMPING.start;
        at
    }

    /// Part of each residual that is the run's own.
    fn own_parts(&self, at: &Iterate) -> Vec<f64> {
        let pull = self.factor.solve(&at.residuals);
        pull.iter()
            .zip(self.noise)
            .map(|(pull, noise)| pull * noise)
            .collect()
    }

    /// −ln of the probability of the constants and of the shared part, up to a constant.
    fn improbability(&self, at: &Iterate) -> f64 {
        let pull = self.factor.solve(&at.residuals);
        (0..pull.len())
            .map(|i| {
                let alone = self.noise[i] * pull[i];
                improbability(alone, self.quiet[i].sqrt())
                    + (at.residuals[i] - alone) * pull[i] / 2.0
            })
            .sum::<f64>()
            + at.logs
                .iter()
                .zip(self.beliefs)
                .map(|(x, b)| ((x - b.log) / b.spread).powi(2) / 2.0)
                .sum::<f64>()
    }

    /// Second derivatives (lower triangle, with linearised residuals), and the direction of descent.
    fn slopes(&self, at: &Iterate, columns: &[Vec<f64>]) -> (Vec<Vec<f64>>, Vec<f64>) {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let halves: Vec<Vec<f64>> = columns
            .iter()
            .map(|column| self.factor.solve_lower(column))
            .collect();
        let rest = self.factor.solve_lower(&at.residuals);
        let row = |(i, belief): (usize, &Belief)| -> Vec<f64> {
            let mut row: Vec<f64> = halves[..=i].iter().map(|j| dot(&halves[i], j)).collect();
            row[i] += belief.spread.powi(-2);
            row
        };
        let beliefs = || self.beliefs.iter().enumerate();
        (
            beliefs().map(row).collect(),
            beliefs()
                .map(|(i, Belief { log, spread })| {
                    -dot(&halves[i], &rest) - (at.logs[i] - log) / spread.powi(2)
                })
                .collect(),
        )
    }
}
