//! fp8 state of a block's matrix that is kept between passes.

use device::{Quantized, Tensor};

#[derive(Clone, Copy, Debug)]
pub struct Fp8Weight {
    /// f32 [1, in]: largest magnitude in each column of this rank's share, from forward to
    /// backward.
    pub maxima: Tensor,
    /// Codes by row and by column, from the first micro-batch of a step to its last.
    pub codes: Option<[Quantized; 2]>,
}
