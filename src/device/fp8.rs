//! fp8 matrices, and their ops.
//!
//! A product sums along lines of its operands: rows of one and columns of the other. A line is
//! scaled so that its largest number becomes the largest of the format ("current scaling": from the
//! present content, not from earlier content, so there is no state). A device whose products take
//! only one scale per matrix gives all lines the scale of the largest.

use super::{Epilogue, Out, Tensor};
use base::{DType, Fp8};

/// Lines of a matrix along which a product sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    Rows,
    Columns,
}

impl Lines {
    /// Both, in the order of arguments given for both.
    pub const BOTH: [Lines; 2] = [Lines::Rows, Lines::Columns];

    /// Number and length of the lines of a matrix.
    pub fn of(self, x: Tensor) -> [usize; 2] {
        match self {
            Lines::Rows => [x.rows, x.cols],
            Lines::Columns => [x.cols, x.rows],
        }
    }
}

/// Granularity of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8Scaling {
    /// One scale per line.
    RowWise,
    /// One scale per matrix.
    TensorWise,
}

/// fp8 matrix with its lines as rows: number j of line i is the value of codes[i, j] times
/// scales[i].
#[derive(Clone, Copy, Debug)]
pub struct Quantized {
    /// u8 [lines, depth].
    pub codes: Tensor,
    /// f32 [1, lines]; all equal for `TensorWise` scaling.
    pub scales: Tensor,
    pub format: Fp8,
    pub scaling: Fp8Scaling,
}

/// Lower bound of a line's largest magnitude, so that the scale and its inverse are normal numbers.
/// A line of zeros remains zero.
pub const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Scale of a line with this largest magnitude; NaN for NaN.
pub fn scale_of(maximum: f32, format: Fp8) -> f32 {
    let maximum = if maximum < SMALLEST { SMALLEST } else { maximum };
    maximum / format.largest()
}

impl Quantized {
    /// Panics unless it can hold the lines of x, whose maxima are f32 [shares, lines].
    pub fn check(&self, x: Tensor, lines: Lines, maxima: Tensor) {
        let [count, depth] = lines.of(x);
        let Quantized { codes, scales, .. } = *self;
        assert_eq!((codes.rows, codes.cols, codes.dtype), (count, depth, DType::U8), "codes");
        assert_eq!((scales.numel(), scales.dtype), (count, DType::F32), "scales");
        assert_eq!((maxima.cols, maxima.dtype), (count, DType::F32), "maxima");
    }

    /// Panics unless it can hold the rows of x with one scale per row.
    pub fn check_rows(&self, x: Tensor) {
        self.check(x, Lines::Rows, self.scales);
        assert_eq!(self.scaling, Fp8Scaling::RowWise, "maxima of rows scale them");
    }

    /// Panics unless C (+)= A·Bᵀ is valid for these operands and this epilogue. Returns m, n, k.
    pub fn check_product(a: &Quantized, b: &Quantized, c: Out, then: Epilogue) -> [usize; 3] {
        let [m, n, k] = [a.codes.rows, b.codes.rows, a.codes.cols];
        assert_eq!(k, b.codes.cols, "depth of A and B: {a:?}, {b:?}");
        assert_eq!((c.to.rows, c.to.cols), (m, n), "{a:?} and {b:?} into {:?}", c.to);
        assert_eq!(a.scaling, b.scaling, "scaling of A and B");
        assert!([a.format, b.format].contains(&Fp8::E4M3), "no product of E5M2 and E5M2");
        assert!(!matches!(then, Epilogue::BiasBackward(_)), "column_sums does that");
        assert!(!c.add || matches!(then, Epilogue::Nothing), "accumulation has no epilogue");
        [m, n, k]
    }
}

/// fp8 ops, for every backend. x has any float dtype.
pub trait Fp8Ops {
    /// Granularity of scales in its products.
    fn fp8_scaling(&self) -> Fp8Scaling;
    /// out[0, i] = the largest magnitude in line i, or NaN if it contains a NaN, f32 [1, lines]: of
    /// rows, columns, or both (`Lines::BOTH`). Reads x once.
    fn line_maxima(&self, x: Tensor, out: [Option<Out>; 2]);
    /// Quantizes the rows of x, its columns or both, and overwrites codes and scales. Uses the
    /// largest of the maxima of all shares, f32 [shares, lines]: scale = maximum / largest number
    /// of the format, at least `SMALLEST` / that; code = `Fp8::encode` of number · (1 / scale), in
    /// f32. Equal bits on every device. A non-finite number makes its line (`TensorWise`: the
    /// matrix) give NaN in products. Reads x once.
    fn quantize(&self, x: Tensor, to: [Option<(Tensor, Quantized)>; 2]);
    /// Quantizes rows, `RowWise`, by their own maxima. Also computes the maxima of columns, f32 [1,
    /// columns]. Reads x once.
    fn quantize_rows(&self, x: Tensor, to: &Quantized, columns: Option<Out>);
    /// C (+)= A·Bᵀ, summed in f32, then the epilogue, which cannot be `BiasBackward`. C bf16 or
    /// f32; accumulates only without epilogue. At most one of A and B is E5M2. m, n and k are
    /// multiples of 16 on GPUs.
    fn fp8_gemm(&self, a: &Quantized, b: &Quantized, c: Out, then: Epilogue);
    /// sums (+)= Σ_rows x, f32 [1, columns]: the gradient of a bias.
    fn column_sums(&self, x: Tensor, sums: Out);
}
