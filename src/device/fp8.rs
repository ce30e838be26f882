//! fp8 matrices.
//!
//! A product sums along lines of its operands: rows of one and columns of the other. A line is
//! scaled so that its largest number becomes the largest of the format ("current scaling": from the
//! present content, not from earlier content, so there is no state). A device whose products take
//! only one scale per matrix gives all lines the scale of the largest.

use super::{Out, Tensor};
use base::Fp8;

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
    pub fn shape(self, x: Tensor) -> [usize; 2] {
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

impl Quantized {
    /// Overwrites codes and scales.
    pub fn set(self) -> Out<Quantized> {
        Out { to: self, add: false }
    }
}

/// Lines to quantize, by given maxima.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedBy {
    /// Maxima of all shares, f32 [shares, lines].
    pub maxima: Tensor,
    pub to: Out<Quantized>,
}

/// Lower bound of a line's largest magnitude, so that the scale and its inverse are normal numbers.
/// A line of zeros remains zero.
pub const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);

/// Scale of a line with this largest magnitude; NaN for NaN.
pub fn scale_of(maximum: f32, format: Fp8) -> f32 {
    let maximum = if maximum < SMALLEST { SMALLEST } else { maximum };
    maximum / format.largest()
}
