//! Arguments of Adafactor's ops: constants of the rule, the part of a matrix that a rank updates,
//! and the second moment by rows and columns.

use super::{Out, Tensor};
use base::{Fused, decayed};
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
        decayed(self.lr, self.weight_decay)
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
        let (cols, fused, vector) = (self.cols_of(row), self.fused, self.is_vector());
        let mut at = cols.start;
        std::iter::from_fn(move || {
            let start = at;
            let (number, end) = match vector {
                true => (fused.matrix_of(start), fused.next(start).min(cols.end)),
                false => (fused.matrix_of(row), cols.end),
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

/// Ops of Adafactor, for every backend.
pub trait AdafactorOps {
    /// rows[r] += Σ (factor·x)² over row r; cols[p, c] += Σ (factor·x)² over the rows of fused
    /// matrix p (of a vector: its one row). Sums cover the part only. x f32 [1, len], factor f32
    /// [1, 1], rows f32 [rows, 1], cols f32 [fused, cols]; always accumulates.
    fn factor_sums(
        &self,
        x: Tensor,
        factor: Tensor,
        part: &MatrixPart,
        rows: Option<Out>,
        cols: Out,
    );
    /// out[p] += Σ x² over the part's elements of fused matrix p. x f32 [1, len], out f32 [1,
    /// fused]; always accumulates.
    fn fused_square_sums(&self, x: Tensor, part: &MatrixPart, out: Out);
    /// out f32 [1, 2] = 1 − β̂ = t^beta2_decay and ρ at update t = updates, i64 [1, 1].
    fn adafactor_scalars(&self, rule: &Adafactor, updates: Tensor, out: Out);
    /// Moves a second moment by 1 − β̂ towards the mean of g². `rows` and `cols` are sums over the
    /// whole matrix (`factor_sums`); a vector has no row sums. Recomputes `mean`: from `col` if the
    /// share has all columns, else from `row`. scalars f32 [1, 3] = the factor, and the outputs of
    /// `adafactor_scalars`; a factor of NaN changes nothing.
    fn move_second_moment(
        &self,
        scalars: Tensor,
        part: &MatrixPart,
        rows: Option<Tensor>,
        cols: Tensor,
        v: &SecondMoment,
    );
    /// out[p] += Σ U² over the part's elements of fused matrix p. out f32 [1, fused].
    fn adafactor_square_sums(
        &self,
        rule: &Adafactor,
        scalars: Tensor,
        grad: Tensor,
        part: &MatrixPart,
        v: &SecondMoment,
        out: Out,
    );
    /// Updates the part of the master weight, f32 [1, len], and rounds it into `weight` if that is
    /// another tensor. Needs Σ U² of each fused matrix, f32 [1, fused], and Σ θ² if steps are
    /// scaled by it. A factor of NaN skips the update.
    #[allow(clippy::too_many_arguments)]
    fn adafactor(
        &self,
        rule: &Adafactor,
        scalars: Tensor,
        grad: Tensor,
        part: &MatrixPart,
        v: &SecondMoment,
        squares: (Tensor, Option<Tensor>),
        master: Tensor,
        weight: Tensor,
    );
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
        let (whole, fused) = ([1, 12], Fused::new([2, 2, 2]));
        let vector = MatrixPart { whole, rows: 1, cols: 12, first: 4, len: 4, fused };
        assert_eq!(vector.runs(0).collect::<Vec<_>>(), [(2, 4..6), (0, 6..8)]);
        assert_eq!((vector.col_rows(), vector.numels()), (1, [4, 4, 4]));
    }
}
