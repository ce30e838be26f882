//! Uncertainty that the covariance does not model: a term for unfamiliar programs and one for surprising
//! runs.
//!
//! A program without measured runs may deviate far more than known ones do: an unknown cause affects all
//! its rows at once. With more measured runs the first term shrinks, and their leave-one-out residuals
//! are used (Vehtari, Gelman and Gabry 2017).

use super::kernel::{FREEDOM, Features, HalvingCounts, UnseenDeviation};
use super::linear::Cholesky;
use std::collections::BTreeSet;

/// Measured runs that determine how unfamiliar a run is.
pub struct RelatedRuns {
    /// Indices of the user's own runs of its program, if any; else of all runs of its cluster.
    pub runs: Vec<usize>,
    /// Whether the runs are the user's own.
    pub own: bool,
    /// Runs of its program on its machine and site, or the user's own.
    pub cluster: usize,
    /// Machines with sites on which its program was measured.
    pub machines: usize,
    /// Number of sites that measured its program, if none is this one.
    pub other_sites: Option<usize>,
    /// The only one of them.
    pub only_site: Option<&'static str>,
    /// Number of runs with a pipeline: the user's own, else those of its program.
    pub pipelines: usize,
}

impl RelatedRuns {
    pub fn new(point: &Features, points: &[Features]) -> RelatedRuns {
        let of_program: Vec<usize> = (0..points.len())
            .filter(|i| points[*i].program == point.program)
            .collect();
        let only = |pick: &dyn Fn(&Features) -> bool| -> Vec<usize> {
            of_program
                .iter()
                .copied()
                .filter(|i| pick(&points[*i]))
                .collect()
        };
        let own = only(&|other| point.own && other.own);
        let pipelined = only(&|other| other.unseen.pipeline > 0.0);
        let is_here = |other: &Features| other.machine == point.machine && other.site == point.site;
        let cluster = only(&is_here);
        let machines: BTreeSet<_> = of_program
            .iter()
            .map(|i| (points[*i].machine, points[*i].site))
            .collect();
        let sites: BTreeSet<&'static str> = machines.iter().map(|(_, site)| *site).collect();
        let is_away = cluster.is_empty() && own.is_empty() && !sites.is_empty();
        RelatedRuns {
            own: !own.is_empty(),
            other_sites: is_away.then_some(sites.len()),
            only_site: sites
                .first()
                .copied()
                .filter(|_| is_away && sites.len() == 1),
            cluster: cluster.len().max(own.len()),
            machines: machines.len(),
            pipelines: pipelined.len().max(own.len()),
            runs: if own.is_empty() { cluster } else { own },
        }
    }

    /// Variance of both terms.
    pub fn variance(
        &self,
        after: &HalvingCounts,
        unseen: UnseenDeviation,
        excesses: &[f64],
    ) -> f64 {
        let hidden = |half: f64, count: usize| half / (half + count as f64);
        let by_machines = hidden(after.machines, self.machines);
        let program = if self.own { unseen.site } else { unseen.program };
        let program = program * by_machines.min(hidden(after.runs, self.cluster));
        let pipeline = hidden(after.runs, self.pipelines);
        let excess: f64 = self.runs.iter().map(|i| excesses[*i]).sum();
        let elsewhere = self
            .other_sites
            .map_or(0.0, |sites| unseen.elsewhere / sites as f64);
        program.powi(2)
            + elsewhere.powi(2)
            + (unseen.pipeline * pipeline).powi(2)
            + excess / self.runs.len().max(1) as f64
    }
}

/// Excess of each run's squared residual over the variance predicted from all others (Rasmussen and
/// Williams 2006, equation 5.12). `factor` is that of the covariance with `noise`, `pull` its solution;
/// `quiet` is a run's noise without its weight.
pub fn excess_squares(factor: &Cholesky, pull: &[f64], noise: &[f64], quiet: &[f64]) -> Vec<f64> {
    let precision = factor.inverse_diagonal();
    (0..pull.len())
        .map(|i| {
            let left = pull[i] / precision[i];
            let expected = 1.0 / precision[i] - noise[i] + quiet[i];
            (left * left - expected).max(0.0)
        })
        .collect()
}

/// Half the width of an interval that contains nine in ten, in standard deviations: a quantile of
/// Student's t, wider for fewer runs of its cluster and for fewer `programs`, whose differences are the
/// prior of an unknown one (by powers of 1/ν; Abramowitz and Stegun, 26.7.5).
pub fn nine_in_ten_quantile(runs: usize, programs: usize) -> f64 {
    let z = 1.644_854_f64;
    let freedom = FREEDOM.max(programs as f64) + runs as f64;
    let powers = |terms: &[(i32, f64)]| terms.iter().map(|(n, by)| by * z.powi(*n)).sum::<f64>();
    z + powers(&[(3, 1.0), (1, 1.0)]) / (4.0 * freedom)
        + powers(&[(5, 5.0), (3, 16.0), (1, 3.0)]) / (96.0 * freedom.powi(2))
        + powers(&[(7, 3.0), (5, 19.0), (3, 17.0), (1, -15.0)]) / (384.0 * freedom.powi(3))
}

#[test]
fn few_runs_have_heavy_tails() {
    for (runs, quantile) in [(0, 2.132), (6, 1.812), (26, 1.697), (100_000, 1.645)] {
        let found = nine_in_ten_quantile(runs, 1);
        assert!((found - quantile).abs() < 3e-3, "{runs} runs: {found}");
    }
    assert!(
        (nine_in_ten_quantile(0, 15) - nine_in_ten_quantile(11, 0)).abs() < 1e-12,
        "15 known programs"
    );
}
