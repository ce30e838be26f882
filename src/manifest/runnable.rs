//! What a manifest may say that this version cannot run yet: refused by name, never ignored.

use super::{DeviceChoice, Manifest};
use crate::base::Problems;

impl Manifest {
    /// Whether this version can train it: every reason why not.
    pub fn runnable(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        let mut refuse =
            |what: String, remedy: &str| problems.add(self.name.as_str(), what, remedy);
        let topology = &self.topology;
        let parallel = [
            ("tensor", topology.tensor, "tensor parallelism"),
            ("pipeline", topology.pipeline, "pipeline parallelism"),
            ("data", topology.data, "data parallelism"),
        ];
        for (key, ranks, what) in parallel.into_iter().filter(|(_, ranks, _)| *ranks > 1) {
            let what = format!("topology.{key} is {ranks}: this version has no {what} yet");
            refuse(what, &format!("--set topology.{key}=1"));
        }
        if topology.zero > 0 {
            let what = format!("topology.zero is {}: this version has no ZeRO yet", topology.zero);
            refuse(what, "--set topology.zero=0");
        }
        if topology.sequence_parallel {
            let what = "topology.sequence_parallel: this version has no sequence parallelism yet";
            refuse(what.to_string(), "--set topology.sequence_parallel=false");
        }
        if self.train.device == DeviceChoice::Cuda && topology.ranks() > 1 {
            let what = "train.device is cuda: this version trains on one GPU only".to_string();
            refuse(what, "--set train.device=cpu");
        }
        problems.or(())
    }
}
