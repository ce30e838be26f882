//! Systems of linear equations with a symmetric, positive definite matrix.

/// A = L·Lᵀ.
#[derive(Clone)]
pub struct Cholesky {
    rows: Vec<Vec<f64>>,
}

impl Cholesky {
    pub fn new(mut a: Vec<Vec<f64>>) -> Cholesky {
        for i in 0..a.len() {
            for j in 0..=i {
                let dot: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
                let rest = a[i][j] - dot;
                a[i][j] = if i == j { rest.max(1e-300).sqrt() } else { rest / a[j][j] };
            }
        }
        Cholesky { rows: a }
    }

    /// x with L·x = b.
    pub fn half(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for i in 0..x.len() {
            let dot: f64 = (0..i).map(|k| self.rows[i][k] * x[k]).sum();
            x[i] = (x[i] - dot) / self.rows[i][i];
        }
        x
    }

    /// x with A·x = b.
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = self.half(b);
        for i in (0..x.len()).rev() {
            let dot: f64 = (i + 1..x.len()).map(|k| self.rows[k][i] * x[k]).sum();
            x[i] = (x[i] - dot) / self.rows[i][i];
        }
        x
    }
}

#[test]
fn solves() {
    let a = vec![vec![4.0, 2.0, 1.0], vec![2.0, 5.0, 3.0], vec![1.0, 3.0, 6.0]];
    let x = Cholesky::new(a).solve(&[11.0, 21.0, 25.0]);
    assert!(x.iter().zip([1.0, 2.0, 3.0]).all(|(x, y)| (x - y).abs() < 1e-12), "{x:?}");
}
