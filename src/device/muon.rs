//! Arguments of Muon's ops: its momentum, and the position of one of several fused matrices.

use base::Fused;

/// Momentum as a mean (Jordan et al. 2024; PyTorch's Muon): with g the gradient times its factor, M
/// ← M + (1 − momentum)·(g − M). The direction is M, or for Nesterov g + momentum·(M − g).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    pub momentum: f32,
    pub nesterov: bool,
}

/// One of several matrices that are fused by rows in a matrix [rows, cols]. The latter is stored as
/// `shares` matrices [rows, cols / shares], one after the other.
#[derive(Clone, Copy, Debug)]
pub struct FusedMatrix {
    /// Shape of the fused matrix.
    pub rows: usize,
    pub cols: usize,
    pub shares: usize,
    pub fused: Fused,
    /// Index among the fused matrices.
    pub number: usize,
}

impl FusedMatrix {
    /// Rows and columns of this matrix.
    pub fn size(&self) -> [usize; 2] {
        [self.fused.rows(self.number, self.rows), self.cols]
    }

    /// Columns of a share.
    pub fn share_cols(&self) -> usize {
        base::div_exact(self.cols, self.shares)
    }
}
