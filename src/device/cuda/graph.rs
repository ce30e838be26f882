//! CUDA graphs: a repeated pass as one launch.
//!
//! The first run enqueues op by op: functions, plans and algorithms are found then, which may wait
//! and allocate. The second run captures the ops into a graph, and from then on the host launches
//! that graph alone: the same kernels with the same arguments, so the same bits. Collectives on the
//! comm stream are captured too, as long as the same pass also waits for them.
//!
//! If the driver refuses to capture, a single GPU continues op by op and reports it once. In a group
//! the device fails instead: NCCL wants a collective captured on all ranks or on none. A pass with
//! collectives of several groups is captured only if the user asks for it: NVIDIA's guide to NCCL
//! warns of deadlocks when one thread launches graphs of several communicators.

use super::device::Device;
use super::library::call;
use super::observer::GraphLaunch;
use crate::Graph;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Variable that selects the passes that become graphs: none (0), those with collectives of at most
/// one group (1, the default), or all.
pub const GRAPHS: &str = "GPTRAIN_CUDA_GRAPHS";

/// Pass that is run op by op or captured.
pub struct CudaGraph {
    device: Arc<Device>,
    /// Groups of several ranks whose collectives it holds.
    groups: usize,
    state: State,
}

enum State {
    New,
    /// Enqueued op by op once.
    Warm,
    Captured(Captured),
}

/// An executable graph, and the observer's wrapper around each launch of it.
struct Captured {
    graph: CUgraphExec,
    observed: Option<GraphLaunch>,
}

impl CudaGraph {
    pub fn new(device: &Arc<Device>, groups: usize) -> CudaGraph {
        CudaGraph { device: device.clone(), groups, state: State::New }
    }

    /// Captures the ops of `enqueue` and launches the graph.
    fn capture_and_run(&mut self, enqueue: &mut dyn FnMut()) {
        let graph = capture(&self.device, enqueue);
        let graph = graph.and_then(|graph| instantiate(&self.device, graph));
        let observed = self.device.observed.take_captured();
        match graph {
            Ok(graph) => {
                let captured = Captured { graph, observed };
                self.launch(&captured);
                self.state = State::Captured(captured);
            }
            Err(why) if self.groups > 0 => {
                self.device
                    .fail(format!("no CUDA graph: {why}; set {GRAPHS}=0"));
            }
            Err(why) => {
                self.device.graphs.store(false, Relaxed);
                tracing::warn!("the GPU continues without CUDA graphs: {why}");
                enqueue();
            }
        }
    }

    fn launch(&self, captured: &Captured) {
        let device = &self.device;
        let graph = captured.graph;
        let launch = || {
            // SAFETY: the graph is executable (`instantiate`) and destroyed only in `drop`. The memory
            // and kernels that it uses are the backend's, which gives none back before it is dropped.
            device
                .call("a graph", |api| unsafe { call!(api, cuGraphLaunch(graph, device.stream)) });
            device.launched[1].fetch_add(1, Relaxed);
        };
        match &captured.observed {
            Some(observed) => observed(&launch),
            None => launch(),
        }
    }
}

impl Graph for CudaGraph {
    fn run(&mut self, enqueue: &mut dyn FnMut()) -> bool {
        let device = &self.device;
        let allowed = self.groups <= device.graph_groups && device.graphs.load(Relaxed);
        let captures = allowed && !device.failed();
        if device.is_profiled() {
            enqueue();
            return true;
        }
        match &self.state {
            State::Captured(captured) => {
                self.launch(captured);
                return false;
            }
            State::Warm if captures => self.capture_and_run(enqueue),
            _ => {
                enqueue();
                self.state = State::Warm;
            }
        }
        true
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let State::Captured(Captured { graph, .. }) = self.state {
            let device = &self.device;
            // After an error, or in a panic, the graph may wait for ranks that have ended.
            let over = device.failed() || std::thread::panicking();
            // SAFETY: this is the only owner of the graph; the driver keeps what a launch that still runs
            // needs (cuGraphExecDestroy).
            device.try_call(|api| unsafe {
                if !over {
                    call!(api, cuStreamSynchronize(device.stream));
                }
                call!(api, cuGraphExecDestroy(graph))
            });
        }
    }
}

/// Captures the ops that `enqueue` enqueues. The error is the driver's reason.
fn capture(device: &Device, enqueue: &mut dyn FnMut()) -> Result<CUgraph, String> {
    let stream = device.stream;
    // Calls of other threads do not disturb the capture.
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is the device's, and not being captured yet.
    let code = device.try_call(|api| unsafe { call!(api, cuStreamBeginCapture_v2(stream, mode)) });
    device.check("capturing", code)?;
    device.capturing.store(true, Relaxed);
    enqueue();
    device.capturing.store(false, Relaxed);
    let mut graph = null_mut();
    // SAFETY: the stream is being captured (above), by this thread; the handle is written to the live
    // variable.
    let code = device.try_call(|api| unsafe { call!(api, cuStreamEndCapture(stream, &mut graph)) });
    let refused = device.take_failure().map_or(Ok(()), Err);
    refused
        .and_then(|()| device.check("capturing", code))
        .map(|()| graph)
}

/// Makes a graph executable.
fn instantiate(device: &Device, graph: CUgraph) -> Result<CUgraphExec, String> {
    let mut ready = null_mut();
    // SAFETY: the graph is one that `capture` had from the driver, destroyed here and used no more; the
    // handle is written to the live variable.
    let code = device.try_call(|api| unsafe {
        let code = call!(api, cuGraphInstantiateWithFlags(&mut ready, graph, 0));
        call!(api, cuGraphDestroy(graph));
        code
    });
    device.check("making a graph", code).map(|()| ready)
}
