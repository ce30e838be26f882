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

/// Positive constants that explain the residuals best. `residuals` gives ln(measured / predicted) of
/// each run, `scales` what each is expected to scatter by. One far off its scale hardly pulls.
/// Levenberg–Marquardt on re-weighted squares.
pub fn fit(beliefs: &[Belief], scales: &[f64], residuals: &dyn Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    let mut logs: Vec<f64> = beliefs.iter().map(|belief| belief.log).collect();
    let at = |logs: &[f64]| residuals(&logs.iter().map(|log| log.exp()).collect::<Vec<f64>>());
    let mut r = at(&logs);
    let mut cost = improbability(beliefs, &logs, scales, &r);
    let mut damping = 1e-3;
    for _ in 0..30 {
        let (hessian, gradient) = slopes(beliefs, &logs, scales, &r, &at);
        let before = cost;
        while damping < 1e6 {
            let mut damped = hessian.clone();
            damped.iter_mut().enumerate().for_each(|(i, row)| row[i] *= 1.0 + damping);
            let change = Cholesky::new(damped).solve(&gradient);
            let next: Vec<f64> = logs.iter().zip(&change).map(|(x, d)| x - d).collect();
            let then = at(&next);
            let price = improbability(beliefs, &next, scales, &then);
            if price < cost {
                (logs, r, cost) = (next, then, price);
                damping = (damping / 5.0).max(1e-9);
                break;
            }
            damping *= 4.0;
        }
        if before - cost < 1e-4 {
            break;
        }
    }
    logs.iter().map(|log| log.exp()).collect()
}

/// Up to a constant, −ln of the probability.
fn improbability(beliefs: &[Belief], logs: &[f64], scales: &[f64], r: &[f64]) -> f64 {
    let tail = |(r, scale): (&f64, &f64)| {
        (FREEDOM + 1.0) / 2.0 * (1.0 + (r / scale).powi(2) / FREEDOM).ln()
    };
    let prior = |(log, b): (&f64, &Belief)| ((log - b.log) / b.spread).powi(2) / 2.0;
    r.iter().zip(scales).map(tail).sum::<f64>() + logs.iter().zip(beliefs).map(prior).sum::<f64>()
}

/// How much a residual counts beside one that is as expected.
pub fn weight(residual: f64, scale: f64) -> f64 {
    (FREEDOM + 1.0) / (FREEDOM + (residual / scale).powi(2))
}

/// Second (by Gauss and Newton) and first derivatives.
fn slopes(
    beliefs: &[Belief],
    logs: &[f64],
    scales: &[f64],
    r: &[f64],
    at: &dyn Fn(&[f64]) -> Vec<f64>,
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let n = logs.len();
    let step = 1e-4;
    let column = |j: usize| {
        let mut moved = logs.to_vec();
        moved[j] += step;
        at(&moved).iter().zip(r).map(|(a, b)| (a - b) / step).collect::<Vec<f64>>()
    };
    let columns: Vec<Vec<f64>> = (0..n).map(column).collect();
    let weights: Vec<f64> =
        r.iter().zip(scales).map(|(r, scale)| weight(*r, *scale) / scale.powi(2)).collect();
    let dot = |a: &[f64], b: &[f64]| {
        weights.iter().zip(a.iter().zip(b)).map(|(w, (a, b))| w * a * b).sum::<f64>()
    };
    let mut hessian = vec![vec![0.0; n]; n];
    let mut gradient = vec![0.0; n];
    for i in 0..n {
        for j in 0..=i {
            hessian[i][j] = dot(&columns[i], &columns[j]);
            hessian[j][i] = hessian[i][j];
        }
        let Belief { log, spread } = beliefs[i];
        hessian[i][i] += spread.powi(-2);
        gradient[i] = dot(&columns[i], r) + (logs[i] - log) / spread.powi(2);
    }
    (hessian, gradient)
}

#[test]
fn one_run_that_went_wrong_hardly_pulls() {
    let seconds = [2.02, 3.98, 6.1, 7.9, 10.0, 24.0];
    let residuals = |k: &[f64]| {
        let ratio = |(i, s): (usize, &f64)| (s / (k[0] * (i + 1) as f64)).ln();
        seconds.iter().enumerate().map(ratio).collect()
    };
    let belief = Belief { log: 3f64.ln(), spread: 1.0 };
    let found = fit(&[belief], &[0.02; 6], &residuals);
    assert!((found[0] - 2.0).abs() < 0.02, "{found:?}");
}
