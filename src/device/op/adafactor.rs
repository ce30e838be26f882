//! Ops of Adafactor.

use super::{Accesses, Spec, reads, rounded};
use crate::{MatrixPart, Out, SecondMoment, Tensor, Work};
use base::DType;

/// rows[r] += Σ (factor·x)² over row r; cols[p, c] += Σ (factor·x)² over the rows of fused matrix p
/// (of a vector: its one row). Sums cover the part only. x f32 [1, len], factor f32 [1, 1], rows
/// f32 [rows, 1], cols f32 [fused, cols]; always accumulates.
#[derive(Clone, Copy, Debug)]
pub struct FactorSums {
    pub x: Tensor,
    pub factor: Tensor,
    pub part: MatrixPart,
    pub rows: Option<Out>,
    pub cols: Out,
}

impl Spec for FactorSums {
    const NAME: &'static str = "factor sums";
    fn check(&self) {
        let FactorSums { x, part, rows, cols, .. } = *self;
        let sums = (x.numel(), cols.to.numel(), cols.add);
        assert_eq!(sums, (part.len, part.col_rows() * part.cols, true), "sums by column");
        assert!(rows.is_none_or(|rows| rows.add && rows.to.numel() == part.rows), "sums by row");
    }
    fn cost(&self) -> Work {
        let rows = self.rows.map(|rows| rows.to);
        Work::op(4 * self.x.numel())
            .moving([self.x, self.cols.to])
            .moving(rows)
    }
    fn tensors(&self) -> Accesses {
        reads([self.x, self.factor])
            .write(self.rows)
            .write([self.cols])
    }
}

/// y[p] += Σ x² over the part's elements of fused matrix p. x f32 [1, len], y f32 [1, fused];
/// always accumulates.
#[derive(Clone, Copy, Debug)]
pub struct FusedSquareSums {
    pub x: Tensor,
    pub part: MatrixPart,
    pub y: Out,
}

impl Spec for FusedSquareSums {
    const NAME: &'static str = "square sums";
    fn check(&self) {
        check_fused_sums(self.x, &self.part, self.y);
    }
    fn cost(&self) -> Work {
        Work::op(2 * self.x.numel()).moving([self.x])
    }
    fn tensors(&self) -> Accesses {
        reads([self.x]).write([self.y])
    }
}

fn check_fused_sums(x: Tensor, part: &MatrixPart, y: Out) {
    assert_eq!((x.numel(), x.dtype), (part.len, DType::F32), "elements of the part");
    assert_eq!((y.to.numel(), y.add), (part.fused.count(), true), "sums of fused matrices");
}

/// y f32 [1, 2] = 1 − β̂ = t^beta2_decay and ρ at update t = updates, i64 [1, 1].
#[derive(Clone, Copy, Debug)]
pub struct AdafactorScalars {
    pub rule: crate::Adafactor,
    pub updates: Tensor,
    pub y: Out,
}

impl Spec for AdafactorScalars {
    const NAME: &'static str = "adafactor scalars";
    fn check(&self) {
        assert_eq!((self.y.to.numel(), self.y.add), (2, false), "Adafactor's step scalars");
    }
    fn cost(&self) -> Work {
        Work::op(8).moving([self.updates, self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.updates]).write([self.y])
    }
}

/// Moves a second moment by 1 − β̂ towards the mean of g². `rows` and `cols` are sums over the whole
/// matrix (`FactorSums`); a vector has no row sums. Recomputes `mean`: from `col` if the share has
/// all columns, else from `row`. scalars f32 [1, 3] = the factor, and the outputs of
/// `AdafactorScalars`; a factor of NaN changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct MoveSecondMoment {
    pub scalars: Tensor,
    pub part: MatrixPart,
    pub rows: Option<Tensor>,
    pub cols: Tensor,
    pub v: SecondMoment,
}

impl Spec for MoveSecondMoment {
    const NAME: &'static str = "second moment";
    fn check(&self) {
        let MoveSecondMoment { part, rows, cols, v, .. } = *self;
        v.check(&part);
        assert_eq!(cols.numel(), part.col_rows() * part.cols, "sums by column");
        assert_eq!(rows.map(Tensor::numel), v.row().map(Tensor::numel), "sums by row");
    }
    fn cost(&self) -> Work {
        let MoveSecondMoment { rows, cols, v, .. } = *self;
        let sums = rows.map_or(0, Tensor::numel) + cols.numel();
        let means = [v.row(), Some(v.col())].into_iter().flatten();
        Work::op(4 * sums)
            .moving(rows)
            .moving([cols])
            .moving(means.clone())
            .moving(means)
    }
    fn tensors(&self) -> Accesses {
        let all = reads([self.scalars, self.cols]).read(self.rows);
        match self.v {
            SecondMoment::Full(v) => all.update([v]),
            SecondMoment::Factored { row, col, mean } => all.update([row, col]).write([mean.set()]),
        }
    }
}

/// y[p] += Σ U² over the part's elements of fused matrix p. y f32 [1, fused].
#[derive(Clone, Copy, Debug)]
pub struct AdafactorSquareSums {
    pub rule: crate::Adafactor,
    pub scalars: Tensor,
    pub grad: Tensor,
    pub part: MatrixPart,
    pub v: SecondMoment,
    pub y: Out,
}

impl Spec for AdafactorSquareSums {
    const NAME: &'static str = "adafactor square sums";
    fn check(&self) {
        check_fused_sums(self.grad, &self.part, self.y);
        self.v.check(&self.part);
    }
    fn cost(&self) -> Work {
        Work::op(6 * self.grad.numel()).moving([self.grad])
    }
    fn tensors(&self) -> Accesses {
        reads([self.scalars, self.grad])
            .read(self.v.tensors())
            .write([self.y])
    }
}

/// Updates the part of the master weight, f32 [1, len], and rounds it into `weight` if that is
/// another tensor. A factor of NaN skips the update.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    pub rule: crate::Adafactor,
    pub scalars: Tensor,
    pub grad: Tensor,
    pub part: MatrixPart,
    pub v: SecondMoment,
    /// Σ U² of each fused matrix, f32 [1, fused].
    pub update_squares: Tensor,
    /// Σ θ² of each fused matrix, if steps are scaled by it.
    pub weight_squares: Option<Tensor>,
    pub master: Tensor,
    pub weight: Tensor,
}

impl Spec for Adafactor {
    const NAME: &'static str = "adafactor";
    fn check(&self) {
        let Adafactor { grad, part, v, master, weight, .. } = *self;
        let numels = [grad, master, weight].map(Tensor::numel);
        assert_eq!(numels, [part.len; 3], "elements of the part");
        assert_eq!([grad.dtype, master.dtype], [DType::F32; 2], "gradient and master are f32");
        v.check(&part);
    }
    fn cost(&self) -> Work {
        let Adafactor { grad, master, weight, .. } = *self;
        let work = Work::op(8 * grad.numel()).moving([grad, master, master]);
        work.moving(rounded(weight, master))
    }
    fn tensors(&self) -> Accesses {
        let Adafactor { scalars, grad, v, update_squares, weight_squares, .. } = *self;
        let read = reads([scalars, grad, update_squares])
            .read(weight_squares)
            .read(v.tensors());
        let written = rounded(self.weight, self.master).map(Tensor::set);
        read.update([self.master]).write(written)
    }
}
