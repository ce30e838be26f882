//! Work that repeats, as one launch.
//!
//! The first time it is done op by op: functions, plans and algorithms are found then, which may
//! wait and allocate. The second time the driver captures what is asked into a graph instead of doing
//! it, and from then on the host asks for the graph alone: the same kernels with the same arguments,
//! so the same bits. What a collective does on the stream beside is captured too, as long as it is
//! finished within the same work.
//!
//! A GPU that does not capture goes on op by op, and says so once. In a group it fails instead: NCCL
//! wants a collective to be captured on all ranks or on none.

use super::driver::{Code, Device, Handle, Launch};
use super::preflight::GRAPHS;
use crate::device::Repeat;
use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Other threads may call the driver as they like meanwhile.
const THREAD_LOCAL: c_uint = 1;

/// One piece of work.
pub struct Graph {
    device: Arc<Device>,
    with_others: bool,
    known: Known,
}

enum Known {
    Nothing,
    DoneOnce,
    ByHeart(Learned),
}

/// A graph, and how its launch is made known.
struct Learned {
    graph: Handle,
    tell: Option<Launch>,
}

impl Graph {
    pub fn new(device: &Arc<Device>, with_others: bool) -> Graph {
        Graph { device: device.clone(), with_others, known: Known::Nothing }
    }

    /// Learns the work and does it.
    fn learn(&mut self, ask: &mut dyn FnMut()) {
        let graph = capture(&self.device, ask).and_then(|graph| instantiate(&self.device, graph));
        let tell = self.device.witness().map(|witness| witness.captured());
        match graph {
            Ok(graph) => {
                let learned = Learned { graph, tell };
                self.launch(&learned);
                self.known = Known::ByHeart(learned);
            }
            Err(why) if self.with_others => {
                self.device.fail(format!("no CUDA graph: {why}; set {GRAPHS}=0"));
            }
            Err(why) => {
                self.device.graphs.store(false, Relaxed);
                self.device.note(format!("the GPU goes on without CUDA graphs: {why}"));
                ask();
            }
        }
    }

    fn launch(&self, learned: &Learned) {
        let (device, graph) = (&self.device, learned.graph);
        let launch = || {
            device.call("a graph", |api| unsafe { (api.cuGraphLaunch)(graph, device.stream) });
            device.count_graph();
        };
        match &learned.tell {
            Some(tell) => tell(&launch),
            None => launch(),
        }
    }
}

impl Repeat for Graph {
    fn again(&mut self, ask: &mut dyn FnMut()) -> bool {
        let learns = self.device.graphs.load(Relaxed) && !self.device.failed();
        match &self.known {
            Known::ByHeart(learned) => {
                self.launch(learned);
                return false;
            }
            Known::DoneOnce if learns => self.learn(ask),
            _ => {
                ask();
                self.known = Known::DoneOnce;
            }
        }
        true
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Known::ByHeart(Learned { graph, .. }) = self.known {
            let device = &self.device;
            // After an error, or in a panic, it may wait for others who never come.
            let over = device.failed() || std::thread::panicking();
            device.try_call(|api| unsafe {
                if !over {
                    (api.cuStreamSynchronize)(device.stream);
                }
                (api.cuGraphExecDestroy)(graph)
            });
        }
    }
}

/// What `ask` asks for, or why the driver does not capture it.
fn capture(device: &Device, ask: &mut dyn FnMut()) -> Result<Handle, String> {
    let stream = device.stream;
    let code =
        device.try_call(|api| unsafe { (api.cuStreamBeginCapture_v2)(stream, THREAD_LOCAL) });
    done(device, "capturing", code)?;
    device.capturing.store(true, Relaxed);
    ask();
    device.capturing.store(false, Relaxed);
    let mut graph = null_mut();
    let code = device.try_call(|api| unsafe { (api.cuStreamEndCapture)(stream, &mut graph) });
    let refused = device.forgive().map_or(Ok(()), Err);
    refused.and_then(|()| done(device, "capturing", code)).map(|()| graph)
}

/// The graph, ready to be launched.
fn instantiate(device: &Device, graph: Handle) -> Result<Handle, String> {
    let mut ready = null_mut();
    let code = device.try_call(|api| unsafe {
        let code = (api.cuGraphInstantiateWithFlags)(&mut ready, graph, 0);
        (api.cuGraphDestroy)(graph);
        code
    });
    done(device, "making a graph", code).map(|()| ready)
}

fn done(device: &Device, doing: &str, code: Code) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{doing}: {}", device.error(code))) }
}
