//! What is kept of a block's matrix in 8-bit floats, from one pass to another.

use device::{Quantized, Tensor};

#[derive(Clone, Copy, Debug)]
pub struct KeptWeight {
    /// f32 [1, in]: the largest number in each column of this rank's share, from forward to backward.
    pub maxima: Tensor,
    /// Rows and columns, from a step's first micro-batch to its last.
    pub codes: Option<[Quantized; 2]>,
}
