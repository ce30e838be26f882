//! Groups of ranks, behind one trait. Does not know what tensor, pipeline or data parallelism mean.

use crate::device::Tensor;

/// Ranks that compute together. Collectives are asynchronous and in order with the device's ops.
pub trait Group {
    fn size(&self) -> usize;
    fn rank(&self) -> usize;
    /// x = Σ over ranks of x.
    fn all_reduce(&self, x: Tensor);
    /// whole = every rank's part, in rank order. In place where part lies at its place in whole.
    fn all_gather(&self, part: Tensor, whole: Tensor);
    /// part = this rank's share of Σ over ranks of whole. In place as above.
    fn reduce_scatter(&self, whole: Tensor, part: Tensor);
}

/// A group of one: every collective is already done, so callers never ask "am I alone?".
pub struct Solo;

impl Group for Solo {
    fn size(&self) -> usize {
        1
    }
    fn rank(&self) -> usize {
        0
    }
    fn all_reduce(&self, _: Tensor) {}
    fn all_gather(&self, part: Tensor, whole: Tensor) {
        assert_eq!(part.addr(), whole.addr(), "a group of one gathers in place");
    }
    fn reduce_scatter(&self, whole: Tensor, part: Tensor) {
        assert_eq!(part.addr(), whole.addr(), "a group of one scatters in place");
    }
}
