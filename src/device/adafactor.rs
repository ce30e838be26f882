//! Arguments of Adafactor's ops: constants of the rule, the part of a matrix that a rank updates,
//! and the second moment by rows and columns.

use super::Tensor;
use base::{DType, Fused, decay_factor};
use std::ops::Range;

/// Adafactor update without momentum (Shazeer & Stern 2018, algorithms 4 and 5), in PyTorch's
/// order. With g the gradient times its factor and ρ the learning rate, U = g / √max(V̂, eps²), θ ←
/// θ·(1 − lr·weight_decay) − ρ·scale·U / max(1, RMS(U)/clip_threshold). scale is 1, or
/// max(scale_eps, RMS(θ)) of θ before the decay. Every fused matrix is updated separately.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    pub lr: f32,
    /// Whether ρ is min(lr, 1/√t) at update t, instead of lr.
    pub relative_step: bool,
    /// Second moments decay by 1 − t^beta2_decay.
    pub beta2_decay: f32,
    pub eps: f32,
    pub scale_eps: f32,
    pub clip_threshold: f32,
    pub weight_decay: f32,
    /// Factor of ρ; weight decay is not scaled.
    pub lr_scale: f32,
}

impl Adafactor {
    /// Factor that weight decay applies to a weight, 1 − lr·weight_decay.
    pub fn keep(&self) -> f32 {
        decay_factor(self.lr, self.weight_decay)
    }
}

/// Second moment V̂ of Adafactor; all tensors are f32.
#[derive(Clone, Copy, Debug)]
pub enum SecondMoment {
    /// Vector: V̂ itself, [1, cols].
    Full(Tensor),
    /// Matrix: V̂[r, c] = row[r]·col[p, c] / max(mean[p], eps), where row r belongs to fused matrix
    /// p. row [rows, 1], col [fused, cols] and mean [1, fused] are means of g² over columns, over
    /// the rows of p, and over all of p.
    Factored { row: Tensor, col: Tensor, mean: Tensor },
}

impl SecondMoment {
    /// Means by row, of a matrix.
    pub fn row(self) -> Option<Tensor> {
        match self {
            SecondMoment::Full(_) => None,
            SecondMoment::Factored { row, .. } => Some(row),
        }
    }

    /// Means by column; of a vector, V̂ itself.
    pub fn col(self) -> Tensor {
        match self {
            SecondMoment::Full(v) => v,
            SecondMoment::Factored { col, .. } => col,
        }
    }

    /// Mean of each fused matrix.
    pub fn mean(self) -> Option<Tensor> {
        match self {
            SecondMoment::Full(_) => None,
            SecondMoment::Factored { mean, .. } => Some(mean),
        }
    }

    pub fn tensors(self) -> impl Iterator<Item = Tensor> {
        [self.row(), Some(self.col()), self.mean()]
            .into_iter()
            .flatten()
    }

    /// Panics if the means do not fit a part.
    pub fn check(self, part: &MatrixPart) {
        let width = part.col_rows() * part.cols;
        assert!(self.tensors().all(|x| x.dtype == DType::F32), "means are f32");
        assert_eq!(self.col().numel(), width, "means by column");
        match [self.row(), self.mean()].map(|x| x.map(Tensor::numel)) {
            [None, None] => assert!(part.is_vector(), "a vector's second moment"),
            sizes => assert_eq!(sizes, [part.rows, part.fused.count()].map(Some), "means"),
        }
    }
}

/// Consecutive elements, row by row, of a rank's share of a matrix. A vector is a matrix of one
/// row.
#[derive(Clone, Copy, Debug)]
pub struct MatrixPart {
    /// Rows and columns of the whole matrix, of which this rank may have a share.
    pub whole: [usize; 2],
    /// Shape of this rank's share.
    pub rows: usize,
    pub cols: usize,
    /// The elements: `len` elements of the share, starting at `first`.
    pub first: usize,
    pub len: usize,
    /// Matrices that are fused by rows (in a vector: by columns). A share holds whole periods.
    pub fused: Fused,
}

impl MatrixPart {
    pub fn is_vector(&self) -> bool {
        self.whole[0] == 1
    }

    /// Rows with at least one element in the part.
    pub fn touched(&self) -> Range<usize> {
        match self.len {
            0 => 0..0,
            len => self.first / self.cols..(self.first + len).div_ceil(self.cols),
        }
    }

    /// Columns of a row in the part.
    pub fn cols_of(&self, row: usize) -> Range<usize> {
        let start = row * self.cols;
        let inside = |at: usize| at.clamp(start, start + self.cols) - start;
        inside(self.first)..inside(self.first + self.len)
    }

    /// Columns of a row in the part, as runs within one fused matrix, each with the index of that
    /// matrix.
    pub fn runs(&self, row: usize) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let cols = self.cols_of(row);
        let fused = self.fused;
        let vector = self.is_vector();
        let mut at = cols.start;
        std::iter::from_fn(move || {
            let start = at;
            let (number, end) = if vector {
                (fused.matrix_of(start), fused.next(start).min(cols.end))
            } else {
                (fused.matrix_of(row), cols.end)
            };
            at = end;
            (start < cols.end).then_some((number, start..end))
        })
    }

    /// Rows of the column sums: one per fused matrix, or one for a vector.
    pub fn col_rows(&self) -> usize {
        if self.is_vector() { 1 } else { self.fused.count() }
    }

    /// Row of the column sums that a row of the matrix contributes to.
    pub fn col_row(&self, row: usize) -> usize {
        if self.is_vector() { 0 } else { self.fused.matrix_of(row) }
    }

    /// Elements of each whole fused matrix, padded with 0.
    pub fn numels(&self) -> [usize; Fused::MOST] {
        let [rows, cols] = self.whole;
        let (along, across) = if self.is_vector() { (cols, rows) } else { (rows, cols) };
        std::array::from_fn(|number| self.fused.rows(number, along) * across)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_begins_and_ends_inside_of_rows() {
        let fused = Fused::new([1, 1, 1]);
        let part = MatrixPart { whole: [12, 5], rows: 6, cols: 5, first: 7, len: 10, fused };
        assert_eq!(part.touched(), 1..4);
        assert_eq!([0, 1, 2, 3, 4].map(|row| part.cols_of(row).len()), [0, 3, 5, 2, 0]);
        assert_eq!(part.runs(2).collect::<Vec<_>>(), [(2, 0..5)]);
        assert_eq!((part.col_rows(), part.col_row(4), part.numels()), (3, 1, [20, 20, 20]));
        assert_eq!(MatrixPart { len: 0, ..part }.touched(), 0..0);
        let whole = [1, 12];
        let fused = Fused::new([2, 2, 2]);
        let vector = MatrixPart { whole, rows: 1, cols: 12, first: 4, len: 4, fused };
        assert_eq!(vector.runs(0).collect::<Vec<_>>(), [(2, 4..6), (0, 6..8)]);
        assert_eq!((vector.col_rows(), vector.numels()), (1, [4, 4, 4]));
    }
}
