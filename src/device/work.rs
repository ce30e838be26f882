//! Work of ops by name, as a counting device adds it up.

use super::{Out, Tensor};
use std::collections::BTreeMap;

/// FLOPs and memory traffic of all calls of one op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    pub calls: f64,
    pub flops: f64,
    /// Bytes read and written; each operand counts once.
    pub bytes: f64,
    /// Sum over products of their FLOPs, divided by the smallest of their three sides. Small products
    /// reach less of a GPU's peak.
    pub flops_by_side: f64,
}

impl Work {
    /// This much of all four.
    pub fn times(self, share: f64) -> Work {
        Work {
            calls: share * self.calls,
            flops: share * self.flops,
            bytes: share * self.bytes,
            flops_by_side: share * self.flops_by_side,
        }
    }

    /// One call of an op.
    pub(crate) fn op(flops: usize) -> Work {
        Work { calls: 1.0, flops: flops as f64, ..Work::default() }
    }

    /// One product of matrices with these sides.
    pub(crate) fn product(sides: [usize; 3]) -> Work {
        let work = Work::op(2 * sides.iter().product::<usize>());
        let side = sides.into_iter().min().unwrap_or(1).max(1);
        Work { flops_by_side: work.flops / side as f64, ..work }
    }

    pub(crate) fn with_flops(self, flops: usize) -> Work {
        Work { flops: self.flops + flops as f64, ..self }
    }

    /// Adds the bytes of tensors.
    pub(crate) fn moving(self, xs: impl IntoIterator<Item = Tensor>) -> Work {
        let moved: f64 = xs.into_iter().map(|x| x.bytes() as f64).sum();
        Work { bytes: self.bytes + moved, ..self }
    }

    /// Adds the bytes of an output: an accumulating one is read and written.
    pub(crate) fn moving_out(self, y: Out) -> Work {
        self.moving([y.to]).moving(y.add.then_some(y.to))
    }
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.calls += other.calls;
        self.flops += other.flops;
        self.bytes += other.bytes;
        self.flops_by_side += other.flops_by_side;
    }
}

/// Names of the copies between a device and its host, in the host's tally.
pub const COPIES: [&str; 2] = ["to the host", "to the device"];

/// Name of fp8 products, for which a device has a separate peak.
pub const FP8_PRODUCT: &str = "fp8 gemm";

/// Names of attention's ops, for which the planner has separate shares of the peak.
pub const ATTENTION: &str = "attention";
pub const ATTENTION_BACKWARD: &str = "attention backward";

/// Work by name of the op.
pub type Tally = BTreeMap<&'static str, Work>;
