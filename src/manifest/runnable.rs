//! What a manifest may say that this version cannot run yet: refused by name, never ignored.

use super::{DeviceChoice, Manifest, Precision};
use crate::base::Problems;

impl Manifest {
    /// Whether this version can train it: every reason why not.
    pub fn runnable(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let mut refuse = |what: &str, remedy: &str| {
            problems.add(self.name.as_str(), what, remedy);
        };
        if self.train.device == DeviceChoice::Cpu && self.precision == Precision::Tf32 {
            refuse("precision is tf32, which a CPU cannot", "--set precision=f32");
        }
        problems.or(())
    }
}
