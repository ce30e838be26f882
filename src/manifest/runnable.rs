//! What a manifest may say that this version cannot run yet: refused by name, never ignored.

use super::{Manifest, Precision};
use crate::base::Problems;

impl Manifest {
    /// Whether this version can train it: every reason why not.
    pub fn runnable(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let mut refuse = |what: &str, remedy: &str| {
            problems.add(self.name.as_str(), what, remedy);
        };
        if self.precision == Precision::Fp16 {
            let what = "precision is fp16: this version has no loss scaling yet";
            refuse(what, "--set precision=bf16");
        }
        problems.or(())
    }
}
