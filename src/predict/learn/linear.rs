//! Solves systems of linear equations with a symmetric, positive definite matrix.

/// Cholesky factor L of A = L·Lᵀ.
#[derive(Clone)]
pub struct Cholesky {
    rows: Vec<Vec<f64>>,
}

/// Number of partial sums, in a fixed order, which the compiler can vectorise.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let a = a.chunks_exact(LANES);
    let b = b.chunks_exact(LANES);
    let rest: f64 = a
        .remainder()
        .iter()
        .zip(b.remainder())
        .map(|(a, b)| a * b)
        .sum();
    let mut sums = [0.0; LANES];
    for (a, b) in a.zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// Rows that are computed together: the factor is read from memory once for all of them.
const GROUP: usize = 8;

/// Element `j` of a row of the factor, of which the elements before are known.
fn eliminate(row: &mut [f64], j: usize, other: &[f64]) {
    row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
}

impl Cholesky {
    pub fn new(mut a: Vec<Vec<f64>>) -> Cholesky {
        for start in (0..a.len()).step_by(GROUP) {
            let (done, rest) = a.split_at_mut(start);
            let last = GROUP.min(rest.len());
            let group = &mut rest[..last];
            for (j, other) in done.iter().enumerate() {
                for row in group.iter_mut() {
                    eliminate(row, j, other);
                }
            }
            for i in 0..group.len() {
                let (above, below) = group.split_at_mut(i);
                let row = &mut below[0];
                for (j, other) in above.iter().enumerate() {
                    eliminate(row, start + j, other);
                }
                let i = start + i;
                row[i] = (row[i] - dot(&row[..i], &row[..i])).max(1e-300).sqrt();
            }
        }
        Cholesky { rows: a }
    }

    /// x with L·x = b.
    pub fn solve_lower(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for i in 0..x.len() {
            x[i] = (x[i] - dot(&self.rows[i][..i], &x[..i])) / self.rows[i][i];
        }
        x
    }

    /// x with A·x = b.
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = self.solve_lower(b);
        for i in (0..x.len()).rev() {
            x[i] /= self.rows[i][i];
            let at = x[i];
            x[..i]
                .iter_mut()
                .zip(&self.rows[i])
                .for_each(|(x, l)| *x -= l * at);
        }
        x
    }

    /// Diagonal of A⁻¹.
    pub fn inverse_diagonal(&self) -> Vec<f64> {
        let size = self.rows.len();
        let mut column = vec![0.0; size];
        (0..size)
            .map(|at| -> f64 {
                column[at] = 1.0 / self.rows[at][at];
                for i in at + 1..size {
                    column[i] = -dot(&self.rows[i][at..i], &column[at..i]) / self.rows[i][i];
                }
                column[at..].iter().map(|x| x * x).sum()
            })
            .collect()
    }
}

#[test]
fn solves() {
    let a = vec![vec![4.0, 2.0, 1.0], vec![2.0, 5.0, 3.0], vec![1.0, 3.0, 6.0]];
    let x = Cholesky::new(a).solve(&[11.0, 21.0, 25.0]);
    assert!(
        x.iter()
            .zip([1.0, 2.0, 3.0])
            .all(|(x, y)| (x - y).abs() < 1e-12),
        "{x:?}"
    );
    let size = 21;
    let near = |i: usize, j: usize| (-(i.abs_diff(j) as f64) / 3.0).exp();
    let a: Vec<Vec<f64>> = (0..size)
        .map(|i| (0..size).map(|j| near(i, j)).collect())
        .collect();
    let x = Cholesky::new(a.clone()).solve(&vec![1.0; size]);
    assert!(a.iter().all(|row| (dot(row, &x) - 1.0).abs() < 1e-9), "{x:?}");
    let factor = Cholesky::new(a);
    for (at, found) in factor.inverse_diagonal().into_iter().enumerate() {
        let mut unit = vec![0.0; size];
        unit[at] = 1.0;
        assert!((found - factor.solve(&unit)[at]).abs() < 1e-9, "{at}: {found}");
    }
}
