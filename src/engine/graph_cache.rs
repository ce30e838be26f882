//! CUDA-graph cache: one graph per (pass kind, buffer slot, chunk, ZeRO-3 gather state). Every
//! tensor keeps its address. Values that change between micro-batches are read from tensors, so a
//! replay needs no new arguments.
//!
//! A pass is captured as a whole if
//! - the device can capture the collectives of that many groups in one graph
//!   (`GPTRAIN_CUDA_GRAPHS`);
//! - the host takes part in no collective inside it, and no weight or gradient is copied between
//!   host and device;
//! - no earlier collective is still running. At ZeRO 1 to 3 the passes of the first micro-batch
//!   finish the gathers of the updated weights one by one, overlapped with computation, and are not
//!   captured;
//! - it may wait at its end for every collective that it began. This is free after the last
//!   micro-batch, because the update waits for its reductions anyway. At ZeRO 2 and 3 it costs the
//!   excess of the first block's reduce-scatter over the embedding's backward. Under a pipeline it
//!   is not free, because the previous stage waits for the last gradient. A pass that reduces is
//!   therefore not captured: at ZeRO 2 every backward, whose reductions then overlap the passes that
//!   follow. At ZeRO 3 in a pipeline none is captured, because the weights of the next chunk are gathered
//!   beside the passes of several micro-batches.
//!
//! All of this follows from the schedule, so the ranks of a group decide alike, as NCCL requires.

use super::groups::Groups;
use super::params::{GatherState, OffloadPlan, ShardedParams, zero_level};
use device::Graph;
use manifest::Manifest;
use model::MicroBatch;
use plan::schedule::Pass;
use std::cell::RefCell;
use std::collections::HashMap;

/// Kind of computation in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PassKind {
    /// `codes`: also computes the weights' fp8 codes, for the remaining micro-batches of the step.
    Forward {
        training: bool,
        codes: bool,
    },
    Backward(MicroBatch),
    Loss,
}

impl PassKind {
    fn name(self) -> &'static str {
        match self {
            PassKind::Forward { .. } => "forward",
            PassKind::Backward(_) => "backward",
            PassKind::Loss => "loss",
        }
    }
}

/// Cache key. Passes with equal keys enqueue the same ops on the same tensors.
#[derive(PartialEq, Eq, Hash)]
struct GraphKey {
    kind: PassKind,
    slot: usize,
    chunk: usize,
    before: GatherState,
    compressing: bool,
}

/// Captured pass, and the gather state after it.
struct CachedGraph {
    device_graph: Box<dyn Graph>,
    after: GatherState,
}

/// Captured passes of a rank.
pub struct GraphCache {
    capturable: bool,
    /// Number of groups with more than one rank whose collectives a pass contains.
    groups: usize,
    pipeline: bool,
    /// Whether every micro-batch's gradients are reduced (ZeRO 2 and 3).
    scatters: bool,
    graphs: RefCell<HashMap<GraphKey, CachedGraph>>,
}

impl GraphCache {
    pub fn new(groups: &Groups, m: &Manifest) -> GraphCache {
        let inside = [&*groups.tensor, &*groups.tp_async, groups.shard(), &*groups.copies];
        let OffloadPlan { weights, grads, .. } = OffloadPlan::from_manifest(m);
        let gathers_ahead = m.topology.pipeline > 1 && zero_level(groups, m) == 3;
        GraphCache {
            capturable: inside.iter().all(|group| group.capturable())
                && !weights
                && !grads
                && !gathers_ahead,
            groups: inside.iter().filter(|group| group.size() > 1).count(),
            pipeline: m.topology.pipeline > 1,
            scatters: zero_level(groups, m) >= 2,
            graphs: RefCell::default(),
        }
    }

    /// Drops every graph: the buffers have other addresses. No graph may be running.
    pub fn clear(&self) {
        self.graphs.borrow_mut().clear();
    }

    /// Whether gradients are reduced after a pass.
    fn reduces(&self, kind: PassKind) -> bool {
        matches!(kind, PassKind::Backward(at) if at.last || self.scatters && at.closes)
    }

    /// Whether a pass may wait for every collective that it began.
    fn joins(&self, kind: PassKind) -> bool {
        !(self.pipeline && self.groups > 0 && self.reduces(kind))
    }

    /// Runs a pass by calling `enqueue`, or replays its graph.
    pub fn run(&self, params: &ShardedParams, kind: PassKind, pass: Pass, enqueue: impl Fn()) {
        let op = kind.name();
        let micro = pass.micro;
        let chunk = pass.chunk;
        let _span = tracing::trace_span!("pass", gpu = true, op, micro, chunk).entered();
        if !(self.capturable && self.joins(kind)) {
            return enqueue();
        }
        let Some(before) = params.gather_state() else {
            enqueue();
            // Under a pipeline they are those of an earlier backward.
            if !self.pipeline {
                params.wait_reductions();
            }
            return;
        };
        // Only a pass that reduces gradients depends on compression.
        let compressing = params.is_compressing() && self.reduces(kind);
        let slot = pass.slot;
        let key = GraphKey { kind, slot, chunk, before: before.clone(), compressing };
        let mut graphs = self.graphs.borrow_mut();
        let graph = graphs.entry(key).or_insert_with(|| CachedGraph {
            device_graph: params.be.graph(self.groups),
            after: before.clone(),
        });
        let enqueued = graph.device_graph.run(&mut || {
            params.set_gather_state(before.clone());
            enqueue();
            params.wait_reductions();
        });
        if enqueued {
            graph.after = params.gather_state().expect("all reductions are done");
        } else {
            params.set_gather_state(graph.after.clone());
        }
    }
}
