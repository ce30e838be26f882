//! Ops of low-rank gradients besides products: a guarded axpy, and orthonormal columns.

use super::Cpu;
use super::math::{self, vectorised};
use super::memory::{scalar, store};
use crate::{InPlace, op};

pub(super) fn axpy(cpu: &Cpu, &op::Axpy { a, factor, x, y }: &op::Axpy) {
    let by = a * scalar(factor, 0);
    if by.is_nan() {
        return;
    }
    if !y.add {
        return cpu.each_loaded([x], |at, [x]| {
            math::scale(by, x);
            store(x, y.to, at);
        });
    }
    cpu.each_loaded([x, y.to], |at, [from, onto]| {
        add_times(by, from, onto);
        store(onto, y.to, at);
    });
}

vectorised! {
    fn add_times(by: f32, x: &[f32], y: &mut [f32]) {
        x.iter().zip(y).for_each(|(x, y)| *y = by.mul_add(*x, *y));
    }
}

/// Orthogonalises matrices, one task per matrix.
pub(super) fn orthogonalize(cpu: &Cpu, op: &op::Orthogonalize) {
    let InPlace(xs) = op.xs;
    let apart = |i: usize| !xs[i + 1..].iter().any(|x| x.overlaps(xs[i]));
    assert!((0..xs.len()).all(apart), "the matrices overlap");
    cpu.each(xs.len(), |i| {
        // SAFETY: f32 (`host_mut` checks), mapped as `Tensor` promises; the matrices do not overlap (above), and
        // `each` runs one task for each.
        let x = unsafe { xs[i].host_mut::<f32>() };
        RowMajor { x, cols: xs[i].cols }.orthogonalize();
    });
}

/// Matrix in row-major order, whose columns are made orthonormal.
struct RowMajor<'a> {
    x: &'a mut [f32],
    cols: usize,
}

impl RowMajor<'_> {
    fn orthogonalize(&mut self) {
        for k in 0..self.cols {
            self.project(k);
            let mut norm = self.dot(k, k).sqrt();
            if norm == 0.0 {
                let rows = self.x.chunks_exact_mut(self.cols).enumerate();
                rows.for_each(|(i, row)| row[k] = if i == k { 1.0 } else { 0.0 });
                self.project(k);
                norm = self.dot(k, k).sqrt();
            }
            if norm != 0.0 {
                let by = (1.0 / norm) as f32;
                self.x
                    .chunks_exact_mut(self.cols)
                    .for_each(|row| row[k] *= by);
            }
        }
    }

    /// Projects the previous columns out of column k, twice. Once leaves rounding errors relative
    /// to the size of the original column ("twice is enough", Giraud, Langou & Rozložník 2005).
    fn project(&mut self, k: usize) {
        for j in (0..k).chain(0..k) {
            let by = -self.dot(j, k) as f32;
            self.x
                .chunks_exact_mut(self.cols)
                .for_each(|row| row[k] = by.mul_add(row[j], row[k]));
        }
    }

    fn dot(&self, j: usize, k: usize) -> f64 {
        let rows = self.x.chunks_exact(self.cols);
        rows.map(|row| f64::from(row[j]) * f64::from(row[k])).sum()
    }
}
