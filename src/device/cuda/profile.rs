//! Profile of a GPU's work without a profiler: a timing event after each kernel and product. A launch
//! takes the time from the previous event to its own. Fills, copies and time in which the GPU waits for
//! the host count with the next launch. A wait for other ranks counts as a launch.

use super::Cuda;
use super::device::Device;
use super::driver::CUevent;
use super::launches::Launch;
use crate::OpTimes;
use std::collections::BTreeMap;

/// Prefix of the names of waits.
const WAIT: &str = "wait ";

/// All launches of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profiled {
    pub calls: usize,
    pub seconds: f64,
    /// FLOPs of products; 0 for kernels.
    pub flops: f64,
}

impl Device {
    /// Whether a profile is in progress. No graphs are launched then.
    pub fn is_profiled(&self) -> bool {
        self.launches.lock().is_some()
    }

    /// Records the launch that was just enqueued on the compute stream.
    pub(super) fn note_launch(&self, name: impl FnOnce() -> String, flops: f64) {
        let section = self.launches.section();
        if let Some(launches) = &mut *self.launches.lock() {
            launches.push(Launch { name: name(), flops, section, event: self.mark() });
        }
    }

    /// Attributes the time since the last launch to a wait for a group's operation; without a name the
    /// host waited, and no op is charged.
    pub fn note_wait(&self, group: &str) {
        self.note_launch(|| format!("{WAIT}{group}"), 0.0);
    }

    fn mark(&self) -> CUevent {
        let event = self.timing_event();
        self.record(event, self.stream);
        event
    }
}

impl Cuda {
    /// Profiles the launches that `work` enqueues, op by op and without graphs; by name.
    pub fn profile(&self, work: &mut dyn FnMut()) -> BTreeMap<String, Profiled> {
        self.begin_profile();
        work();
        let mut all = BTreeMap::<String, Profiled>::new();
        for (Launch { name, flops, .. }, seconds) in self.end_profile() {
            let row = all.entry(name).or_default();
            row.calls += 1;
            row.seconds += seconds;
            row.flops += flops;
        }
        all
    }

    /// Profiles everything enqueued until `end_profile`.
    pub(super) fn begin_profile(&self) {
        let device = &self.device;
        device.wait_stream(device.stream);
        let name = String::new();
        let section = device.launches.section();
        let begin = Launch { name, flops: 0.0, section, event: device.mark() };
        *device.launches.lock() = Some(vec![begin]);
    }

    /// All launches since `begin_profile`, and the seconds of each.
    fn end_profile(&self) -> Vec<(Launch, f64)> {
        let device = &self.device;
        let launches = device.launches.lock().take().unwrap_or_default();
        device.wait_stream(device.stream);
        let mut previous = None;
        let mut all = Vec::new();
        for launch in launches {
            if let Some(start) = previous.replace(launch.event) {
                let seconds = f64::from(device.elapsed_ms(start, launch.event)) / 1e3;
                device.destroy_event(start);
                all.push((launch, seconds));
            }
        }
        if let Some(last) = previous {
            device.destroy_event(last);
        }
        all
    }

    /// Seconds by op since `begin_profile`. Kernels other than attention's and the loss's share one name.
    pub(super) fn op_times(&self) -> OpTimes {
        let mut times = OpTimes::default();
        for (launch, seconds) in self.end_profile() {
            if let Some(group) = launch.name.strip_prefix(WAIT) {
                if !group.is_empty() {
                    *times.waits.entry(group.to_string()).or_default() += seconds;
                }
                continue;
            }
            let name = match &*launch.name {
                name if name.starts_with("product") || name == "bias_rows" => "gemm",
                name if name.starts_with("attention") => "attention",
                name if name.starts_with("cross_entropy") => "cross entropy",
                _ => "other kernels",
            };
            times.add(launch.section, name, seconds);
        }
        times
    }
}
