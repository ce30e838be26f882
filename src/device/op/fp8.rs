//! Ops of fp8 matrices. x has any float dtype.

use super::product::{check_epilogue, with_epilogue};
use super::{Accesses, Spec, reads};
use crate::{Epilogue, FP8_PRODUCT, Fp8Scaling, Lines, Out, Quantized, Tensor, Work};
use base::{DType, Fp8};

/// rows[0, i] = the largest magnitude in row i, or NaN if it contains a NaN, f32 [1, rows]; the
/// same for columns. Reads x once.
#[derive(Clone, Copy, Debug)]
pub struct LineMaxima {
    pub x: Tensor,
    pub rows: Option<Out>,
    pub columns: Option<Out>,
}

impl Spec for LineMaxima {
    const NAME: &'static str = "quantize";
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
    fn tensors(&self) -> Accesses {
        reads([self.x]).write(self.rows).write(self.columns)
    }
}

fn check_maxima(x: Tensor, lines: Lines, out: Option<Out>) {
    let Some(Out { to, add }) = out else { return };
    assert!(!add && to.numel() == lines.shape(x)[0], "a maximum for each line");
    assert_eq!(to.dtype, DType::F32, "maxima");
}

/// Quantizes the rows of x, its columns or both, and overwrites codes and scales. Each comes with
/// the maxima of all shares, f32 [shares, lines], of which it uses the largest: scale = maximum /
/// largest number of the format, at least `SMALLEST` / that; code = `Fp8::encode` of number · (1 /
/// scale), in f32. Equal bits on every device. A non-finite number makes its line (`TensorWise`:
/// the matrix) give NaN in products. Reads x once.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    pub x: Tensor,
    pub rows: Option<(Tensor, Quantized)>,
    pub columns: Option<(Tensor, Quantized)>,
}

impl Quantize {
    fn each(&self) -> impl Iterator<Item = (Tensor, Quantized)> + use<> {
        [self.rows, self.columns].into_iter().flatten()
    }
}

impl Spec for Quantize {
    const NAME: &'static str = "quantize";
    fn check(&self) {
        for (lines, to) in Lines::BOTH.into_iter().zip([self.rows, self.columns]) {
            let Some((maxima, to)) = to else { continue };
            check_quantized(&to, self.x, lines, maxima);
        }
        let format = |to: Option<(Tensor, Quantized)>| to.map(|(_, to)| to.format);
        let rows = format(self.rows);
        let columns = format(self.columns);
        assert_eq!(rows.or(columns), columns.or(rows), "rows and columns of one format");
    }
    fn cost(&self) -> Work {
        let moved = self
            .each()
            .flat_map(|(maxima, to)| [maxima, to.scales, to.codes]);
        Work::op(self.each().count() * self.x.numel())
            .moving(moved)
            .moving([self.x])
    }
    fn tensors(&self) -> Accesses {
        self.each().fold(reads([self.x]), |all, (maxima, to)| {
            all.read([maxima]).write([to.scales.set(), to.codes.set()])
        })
    }
}

/// Panics unless `to` can hold the lines of x, whose maxima are f32 [shares, lines].
fn check_quantized(to: &Quantized, x: Tensor, lines: Lines, maxima: Tensor) {
    let [count, depth] = lines.shape(x);
    let Quantized { codes, scales, .. } = *to;
    assert_eq!((codes.rows, codes.cols, codes.dtype), (count, depth, DType::U8), "codes");
    assert_eq!((scales.numel(), scales.dtype), (count, DType::F32), "scales");
    assert_eq!((maxima.cols, maxima.dtype), (count, DType::F32), "maxima");
}

/// Quantizes rows, `RowWise`, by their own maxima. Also computes the maxima of columns, f32 [1,
/// columns]. Reads x once.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeRows {
    pub x: Tensor,
    pub to: Quantized,
    pub columns: Option<Out>,
}

impl Spec for QuantizeRows {
    const NAME: &'static str = "quantize";
    fn check(&self) {
        check_quantized(&self.to, self.x, Lines::Rows, self.to.scales);
        assert_eq!(self.to.scaling, Fp8Scaling::RowWise, "maxima of rows scale them");
        check_maxima(self.x, Lines::Columns, self.columns);
    }
    fn cost(&self) -> Work {
        let columns = self.columns.map(|out| out.to);
        let work = Work::op(2 * self.x.numel()).moving([self.x, self.to.scales, self.to.codes]);
        work.moving(columns)
    }
    fn tensors(&self) -> Accesses {
        let Quantized { codes, scales, .. } = self.to;
        reads([self.x])
            .write([scales.set(), codes.set()])
            .write(self.columns)
    }
}

/// C (+)= A·Bᵀ, summed in f32, then the epilogue, which cannot be `BiasBackward`. C bf16 or f32;
/// accumulates only without epilogue. At most one of A and B is E5M2. m, n and k are multiples of
/// 16 on GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Gemm {
    pub a: Quantized,
    pub b: Quantized,
    pub c: Out,
    pub then: Epilogue,
}

impl Fp8Gemm {
    /// Rows and columns of C, and the depth of the sums.
    pub fn size(&self) -> [usize; 3] {
        [self.a.codes.rows, self.b.codes.rows, self.a.codes.cols]
    }
}

impl Spec for Fp8Gemm {
    const NAME: &'static str = FP8_PRODUCT;
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
    fn tensors(&self) -> Accesses {
        let Fp8Gemm { a, b, c, then } = *self;
        with_epilogue(then, reads([a.codes, a.scales, b.codes, b.scales]).write([c]))
    }
}
