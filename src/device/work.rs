//! Work of ops by name, as a counting device adds it up.

use std::collections::BTreeMap;

/// FLOPs and memory traffic of all calls of one op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    pub calls: f64,
    pub flops: f64,
    /// Bytes read and written; each operand counts once.
    pub bytes: f64,
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
