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
}

impl Work {
    /// One call of an op.
    pub(crate) fn op(flops: usize) -> Work {
        Work { calls: 1.0, flops: flops as f64, bytes: 0.0 }
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
    }
}

/// Names of the copies between a device and its host, in the host's tally.
pub const COPIES: [&str; 2] = ["to the host", "to the device"];

/// Name of fp8 products, for which a device has a separate peak.
pub const FP8_PRODUCT: &str = "fp8 gemm";

/// Work by name of the op.
pub type Tally = BTreeMap<&'static str, Work>;
