//! Streams and events: the order, progress and duration of work on the GPU.

// Streams and events are handles of the driver: gptrain does not read through them.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use super::device::Device;
use super::driver::{CUevent, CUstream, NOT_READY};
use super::library::call;
use cudarc::driver::sys::{self, CUevent_flags, CUstream_flags};
use std::ptr::null_mut;

impl Device {
    /// Creates a stream that does not wait for the default one. Blocks of an `urgent` stream start before
    /// pending blocks of other streams, so that collectives do not queue behind whole products.
    pub(super) fn new_stream(&self, urgent: bool) -> Result<CUstream, String> {
        let mut stream = null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let mut least = 0;
        let mut greatest = 0;
        // SAFETY: the context is bound (`Device::open`); two ints are written to the live variables.
        let code =
            unsafe { call!(self.api, cuCtxGetStreamPriorityRange(&mut least, &mut greatest)) };
        self.check("asking for priorities of streams", code)?;
        let priority = if urgent { greatest } else { least };
        // SAFETY: the context is bound; the handle is written to the live variable.
        let code =
            unsafe { call!(self.api, cuStreamCreateWithPriority(&mut stream, flags, priority)) };
        self.check("making a stream", code).map(|()| stream)
    }

    /// Creates an event that orders work, without a timestamp.
    pub fn event(&self) -> CUevent {
        self.new_event(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event with a timestamp.
    pub fn timing_event(&self) -> CUevent {
        self.new_event(CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn new_event(&self, flags: CUevent_flags) -> CUevent {
        let mut event = null_mut();
        // A wait for an event has a flag of its own.
        let blocks = if self.blocking { CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32 } else { 0 };
        // SAFETY: the handle is written to the live variable; it remains null if the device has failed.
        self.call("making an event", |api| unsafe {
            call!(api, cuEventCreate(&mut event, flags as u32 | blocks))
        });
        event
    }

    pub fn destroy_event(&self, event: CUevent) {
        if !event.is_null() {
            // SAFETY: the caller owns the event, made by `new_event`, and uses it no more. Pending work
            // that it orders is not affected (cuda.h).
            self.try_call(|api| unsafe { call!(api, cuEventDestroy_v2(event)) });
        }
    }

    /// Makes work enqueued on `later` from now on run after the present work of `earlier`.
    pub fn after(&self, event: CUevent, earlier: CUstream, later: CUstream) {
        self.record(event, earlier);
        self.wait(later, event);
    }

    /// Records an event, which is done when all work enqueued on `stream` so far is.
    pub fn record(&self, event: CUevent, stream: CUstream) {
        // SAFETY: both are handles of this device, which their owners have not destroyed.
        self.call("ordering streams", |api| unsafe { call!(api, cuEventRecord(event, stream)) });
    }

    /// Makes work enqueued on `stream` from now on run after the event, if that was ever recorded.
    pub fn wait(&self, stream: CUstream, event: CUevent) {
        // SAFETY: as in `record`.
        self.call("ordering streams", |api| unsafe {
            call!(api, cuStreamWaitEvent(stream, event, 0))
        });
    }

    /// Whether an event is done; false if the device has failed.
    pub fn event_done(&self, event: CUevent) -> bool {
        if self.failed() {
            return false;
        }
        // SAFETY: a handle of this device, which its owner has not destroyed.
        match self.try_call(|api| unsafe { call!(api, cuEventQuery(event)) }) {
            0 => true,
            NOT_READY => false,
            code => {
                self.fail_with("computing", code);
                false
            }
        }
    }

    /// Blocks the host until an event is done.
    pub fn wait_event(&self, doing: &str, event: CUevent) {
        // SAFETY: a handle of this device, which its owner has not destroyed.
        self.call(doing, |api| unsafe { call!(api, cuEventSynchronize(event)) });
    }

    /// Blocks the host until all work on a stream is done.
    pub fn wait_stream(&self, stream: CUstream) {
        // SAFETY: one of the device's streams, which it destroys as it is dropped.
        self.call("waiting", |api| unsafe { call!(api, cuStreamSynchronize(stream)) });
    }

    /// Milliseconds between two timing events that are done; infinite if the device fails.
    pub fn elapsed_ms(&self, from: CUevent, to: CUevent) -> f32 {
        let mut elapsed = f32::INFINITY;
        // SAFETY: two events of this device that keep time; a float is written to the live variable.
        self.call("timing", |api| unsafe {
            call!(api, cuEventElapsedTime(&mut elapsed, from, to))
        });
        elapsed
    }

    /// Median milliseconds of `runs` runs of the work that `run` enqueues on the compute stream. Waits
    /// for them.
    pub fn median_ms(&self, runs: usize, before_each: impl Fn(), run: impl Fn()) -> f32 {
        let pairs: Vec<[CUevent; 2]> = (0..runs)
            .map(|_| [self.timing_event(), self.timing_event()])
            .collect();
        for [before, after] in &pairs {
            before_each();
            self.record(*before, self.stream);
            run();
            self.record(*after, self.stream);
        }
        let mut times: Vec<f32> = pairs
            .iter()
            .map(|[before, after]| {
                self.wait_event("timing", *after);
                self.elapsed_ms(*before, *after)
            })
            .collect();
        pairs
            .into_iter()
            .flatten()
            .for_each(|event| self.destroy_event(event));
        times.sort_by(f32::total_cmp);
        times[runs / 2]
    }
}
