//! CUDA-graph cache: one graph for each (pass kind, buffer slot, chunk, ZeRO-3 gather state). Every
//! tensor keeps its address and what changes from one micro-batch to the next is read from tensors,
//! so a replay needs no new arguments.
//!
//! A pass is captured as a whole where
//! - the device takes collectives of as many groups into one graph (`GPTRAIN_CUDA_GRAPHS`);
//! - no host takes part in the collectives inside, nor are weights copied from one, nor gradients to one;
//! - no collective that was begun before it is still running: at ZeRO 1 to 3 the first micro-batch's
//!   passes finish the gathers after the update one by one, during the computation, and are not captured;
//! - it may wait at its end for every collective it began. That is free after the last micro-batch,
//!   whose reductions the update awaits anyway, and at ZeRO 2 and 3 costs the time that the first
//!   block's reduce-scatter (one of as many as there are blocks) takes longer than the embedding's
//!   backward. Under a pipeline it is not free: the stage before waits for the last gradient, so the
//!   pass that reduces is not captured.
//!
//! All of this follows from the schedule, so the ranks of a group decide alike, as NCCL requires.

use super::groups::Groups;
use super::params::{GatherState, OnHost, ShardedParams};
use device::Graph;
use manifest::Manifest;
use model::MicroBatch;
use plan::schedule::Pass;
use std::cell::RefCell;
use std::collections::HashMap;

/// What a pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassKind {
    /// `codes`: also the weights' 8-bit floats, for the step's other micro-batches.
    Forward {
        training: bool,
        codes: bool,
    },
    Backward(MicroBatch),
    Loss,
}

impl PassKind {
    /// Whether gradients are reduced after it.
    fn reduces(self) -> bool {
        matches!(self, PassKind::Backward(at) if at.last)
    }

    fn name(self) -> &'static str {
        match self {
            PassKind::Forward { .. } => "forward",
            PassKind::Backward(_) => "backward",
            PassKind::Loss => "loss",
        }
    }
}

/// Passes with the same key enqueue the same ops on the same tensors.
#[derive(PartialEq, Eq, Hash)]
struct GraphKey {
    kind: PassKind,
    slot: usize,
    chunk: usize,
    before: GatherState,
    compressing: bool,
}

/// A captured pass, and the gather state it leaves.
struct CachedGraph {
    device_graph: Box<dyn Graph>,
    after: GatherState,
}

/// The captured passes of a rank.
pub struct GraphCache {
    capturable: bool,
    /// Groups of several ranks with collectives in a pass.
    groups: usize,
    pipeline: bool,
    graphs: RefCell<HashMap<GraphKey, CachedGraph>>,
}

impl GraphCache {
    pub fn new(groups: &Groups, m: &Manifest) -> GraphCache {
        let inside = [&groups.tensor, &groups.tp_async, &groups.data];
        let OnHost { weights, grads, .. } = OnHost::of(m);
        GraphCache {
            capturable: inside.iter().all(|group| group.capturable()) && !weights && !grads,
            groups: inside.iter().filter(|group| group.size() > 1).count(),
            pipeline: m.topology.pipeline > 1,
            graphs: RefCell::default(),
        }
    }

    /// Whether a pass may wait for every collective it began.
    fn joins(&self, kind: PassKind) -> bool {
        !(self.pipeline && self.groups > 0 && kind.reduces())
    }

    /// Runs a pass, or replays its graph. `enqueue` enqueues its ops.
    pub fn run(&self, params: &ShardedParams, kind: PassKind, pass: Pass, enqueue: impl Fn()) {
        let (op, micro, chunk) = (kind.name(), pass.micro, pass.chunk);
        let _span = tracing::trace_span!("pass", gpu = true, op, micro, chunk).entered();
        if !(self.capturable && self.joins(kind)) {
            return enqueue();
        }
        let Some(before) = params.gather_state() else {
            enqueue();
            return params.wait_reductions();
        };
        // The others reduce nothing.
        let compressing = params.compressing() && kind.reduces();
        let slot = pass.slot;
        let key = GraphKey { kind, slot, chunk, before, compressing };
        let mut graphs = self.graphs.borrow_mut();
        let graph = graphs.entry(key).or_insert_with(|| CachedGraph {
            device_graph: params.backend().graph(self.groups),
            after: before,
        });
        let enqueued = graph.device_graph.run(&mut || {
            params.set_gather_state(before);
            enqueue();
            params.wait_reductions();
        });
        match enqueued {
            true => graph.after = params.gather_state().expect("all reductions are done"),
            false => params.set_gather_state(graph.after),
        }
    }
}
