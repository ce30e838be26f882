//! What the ops of Adafactor are given: its numbers, the part of a matrix that a rank updates, and
//! the second moment of the matrix by rows and columns.

use super::{Out, Tensor};
use base::{Fused, decayed};
use std::ops::Range;

/// One Adafactor update without momentum (Shazeer & Stern 2018, algorithms 4 and 5), in the order
/// of PyTorch's: with g the gradient times its factor and ρ the learning rate,
/// U = g / √max(V̂, eps²), θ ← θ·(1 − lr·weight_decay) − ρ·scale·U / max(1, RMS(U)/clip_threshold),
/// where scale is 1, or max(scale_eps, RMS(θ)) of θ before the decay. Every fused matrix by itself.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    pub lr: f32,
    /// ρ is min(lr, 1/√t) at update t, in place of lr.
    pub relative_step: bool,
    /// Second moments decay by 1 − t^beta2_decay.
    pub beta2_decay: f32,
    pub eps: f32,
    pub scale_eps: f32,
    pub clip_threshold: f32,
    pub weight_decay: f32,
    /// ρ is multiplied by this, but not the decay.
    pub lr_scale: f32,
}

impl Adafactor {
    /// What the decay leaves of a weight, 1 − lr·weight_decay.
    pub fn keep(&self) -> f32 {
        decayed(self.lr, self.weight_decay)
    }
}

/// The second moment V̂ of Adafactor, all of it f32.
#[derive(Clone, Copy, Debug)]
pub enum SecondMoment {
    /// Of a vector: V̂ itself, [1, cols].
    Full(Tensor),
    /// Of a matrix, V̂[r, c] = row[r]·col[p, c] / max(mean[p], eps), where row r is of fused matrix
    /// p: means of g² over columns [rows, 1], over p's rows [fused, cols], and over all of p
    /// [1, fused].
    Factored { row: Tensor, col: Tensor, mean: Tensor },
}

/// Consecutive elements of a rank's share of a matrix, row by row. A vector is a matrix of one row.
#[derive(Clone, Copy, Debug)]
pub struct MatrixPart {
    /// Of the whole matrix, of which this rank may have a share: rows and columns.
    pub whole: [usize; 2],
    /// Of this rank's share.
    pub rows: usize,
    pub cols: usize,
    /// The elements: `len` of the share's, from `first` on.
    pub first: usize,
    pub len: usize,
    /// The matrices that lie in it by rows; in a vector, by columns. A share holds whole periods.
    pub fused: Fused,
}

impl MatrixPart {
    pub fn is_vector(&self) -> bool {
        self.whole[0] == 1
    }

    /// Rows that it has something of.
    pub fn touched(&self) -> Range<usize> {
        match self.len {
            0 => 0..0,
            len => self.first / self.cols..(self.first + len).div_ceil(self.cols),
        }
    }

    /// The columns that it has of a row.
    pub fn cols_of(&self, row: usize) -> Range<usize> {
        let start = row * self.cols;
        let inside = |at: usize| at.clamp(start, start + self.cols) - start;
        inside(self.first)..inside(self.first + self.len)
    }

    /// Those columns in runs of one fused matrix each, with its number.
    pub fn runs(&self, row: usize) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (cols, fused, vector) = (self.cols_of(row), self.fused, self.is_vector());
        let mut at = cols.start;
        std::iter::from_fn(move || {
            let start = at;
            let (number, end) = match vector {
                true => (fused.of(start), fused.next(start).min(cols.end)),
                false => (fused.of(row), cols.end),
            };
            at = end;
            (start < cols.end).then_some((number, start..end))
        })
    }

    /// Rows of the sums over rows: one for each fused matrix, or the vector's own.
    pub fn col_rows(&self) -> usize {
        if self.is_vector() { 1 } else { self.fused.count() }
    }

    /// The row of those sums that a row belongs to.
    pub fn col_row(&self, row: usize) -> usize {
        if self.is_vector() { 0 } else { self.fused.of(row) }
    }

    /// Elements of each fused matrix in the whole, then 0.
    pub fn numels(&self) -> [usize; Fused::MOST] {
        let [rows, cols] = self.whole;
        let (along, across) = if self.is_vector() { (cols, rows) } else { (rows, cols) };
        std::array::from_fn(|number| self.fused.rows(number, along) * across)
    }
}

/// The ops of Adafactor, of every backend.
pub trait AdafactorOps {
    /// rows[r] += Σ (factor·x)² over row r, and cols[p, c] += Σ (factor·x)² over the rows of fused
    /// matrix p (of a vector: its one row), as far as the part has them. x f32 [1, len], factor f32
    /// [1, 1], rows f32 [rows, 1], cols f32 [fused, cols]; always accumulates.
    fn factor_sums(
        &self,
        x: Tensor,
        factor: Tensor,
        part: &MatrixPart,
        rows: Option<Out>,
        cols: Out,
    );
    /// out[p] += Σ x² over fused matrix p, as far as the part has it. x f32 [1, len], out f32
    /// [1, fused]; always accumulates.
    fn fused_square_sums(&self, x: Tensor, part: &MatrixPart, out: Out);
    /// out f32 [1, 2] = 1 − β̂ = t^beta2_decay and ρ at update t = updates, i64 [1, 1].
    fn adafactor_scalars(&self, rule: &Adafactor, updates: Tensor, out: Out);
    /// Moves a second moment by 1 − β̂ towards the mean of g², given its sums over the whole matrix
    /// by row and by column (`factor_sums`; none by row of a vector), and takes `mean` anew: of
    /// `col` where the share has all columns, else of `row`. scalars f32 [1, 3] = the factor, and
    /// what `adafactor_scalars` gives; a factor of NaN moves nothing.
    fn move_second_moment(
        &self,
        scalars: Tensor,
        part: &MatrixPart,
        rows: Option<Tensor>,
        cols: Tensor,
        v: &SecondMoment,
    );
    /// out[p] += Σ U² over fused matrix p, as far as the part has it. out f32 [1, fused].
    fn adafactor_square_sums(
        &self,
        rule: &Adafactor,
        scalars: Tensor,
        grad: Tensor,
        part: &MatrixPart,
        v: &SecondMoment,
        out: Out,
    );
    /// Updates the part of the master weight, f32 [1, len], and rounds it into `weight` where that is
    /// another tensor; given Σ U² of each fused matrix, f32 [1, fused], and Σ θ² where steps are
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
