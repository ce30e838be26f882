//! Placement of a rank's weights, gradients and states.
//!
//! | ZeRO | weights | gradients | states |
//! |---|---|---|---|
//! | 0 | whole | whole, all-reduced after the last micro-batch | whole |
//! | 1 | whole, gathered after the update | whole, reduce-scattered after the last | own shard |
//! | 2 | as 1 | blocks: own shard, reduce-scattered after each micro-batch | own shard |
//! | 3 | own shard; each block is gathered one block ahead | as 2 | own shard |
//!
//! A bucket is divided into equal shards. The embedding and the head remain whole throughout a step.
//!
//! `topology.offload: full` stores each rank's shard (without ZeRO, everything) of blocks, embedding
//! and head matrix on the host. Two windows on the device hold the buckets in use, like the two
//! buffers of ZeRO 3. Under ZeRO two smaller windows hold the shards to be gathered next. The
//! gradients of blocks may also be stored on the host (`host_grads`).

use crate::arenas::Arenas;
use crate::rule::OptimizerRule;
use crate::states::{MODEL, ParamStates, StateSpec};
use base::DType;
use comm::Collective;
use device::{Arena, Backend, Tensor};
use manifest::{GradientHome, Manifest, OffloadWhat};
use model::layers::fp8;
use model::{Bucket, Layout, Module, Params};
use std::ops::Range;

/// Parts of a rank's memory that are on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct OffloadPlan {
    pub weights: bool,
    /// Gradients of blocks, except while they are computed.
    pub grads: bool,
    pub states: bool,
}

impl OffloadPlan {
    /// Resolves the manifest's offload settings. Gradients stay on the device if the manifest
    /// leaves it open.
    pub fn from_manifest(m: &Manifest) -> OffloadPlan {
        let offload = m.topology.offload;
        let states = offload.what != OffloadWhat::None;
        OffloadPlan {
            weights: offload.what == OffloadWhat::Full,
            grads: states && offload.gradients == GradientHome::Host,
            states,
        }
    }
}

/// Gradient buffers that blocks share: one is computed in and one is reduced; with gradients on the
/// host, a third is copied to or from it.
const WINDOWS: [usize; 2] = [2, 3];

/// Memory of a bucket's weights and gradients: whole (for forward and backward, possibly only while
/// in use), and this rank's own shard (everything at ZeRO 0).
pub struct BucketState {
    pub module: Module,
    /// Whether the weights are whole on the device only while in use.
    pub windowed: bool,
    /// Elements of the layout that this rank updates.
    pub own: Range<usize>,
    pub weights: Tensor,
    pub own_weights: Tensor,
    /// Device copy of `own_weights` during a gather, if they are on the host.
    pub share: Option<Tensor>,
    pub grads: Tensor,
    pub own_grads: Tensor,
    /// On the host: running sums of the gradients; whole up to ZeRO 1, else this rank's shard.
    /// `own_grads` is a view of it.
    pub host_grads: Option<Tensor>,
    pub weights_by_name: Params,
    pub grads_by_name: GradsByName,
}

/// A bucket's gradients by parameter, as backward writes them.
pub struct GradsByName {
    /// Views to accumulate into, after an earlier micro-batch.
    pub accumulate: Params,
    /// Views for the first micro-batch: matrix products of blocks overwrite.
    pub overwrite: Params,
    /// Tensors to zero before the first micro-batch.
    pub zeroed: Vec<Tensor>,
}

impl GradsByName {
    /// Views of a bucket's `grads`. With `overwrites`, matrix products overwrite in the first
    /// micro-batch; otherwise everything accumulates.
    fn new(bucket: &Bucket, grads: Tensor, overwrites: bool) -> GradsByName {
        let accumulate = Params::new(bucket, grads);
        let (overwrite, zeroed) = if overwrites {
            (accumulate.fresh(), sums_of_ops(bucket, grads))
        } else {
            (accumulate.clone(), vec![grads])
        };
        GradsByName { accumulate, overwrite, zeroed }
    }
}

impl BucketState {
    /// Gather of the bucket's weights. If they are on the host, `share` must hold this rank's shard.
    pub fn gather(&self) -> Collective {
        Collective::AllGather { part: self.share.unwrap_or(self.own_weights), whole: self.weights }
    }

    /// This rank's share of `whole`, weights or gradients, for a bucket that starts at `start`. It is the
    /// destination of a reduce-scatter.
    pub fn own_part(&self, whole: Tensor, start: usize) -> Tensor {
        whole.span(self.own.start - start, self.own.len())
    }
}

/// Lays out the buckets of data-parallel rank `dp_rank`.
pub fn plan_buckets(
    level: u8,
    dp_rank: usize,
    layout: &Layout,
    model: DType,
    on_host: OffloadPlan,
    arenas: &Arenas,
) -> Vec<BucketState> {
    let is_block = |bucket: &Bucket| bucket.module == Module::Block;
    let is_windowed = |bucket: &Bucket| {
        let is_large = bucket.params.iter().any(|param| param.spec.vocab);
        level == 3 && is_block(bucket) || on_host.weights && (is_block(bucket) || is_large)
    };
    let window = longest(layout, is_windowed);
    let gathered = window.map(|len| [0, 1].map(|_| arenas.weights.matrix(1, len, model)));
    let shares = window.filter(|_| on_host.weights && level > 0).map(|len| {
        let shard = len / layout.shard.dp.max(1);
        [0, 1].map(|_| arenas.weights.matrix(1, shard, model))
    });
    let windows = WINDOWS[usize::from(on_host.grads)];
    let mut reduced = Vec::new();
    if let Some(len) = longest(layout, is_block).filter(|_| level >= 2 || on_host.grads) {
        reduced.extend((0..windows).map(|_| arenas.grads.matrix(1, len, DType::F32)));
    }
    let mut states = Vec::new();
    for (i, bucket) in layout.buckets.iter().enumerate() {
        let len = bucket.range.len();
        let is_block = is_block(bucket);
        let own = match level {
            0 => bucket.range.clone(),
            _ => bucket.shard(layout.shard.dp, dp_rank),
        };
        let offset = own.start - bucket.range.start;
        let shard = own.len();
        let windowed = is_windowed(bucket);
        let weights = match &gathered {
            Some(buffers) if windowed => buffers[i % 2].span(0, len),
            _ => arenas.weights.matrix(1, len, model),
        };
        let grads = if is_block && !reduced.is_empty() {
            reduced[i % windows].span(0, len)
        } else {
            arenas.grads.matrix(1, len, DType::F32)
        };
        let own_weights = if windowed && on_host.weights {
            arenas.host_weights.matrix(1, shard, model)
        } else if level == 3 {
            arenas.weights.matrix(1, shard, model)
        } else {
            weights.span(offset, shard)
        };
        let share = shares
            .filter(|_| windowed)
            .map(|shares| shares[i % 2].span(0, shard));
        let host_len = if level >= 2 { shard } else { len };
        let host_grads =
            (on_host.grads && is_block).then(|| arenas.host_grads.matrix(1, host_len, DType::F32));
        let own_grads = match (host_grads, level >= 2 && is_block) {
            (Some(own), true) => own,
            (Some(whole), false) => whole.span(offset, shard),
            (None, true) => arenas.grads.matrix(1, shard, DType::F32),
            (None, false) => grads.span(offset, shard),
        };
        states.push(BucketState {
            module: bucket.module,
            windowed,
            own,
            weights,
            own_weights,
            share,
            grads,
            own_grads,
            host_grads,
            weights_by_name: Params::new(bucket, weights),
            // Gradients that are fetched from the host accumulate, starting from zero.
            grads_by_name: GradsByName::new(bucket, grads, is_block && host_grads.is_none()),
        });
    }
    states
}

/// Elements of the longest of some buckets; None without one.
fn longest(layout: &Layout, counts: impl Fn(&Bucket) -> bool) -> Option<usize> {
    let buckets = layout.buckets.iter().filter(|bucket| counts(bucket));
    buckets.map(|bucket| bucket.range.len()).max()
}

/// Lays out the fp8 state of the blocks' matrices, with or without their codes.
pub fn plan_fp8_codes(
    buckets: &mut [BucketState],
    layout: &Layout,
    codes: bool,
    be: &dyn Backend,
    at: &Arena,
) {
    for (state, bucket) in buckets.iter_mut().zip(&layout.buckets) {
        state.weights_by_name = state
            .weights_by_name
            .clone()
            .with_fp8(bucket, |size| fp8::plan_weight(be, size, codes, at));
    }
}

/// Gradients of a block that no matrix product overwrites, merged into as few tensors as possible.
fn sums_of_ops(bucket: &Bucket, grads: Tensor) -> Vec<Tensor> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let mut open = false;
    for param in &bucket.params {
        let sum = !param.spec.weight.is_of_product();
        match pieces.last_mut() {
            Some(piece) if sum && open => piece.end = param.range().end,
            _ if sum => pieces.push(param.range()),
            _ => {}
        }
        open = sum;
    }
    pieces
        .iter()
        .map(|piece| grads.span(piece.start - bucket.range.start, piece.len()))
        .collect()
}

/// Lays out the states of every parameter of which this rank holds a part. With `offload`,
/// offloadable states are placed on the host.
pub fn plan_states(
    layout: &Layout,
    buckets: &[BucketState],
    rule: &dyn OptimizerRule,
    offload: bool,
    arenas: &Arenas,
) -> Vec<ParamStates> {
    let on_host = |spec: &StateSpec| offload && spec.offloads;
    let mut states = Vec::new();
    for (layout, bucket) in layout.buckets.iter().zip(buckets) {
        let own = &bucket.own;
        for param in &layout.params {
            let start = param.offset.clamp(own.start, own.end);
            let end = param.range().end.clamp(start, own.end);
            let cut = |flat: Tensor| flat.span(start - own.start, end - start);
            let part = if start < end { start - param.offset..end - param.offset } else { 0..0 };
            let specs = rule.states(&param.spec);
            assert_eq!(specs[0].name, MODEL, "{}: the first state", param.name);
            states.extend(ParamStates::plan(
                param,
                part,
                cut(bucket.own_weights),
                cut(bucket.own_grads),
                &specs,
                on_host,
                |spec: &StateSpec, len| {
                    let arena = if on_host(spec) { &arenas.host_states } else { &arenas.optimizer };
                    arena.matrix(1, len, spec.dtype)
                },
            ));
        }
    }
    states
}
