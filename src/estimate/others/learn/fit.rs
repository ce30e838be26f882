//! Constants from measurements: the most probable under what was known before, robust against
//! measurements that went wrong.

use super::linear::Cholesky;

/// How heavy the tails of the residuals are taken to be: Student's t with 4 degrees of freedom.
const FREEDOM: f64 = 4.0;

/// The logarithm of a constant before anything is measured.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    pub log: f64,
    pub spread: f64,
}

/// What groups of runs share beside the constants: each effect is added to the logarithm of the
/// predictions of its runs.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Of each effect, before anything is measured; its mean is zero.
    pub spreads: Vec<f64>,
    /// Of each run, the effects that it has.
    pub of: Vec<Vec<usize>>,
}

/// What is measured: ln(measured / predicted) of each run by the constants' values, and what each
/// run is expected to scatter by.
pub struct Runs<'a> {
    pub residuals: &'a dyn Fn(&[f64]) -> Vec<f64>,
    pub scales: &'a [f64],
    pub effects: &'a Effects,
}

/// Positive constants, and effects, that explain the runs best. One far off its scale hardly pulls.
/// Levenberg–Marquardt on re-weighted squares, from `start`.
pub fn fit(beliefs: &[Belief], start: &[f64], runs: &Runs) -> (Vec<f64>, Vec<f64>) {
    let effects = runs.effects.spreads.iter().map(|spread| Belief { log: 0.0, spread: *spread });
    let problem = Problem {
        constants: beliefs.len(),
        beliefs: beliefs.iter().copied().chain(effects).collect(),
        runs,
    };
    let effects = vec![0.0; runs.effects.spreads.len()];
    let mut at: Vec<f64> = start.iter().map(|value| value.ln()).chain(effects).collect();
    let mut r = problem.residuals(&at);
    let mut cost = problem.improbability(&at, &r);
    let mut damping = 1e-3;
    for _ in 0..30 {
        let (hessian, gradient) = problem.slopes(&at, &r);
        let before = cost;
        while damping < 1e6 {
            let mut damped = hessian.clone();
            damped.iter_mut().enumerate().for_each(|(i, row)| row[i] *= 1.0 + damping);
            let change = Cholesky::new(damped).solve(&gradient);
            let next: Vec<f64> = at.iter().zip(&change).map(|(x, d)| x - d).collect();
            let then = problem.residuals(&next);
            let price = problem.improbability(&next, &then);
            if price < cost {
                (at, r, cost) = (next, then, price);
                damping = (damping / 5.0).max(1e-9);
                break;
            }
            damping *= 4.0;
        }
        if before - cost < 1e-3 {
            break;
        }
    }
    let effects = at.split_off(beliefs.len());
    (at.iter().map(|log| log.exp()).collect(), effects)
}

/// How much a residual counts beside one that is as expected.
pub fn weight(residual: f64, scale: f64) -> f64 {
    (FREEDOM + 1.0) / (FREEDOM + (residual / scale).powi(2))
}

/// Unknowns are the logarithms of the constants, then the effects.
struct Problem<'a> {
    constants: usize,
    beliefs: Vec<Belief>,
    runs: &'a Runs<'a>,
}

impl Problem<'_> {
    fn residuals(&self, at: &[f64]) -> Vec<f64> {
        let (logs, effects) = at.split_at(self.constants);
        let mut r = (self.runs.residuals)(&logs.iter().map(|log| log.exp()).collect::<Vec<f64>>());
        for (r, of) in r.iter_mut().zip(&self.runs.effects.of) {
            *r -= of.iter().map(|effect| effects[*effect]).sum::<f64>();
        }
        r
    }

    /// Up to a constant, −ln of the probability.
    fn improbability(&self, at: &[f64], r: &[f64]) -> f64 {
        let tail = |(r, scale): (&f64, &f64)| {
            (FREEDOM + 1.0) / 2.0 * (1.0 + (r / scale).powi(2) / FREEDOM).ln()
        };
        let prior = |(x, b): (&f64, &Belief)| ((x - b.log) / b.spread).powi(2) / 2.0;
        r.iter().zip(self.runs.scales).map(tail).sum::<f64>()
            + at.iter().zip(&self.beliefs).map(prior).sum::<f64>()
    }

    /// Of each unknown, what it does to the residuals.
    fn columns(&self, at: &[f64], r: &[f64]) -> Vec<Vec<f64>> {
        let step = 1e-4;
        let constant = |j: usize| {
            let mut moved = at.to_vec();
            moved[j] += step;
            let then = self.residuals(&moved);
            then.iter().zip(r).map(|(a, b)| (a - b) / step).collect::<Vec<f64>>()
        };
        let effect = |j: usize| {
            let has = |of: &Vec<usize>| if of.contains(&j) { -1.0 } else { 0.0 };
            self.runs.effects.of.iter().map(has).collect::<Vec<f64>>()
        };
        let effects = (0..self.runs.effects.spreads.len()).map(effect);
        (0..self.constants).map(constant).chain(effects).collect()
    }

    /// Second (by Gauss and Newton) and first derivatives.
    fn slopes(&self, at: &[f64], r: &[f64]) -> (Vec<Vec<f64>>, Vec<f64>) {
        let columns = self.columns(at, r);
        let n = columns.len();
        let weigh = |(r, scale): (&f64, &f64)| weight(*r, *scale) / scale.powi(2);
        let weights: Vec<f64> = r.iter().zip(self.runs.scales).map(weigh).collect();
        let heavy = |column: &Vec<f64>| -> Vec<f64> {
            column.iter().zip(&weights).map(|(x, w)| x * w).collect()
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut hessian = vec![vec![0.0; n]; n];
        let mut gradient = vec![0.0; n];
        for (i, column) in columns.iter().enumerate() {
            let heavy = heavy(column);
            for j in 0..=i {
                hessian[i][j] = dot(&heavy, &columns[j]);
                hessian[j][i] = hessian[i][j];
            }
            let Belief { log, spread } = self.beliefs[i];
            hessian[i][i] += spread.powi(-2);
            gradient[i] = dot(&heavy, r) + (at[i] - log) / spread.powi(2);
        }
        (hessian, gradient)
    }
}

#[test]
fn one_run_that_went_wrong_hardly_pulls() {
    let seconds = [2.02, 3.98, 6.1, 7.9, 10.0, 24.0];
    let residuals = |k: &[f64]| {
        let ratio = |(i, s): (usize, &f64)| (s / (k[0] * (i + 1) as f64)).ln();
        seconds.iter().enumerate().map(ratio).collect()
    };
    let belief = Belief { log: 3f64.ln(), spread: 1.0 };
    let none = Effects { spreads: Vec::new(), of: vec![Vec::new(); 6] };
    let runs = Runs { residuals: &residuals, scales: &[0.02; 6], effects: &none };
    let (found, _) = fit(&[belief], &[3.0], &runs);
    assert!((found[0] - 2.0).abs() < 0.02, "{found:?}");
}

/// One kind of runs takes twice the others' time: that is its effect, and no constant's.
#[test]
fn what_a_kind_of_runs_shares_is_its_effect() {
    let seconds = [1.0, 2.0, 3.0, 8.0, 10.0, 12.0];
    let residuals = |k: &[f64]| {
        let ratio = |(i, s): (usize, &f64)| (s / (k[0] * (i + 1) as f64)).ln();
        seconds.iter().enumerate().map(ratio).collect()
    };
    let belief = Belief { log: 0.0, spread: 1.0 };
    let kinds = [vec![], vec![], vec![], vec![0], vec![0], vec![0]];
    let effects = Effects { spreads: vec![1.0], of: kinds.to_vec() };
    let runs = Runs { residuals: &residuals, scales: &[0.02; 6], effects: &effects };
    let (found, shared) = fit(&[belief], &[1.0], &runs);
    assert!((found[0] - 1.0).abs() < 0.01 && (shared[0] - 2f64.ln()).abs() < 0.01, "{shared:?}");
}
