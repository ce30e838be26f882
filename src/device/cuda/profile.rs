//! Profile of a GPU's work without a profiler: a timing event behind each kernel and product. Each
//! takes the time from the event before it to its own. Fills and copies count with the launch that
//! follows them, as does time in which the GPU waits for the host.

use super::Cuda;
use super::device::Device;
use super::driver::CUevent;
use super::launches::Launch;
use std::collections::BTreeMap;

/// All launches of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profiled {
    pub calls: usize,
    pub seconds: f64,
    /// Operations of products; 0 of kernels.
    pub flops: f64,
}

impl Device {
    /// Whether a profile is taken: no graphs are launched then.
    pub fn is_profiled(&self) -> bool {
        self.launches.lock().is_some()
    }

    /// Records the launch that was just enqueued on the compute stream.
    pub(super) fn note_launch(&self, name: impl FnOnce() -> String, flops: f64) {
        if let Some(launches) = &mut *self.launches.lock() {
            launches.push(Launch { name: name(), flops, event: self.mark() });
        }
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
        let device = &self.device;
        device.wait_stream(device.stream);
        let begin = device.mark();
        *device.launches.lock() = Some(Vec::new());
        work();
        let launches = device.launches.lock().take().unwrap_or_default();
        device.wait_stream(device.stream);
        let (mut all, mut before) = (BTreeMap::<String, Profiled>::new(), begin);
        for Launch { name, flops, event } in launches {
            let row = all.entry(name).or_default();
            row.calls += 1;
            row.seconds += f64::from(device.elapsed_ms(before, event)) / 1e3;
            row.flops += flops;
            device.destroy_event(before);
            before = event;
        }
        device.destroy_event(before);
        all
    }
}
