//! What the ops of Muon are given: its momentum, and where one of several fused matrices lies.

use super::{Out, Tensor};
use base::{DType, Fused};

/// Momentum as a mean (Jordan et al. 2024; PyTorch's Muon): with g the gradient times its factor,
/// M ← M + (1 − momentum)·(g − M). The direction is M, or of Nesterov's kind g + momentum·(M − g).
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

/// Panics if the tensors of `MuonOps::descend` do not fit each other; returns their elements.
pub fn check_descend(direction: Tensor, master: Tensor, weight: Tensor) -> usize {
    let len = direction.numel();
    assert_eq!([master.numel(), weight.numel()], [len; 2], "elements of the direction");
    assert_eq!(master.dtype, DType::F32, "the master weight is f32");
    len
}

/// One of the matrices that are fused by rows in another [rows, cols], which lies in shares of its
/// columns: `shares` matrices [rows, cols / shares], one after the other.
#[derive(Clone, Copy, Debug)]
pub struct FusedMatrix {
    /// Of all that are fused.
    pub rows: usize,
    pub cols: usize,
    pub shares: usize,
    pub fused: Fused,
    /// Which of them.
    pub number: usize,
}

impl FusedMatrix {
    /// Its rows and columns.
    pub fn size(&self) -> [usize; 2] {
        [self.fused.rows(self.number, self.rows), self.cols]
    }

    /// Panics if `all` is not what it is fused in, or `one` has not its size; returns the columns of
    /// a share.
    pub fn check(&self, all: Tensor, one: Tensor) -> usize {
        assert_eq!(all.numel(), self.rows * self.cols, "elements of the fused matrices");
        assert_eq!([one.rows, one.cols], self.size(), "shape of one of them");
        assert_eq!(all.dtype, one.dtype, "dtypes");
        base::div_exact(self.cols, self.shares)
    }
}

/// The ops of Muon, of every backend.
pub trait MuonOps {
    /// Moves m, f32 [1, n], by grad·factor, and writes the direction into `out`, of any float. grad
    /// f32 [1, n], factor f32 [1, 1]. A factor of NaN leaves m, and the direction is 0.
    fn momentum(&self, rule: &Momentum, factor: Tensor, grad: Tensor, m: Tensor, out: Out);
    /// one = the rows of `all` that are its own.
    fn unfuse(&self, all: Tensor, which: &FusedMatrix, one: Out);
    /// The rows of `all` that are its own = one.
    fn fuse(&self, one: Tensor, which: &FusedMatrix, all: Out);
    /// x ← x / max(√sum, eps), in place; of sum f32 [1, 1] the root is taken in f64.
    fn scale_to_norm_1(&self, x: Tensor, sum: Tensor, eps: f32);
    /// y ← a·x + b·y, of one float. x may be y.
    fn blend(&self, a: f32, x: Tensor, b: f32, y: Tensor);
    /// Updates master (f32) to keep·master − step·direction, `by` being keep and step, and rounds it
    /// into `weight` where that is another tensor. factor f32 [1, 1]: NaN skips the update.
    fn descend(
        &self,
        by: [f32; 2],
        factor: Tensor,
        direction: Tensor,
        master: Tensor,
        weight: Tensor,
    );
}
