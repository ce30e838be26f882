//! Arguments of Muon's ops: its momentum, and the position of one of several fused matrices.

use super::{Out, Tensor};
use base::{DType, Fused};

/// Momentum as a mean (Jordan et al. 2024; PyTorch's Muon): with g the gradient times its factor, M
/// ← M + (1 − momentum)·(g − M). The direction is M, or for Nesterov g + momentum·(M − g).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    pub momentum: f32,
    pub nesterov: bool,
}

impl Momentum {
    /// Panics if the tensors do not fit each other.
    pub fn check(grad: Tensor, m: Tensor, out: Out) {
        assert_eq!([m.numel(), out.to.numel()], [grad.numel(); 2], "elements of the gradient");
        assert_eq!([grad.dtype, m.dtype], [DType::F32; 2], "gradient and momentum are f32");
        assert!(!out.add, "the direction is overwritten");
    }
}

/// Panics if the tensors of `MuonOps::descend` do not fit each other. Returns their number of
/// elements.
pub fn check_descend(direction: Tensor, master: Tensor, weight: Tensor) -> usize {
    let len = direction.numel();
    assert_eq!([master.numel(), weight.numel()], [len; 2], "elements of the direction");
    assert_eq!(master.dtype, DType::F32, "the master weight is f32");
    len
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

    /// Panics if `all` is not the fused matrix, or if `one` has the wrong size. Returns the columns
    /// of a share.
    pub fn check(&self, all: Tensor, one: Tensor) -> usize {
        assert_eq!(all.numel(), self.rows * self.cols, "elements of the fused matrices");
        assert_eq!([one.rows, one.cols], self.size(), "shape of one of them");
        assert_eq!(all.dtype, one.dtype, "dtypes");
        base::div_exact(self.cols, self.shares)
    }
}

/// Ops of Muon, for every backend.
pub trait MuonOps {
    /// Moves m, f32 [1, n], towards grad·factor, and writes the direction to `out`, of any float
    /// dtype. grad f32 [1, n], factor f32 [1, 1]. A factor of NaN keeps m and gives the direction
    /// 0.
    fn momentum(&self, rule: &Momentum, factor: Tensor, grad: Tensor, m: Tensor, out: Out);
    /// one = its rows of `all`.
    fn unfuse(&self, all: Tensor, which: &FusedMatrix, one: Out);
    /// Its rows of `all` = one.
    fn fuse(&self, one: Tensor, which: &FusedMatrix, all: Out);
    /// x ← x / max(√sum, eps), in place; the root of sum, f32 [1, 1], is computed in f64.
    fn scale_to_norm_1(&self, x: Tensor, sum: Tensor, eps: f32);
    /// y ← a·x + b·y, with equal float dtypes. x may be y.
    fn blend(&self, a: f32, x: Tensor, b: f32, y: Tensor);
    /// Updates master (f32) to keep·master − step·direction, with `by` = [keep, step], and rounds
    /// it into `weight` if that is another tensor. factor f32 [1, 1]: NaN skips the update.
    fn descend(
        &self,
        by: [f32; 2],
        factor: Tensor,
        direction: Tensor,
        master: Tensor,
        weight: Tensor,
    );
}
