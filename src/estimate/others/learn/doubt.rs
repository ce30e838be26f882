//! What the covariance does not know of a run, which its bar has beside: how strange its program is
//! here, and how far off the measured runs of it were from what all others made expect.
//!
//! A program of which no run was measured may be off by far more than known ones differ: an unknown
//! cause holds for all its rows at once. The more runs of it are known, the less can hide, and
//! they tell by themselves what their likes do not (each left out; Vehtari, Gelman and Gabry 2017).

use super::kernel::{Acquainted, FREEDOM, Novelty, Point};
use super::linear::Cholesky;

/// The measured runs that tell how strange a run is.
pub struct Seen {
    /// One's own of its program, where there are any; else all of its cluster. By place among all.
    pub runs: Vec<usize>,
    /// Whether they are one's own.
    pub own: bool,
    /// How many there are of its program on its machine, whoever measured them, or of one's own.
    pub cluster: usize,
    /// On which its program was measured.
    pub machines: usize,
    /// How many runs tell how it fills a pipeline: one's own, else those of its program that have one.
    pub pipelines: usize,
}

impl Seen {
    pub fn of(point: &Point, points: &[Point]) -> Seen {
        let of_program: Vec<usize> =
            (0..points.len()).filter(|i| points[*i].program == point.program).collect();
        let only = |pick: &dyn Fn(&Point) -> bool| -> Vec<usize> {
            of_program.iter().copied().filter(|i| pick(&points[*i])).collect()
        };
        let own = only(&|other| point.own && other.own);
        let pipelined = only(&|other| other.novelty.pipeline > 0.0);
        let cluster = only(&|other| other.machine == point.machine);
        let is_own = !own.is_empty();
        let (cluster, pipelines, runs) = (
            cluster.len().max(own.len()),
            pipelined.len().max(own.len()),
            if own.is_empty() { cluster } else { own },
        );
        let mut machines: Vec<&str> = of_program.iter().map(|i| points[*i].machine).collect();
        machines.sort_unstable();
        machines.dedup();
        Seen { runs, own: is_own, cluster, machines: machines.len(), pipelines }
    }

    /// A variance.
    pub fn unknown(&self, after: &Acquainted, novelty: Novelty, surprises: &[f64]) -> f64 {
        let hidden = |half: f64, count: usize| half / (half + count as f64);
        let elsewhere = hidden(after.machines, self.machines);
        let program = if self.own { novelty.site } else { novelty.program };
        let program = program * elsewhere.min(hidden(after.runs, self.cluster));
        let pipeline = hidden(after.runs, self.pipelines);
        let surprise: f64 = self.runs.iter().map(|i| surprises[*i]).sum();
        program.powi(2)
            + (novelty.pipeline * pipeline).powi(2)
            + surprise / self.runs.len().max(1) as f64
    }
}

/// Of each run, by how much the square of its residual exceeds the variance that all others leave it
/// (Rasmussen and Williams 2006, equation 5.12). `factor` is of the covariance with `noise`, `pull` its
/// solution; a run's noise is `quiet` but for its weight.
pub fn surprises(factor: &Cholesky, pull: &[f64], noise: &[f64], quiet: &[f64]) -> Vec<f64> {
    let precision = factor.inverse_diagonal();
    let surprise = |i: usize| {
        let left = pull[i] / precision[i];
        let expected = 1.0 / precision[i] - noise[i] + quiet[i];
        (left * left - expected).max(0.0)
    };
    (0..pull.len()).map(surprise).collect()
}

/// Half the width of an interval that holds nine in ten, in standard deviations: of Student's t, the
/// heavier the fewer runs of its cluster were seen, and the fewer `programs`, whose differences tell how
/// far off an unknown one may be (its quantile by powers of 1/ν; Abramowitz and Stegun, 26.7.5).
pub fn nine_in_ten(runs: usize, programs: usize) -> f64 {
    let (z, freedom) = (1.644_854_f64, FREEDOM.max(programs as f64) + runs as f64);
    let powers = |terms: &[(i32, f64)]| terms.iter().map(|(n, by)| by * z.powi(*n)).sum::<f64>();
    z + powers(&[(3, 1.0), (1, 1.0)]) / (4.0 * freedom)
        + powers(&[(5, 5.0), (3, 16.0), (1, 3.0)]) / (96.0 * freedom.powi(2))
        + powers(&[(7, 3.0), (5, 19.0), (3, 17.0), (1, -15.0)]) / (384.0 * freedom.powi(3))
}

#[test]
fn few_runs_have_heavy_tails() {
    for (runs, quantile) in [(0, 2.132), (6, 1.812), (26, 1.697), (100_000, 1.645)] {
        let found = nine_in_ten(runs, 1);
        assert!((found - quantile).abs() < 3e-3, "{runs} runs: {found}");
    }
    assert!((nine_in_ten(0, 15) - nine_in_ten(11, 0)).abs() < 1e-12, "15 known programs");
}
