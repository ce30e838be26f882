//! Ops of Adafactor.

use super::{
    Adafactor, AdafactorScalars, AdafactorSquareSums, FactorSums, FusedSquareSums, InPlace,
    MoveSecondMoment, Spec,
};
use crate::{MatrixPart, Out, Tensor, Work};
use base::DType;

impl Spec for FactorSums {
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
}

impl Spec for FusedSquareSums {
    fn check(&self) {
        check_fused_sums(self.x, &self.part, self.y);
    }
    fn cost(&self) -> Work {
        Work::op(2 * self.x.numel()).moving([self.x])
    }
}

fn check_fused_sums(x: Tensor, part: &MatrixPart, y: Out) {
    assert_eq!((x.numel(), x.dtype), (part.len, DType::F32), "elements of the part");
    assert_eq!((y.to.numel(), y.add), (part.fused.count(), true), "sums of fused matrices");
}

impl Spec for AdafactorScalars {
    fn check(&self) {
        assert_eq!((self.y.to.numel(), self.y.add), (2, false), "Adafactor's step scalars");
    }
    fn cost(&self) -> Work {
        Work::op(8).moving([self.updates, self.y.to])
    }
}

impl Spec for MoveSecondMoment {
    fn check(&self) {
        let MoveSecondMoment { part, rows, cols, v: InPlace(v), .. } = *self;
        v.check(&part);
        assert_eq!(cols.numel(), part.col_rows() * part.cols, "sums by column");
        assert_eq!(rows.map(Tensor::numel), v.row().map(Tensor::numel), "sums by row");
    }
    fn cost(&self) -> Work {
        let MoveSecondMoment { rows, cols, v: InPlace(v), .. } = *self;
        let sums = rows.map_or(0, Tensor::numel) + cols.numel();
        let means = [v.row(), Some(v.col())].into_iter().flatten();
        Work::op(4 * sums)
            .moving(rows)
            .moving([cols])
            .moving(means.clone())
            .moving(means)
    }
}

impl Spec for AdafactorSquareSums {
    fn check(&self) {
        check_fused_sums(self.grad, &self.part, self.y);
        self.v.check(&self.part);
    }
    fn cost(&self) -> Work {
        Work::op(6 * self.grad.numel()).moving([self.grad])
    }
}

impl Spec for Adafactor {
    fn check(&self) {
        let Adafactor { grad, part, v, master: InPlace(master), weight, .. } = *self;
        let weight = weight.map_or(master, |out| out.to);
        let numels = [grad, master, weight].map(Tensor::numel);
        assert_eq!(numels, [part.len; 3], "elements of the part");
        assert_eq!([grad.dtype, master.dtype], [DType::F32; 2], "gradient and master are f32");
        v.check(&part);
    }
    fn cost(&self) -> Work {
        let Adafactor { grad, master: InPlace(master), weight, .. } = *self;
        Work::op(8 * grad.numel())
            .moving([grad, master, master])
            .moving(weight.map(|out| out.to))
    }
}
