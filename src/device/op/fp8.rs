//! Ops of fp8 matrices. x has any float dtype.

use super::product::check_epilogue;
use super::{Fp8Gemm, LineMaxima, Quantize, QuantizeRows, Spec};
use crate::{Epilogue, Fp8Scaling, Lines, Out, Quantized, QuantizedBy, Tensor, Work};
use base::{DType, Fp8};

impl Spec for LineMaxima {
    fn check(&self) {
        check_maxima(self.x, Lines::Rows, self.rows);
        check_maxima(self.x, Lines::Columns, self.columns);
    }
    fn cost(&self) -> Work {
        let outs = [self.rows, self.columns]
            .into_iter()
            .flatten()
            .map(|out| out.to);
        Work::op(outs.clone().count() * self.x.numel())
            .moving(outs)
            .moving([self.x])
    }
}

fn check_maxima(x: Tensor, lines: Lines, out: Option<Out>) {
    let Some(Out { to, add }) = out else { return };
    assert!(!add && to.numel() == lines.shape(x)[0], "a maximum for each line");
    assert_eq!(to.dtype, DType::F32, "maxima");
}

impl Spec for Quantize {
    fn check(&self) {
        for (lines, to) in Lines::BOTH.into_iter().zip([self.rows, self.columns]) {
            let Some(QuantizedBy { maxima, to }) = to else { continue };
            check_quantized(to, self.x, lines, maxima);
        }
        if let (Some(rows), Some(columns)) = (self.rows, self.columns) {
            assert_eq!(rows.to.to.format, columns.to.to.format, "rows and columns of one format");
        }
    }
    fn cost(&self) -> Work {
        let mut work = Work::op(0).moving([self.x]);
        for QuantizedBy { maxima, to } in self.rows.iter().chain(&self.columns) {
            work = work.with_flops(self.x.numel());
            work = work.moving([*maxima, to.to.scales, to.to.codes]);
        }
        work
    }
}

/// Panics unless `out` can hold the lines of x, whose maxima are f32 [shares, lines].
fn check_quantized(out: Out<Quantized>, x: Tensor, lines: Lines, maxima: Tensor) {
    assert!(!out.add, "codes are overwritten");
    let [count, depth] = lines.shape(x);
    let Quantized { codes, scales, .. } = out.to;
    assert_eq!((codes.rows, codes.cols, codes.dtype), (count, depth, DType::U8), "codes");
    assert_eq!((scales.numel(), scales.dtype), (count, DType::F32), "scales");
    assert_eq!((maxima.cols, maxima.dtype), (count, DType::F32), "maxima");
}

impl Spec for QuantizeRows {
    fn check(&self) {
        check_quantized(self.to, self.x, Lines::Rows, self.to.to.scales);
        assert_eq!(self.to.to.scaling, Fp8Scaling::RowWise, "maxima of rows scale them");
        check_maxima(self.x, Lines::Columns, self.columns);
    }
    fn cost(&self) -> Work {
        let Quantized { codes, scales, .. } = self.to.to;
        Work::op(2 * self.x.numel())
            .moving([self.x, scales, codes])
            .moving(self.columns.map(|out| out.to))
    }
}

impl Fp8Gemm {
    /// Rows and columns of C, and the depth of the sums.
    pub fn size(&self) -> [usize; 3] {
        [self.a.codes.rows, self.b.codes.rows, self.a.codes.cols]
    }
}

impl Spec for Fp8Gemm {
    fn check(&self) {
        let Fp8Gemm { a, b, c, then } = *self;
        let [m, n, k] = self.size();
        assert_eq!(k, b.codes.cols, "depth of A and B: {a:?}, {b:?}");
        assert_eq!((c.to.rows, c.to.cols), (m, n), "{a:?} and {b:?} into {:?}", c.to);
        assert_eq!(a.scaling, b.scaling, "scaling of A and B");
        assert!([a.format, b.format].contains(&Fp8::E4M3), "no product of E5M2 and E5M2");
        assert!(!matches!(then, Epilogue::BiasBackward(_)), "column_sums does that");
        assert!(!c.add || matches!(then, Epilogue::Nothing), "accumulation has no epilogue");
        check_epilogue(then, c.to);
    }
    fn cost(&self) -> Work {
        let Fp8Gemm { a, b, c, then } = *self;
        let sides = [c.to.rows, c.to.cols, a.codes.cols];
        Work::product(sides)
            .moving([a.codes, b.codes])
            .moving(then.matrix())
            .moving_out(c)
    }
}
