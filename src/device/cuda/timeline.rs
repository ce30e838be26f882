//! Timestamps of the compute stream for traces, by timing events.

use super::device::Device;
use super::driver::CUevent;
use crate::Timeline;
use parking_lot::Mutex;
use std::sync::Arc;

/// Marks on one GPU since the start of the timeline.
pub struct EventTimeline {
    device: Arc<Device>,
    /// The first is the start, which the host waited for.
    events: Mutex<Vec<CUevent>>,
}

// SAFETY: events are handles of the driver, which any thread may use that binds the context first, as
// `Device::call` does. Nothing reads through them.
unsafe impl Send for EventTimeline {}
// SAFETY: as above; the list of events is behind a lock.
unsafe impl Sync for EventTimeline {}

impl EventTimeline {
    pub fn start(device: &Arc<Device>) -> EventTimeline {
        let start = device.timing_event();
        device.record(start, device.stream);
        device.wait_event("timing", start);
        EventTimeline { device: device.clone(), events: Mutex::new(vec![start]) }
    }
}

impl Timeline for EventTimeline {
    fn mark(&self) -> Option<usize> {
        if self.device.is_capturing() {
            return None;
        }
        let event = self.device.timing_event();
        self.device.record(event, self.device.stream);
        let mut events = self.events.lock();
        events.push(event);
        Some(events.len() - 1)
    }

    fn read(&self) -> Vec<i64> {
        self.device.wait_stream(self.device.stream);
        let events = self.events.lock();
        events
            .iter()
            .map(|event| {
                let ms = self.device.elapsed_ms(events[0], *event);
                if ms.is_finite() { (ms as f64 * 1e6) as i64 } else { 0 }
            })
            .collect()
    }
}

impl Drop for EventTimeline {
    fn drop(&mut self) {
        self.events
            .lock()
            .drain(..)
            .for_each(|event| self.device.destroy_event(event));
    }
}
