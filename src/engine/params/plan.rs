//! Where a rank's weights, gradients and states lie.
//!
//! | ZeRO | weights | gradients | states |
//! |---|---|---|---|
//! | 0 | whole | whole, all-reduced after the last micro-batch | whole |
//! | 1 | whole, gathered after the update | whole, reduce-scattered after the last | own shard |
//! | 2 | as 1 | blocks: own shard, reduce-scattered after each micro-batch | own shard |
//! | 3 | own shard; a block's are gathered one ahead | as 2 | own shard |
//!
//! A bucket is divided in equal shards. The embedding and the head stay whole through a step.
//!
//! With `topology.offload: full` the own share (without ZeRO, all) of blocks, of the embedding and of
//! the head's matrix lies on the host. Two windows on the device hold what is in use, as the two
//! buffers of ZeRO 3 do; two smaller ones under ZeRO the own shares that are gathered next. Gradients of blocks may lie there too (`host_grads`).

use crate::arenas::Arenas;
use crate::rule::OptimizerRule;
use crate::states::{MODEL, PENDING, ParamStates, StateSpec};
use base::DType;
use comm::Collective;
use device::{Arena, Backend, Tensor};
use manifest::{GradientHome, Manifest, OffloadWhat};
use model::layers::fp8;
use model::{Bucket, Layout, Module, Params};
use std::ops::Range;

/// What of a rank's memory lies on its host.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnHost {
    pub weights: bool,
    /// Gradients of blocks, but for those that are being computed.
    pub grads: bool,
    pub states: bool,
    /// The gradient of an update that is late.
    pub pending: bool,
}

impl OnHost {
    /// Gradients, where the manifest leaves it open, lie on the device.
    pub fn of(m: &Manifest) -> OnHost {
        let offload = m.topology.offload;
        let states = offload.what != OffloadWhat::None;
        OnHost {
            weights: offload.what == OffloadWhat::Full,
            grads: states && offload.gradients == GradientHome::Host,
            states,
            pending: states && offload.delay > 0,
        }
    }
}

/// Buffers of gradients that blocks take in turn: one is computed, one reduced; on its way to the
/// host or from it, one more.
const WINDOWS: [usize; 2] = [2, 3];

/// Where a bucket's weights and gradients lie: whole (for forward and backward, perhaps for a
/// while), and this rank's own shard (all of it, at ZeRO 0).
pub struct BucketState {
    pub module: Module,
    /// Whether its weights are whole on the device only while they are used.
    pub windowed: bool,
    /// What this rank updates, in elements of the layout.
    pub own: Range<usize>,
    pub weights: Tensor,
    pub own_weights: Tensor,
    /// On the device, for a while: `own_weights`, where those lie on the host and are gathered.
    pub share: Option<Tensor>,
    pub grads: Tensor,
    pub own_grads: Tensor,
    /// On the host: the gradients so far, whole up to ZeRO 1, else the own share; `own_grads` are of
    /// these.
    pub host_grads: Option<Tensor>,
    /// On the host: the own share of the gradients of an update that is late.
    pub pending: Option<Tensor>,
    pub weights_by_name: Params,
    pub grads_by_name: GradsByName,
}

/// How backward finds a bucket's gradients.
pub struct GradsByName {
    /// Where other micro-batches have left some.
    pub begun: Params,
    /// Where none has: products of blocks overwrite.
    pub fresh: Params,
    /// What must be zero before gradients are added up.
    pub zeroed: Vec<Tensor>,
}

impl GradsByName {
    /// Of the gradients `grads` of a bucket, in which products overwrite or everything adds up.
    fn new(bucket: &Bucket, grads: Tensor, overwrites: bool) -> GradsByName {
        let begun = Params::new(bucket, grads);
        match overwrites {
            true => GradsByName { fresh: begun.fresh(), begun, zeroed: sums_of_ops(bucket, grads) },
            false => GradsByName { fresh: begun.clone(), begun, zeroed: vec![grads] },
        }
    }
}

impl BucketState {
    /// What lies on the host has been copied to `share`.
    pub fn gather(&self) -> Collective {
        Collective::AllGather { part: self.share.unwrap_or(self.own_weights), whole: self.weights }
    }

    /// Where this rank's share of the weights lies among all of a bucket that starts at `start`.
    pub fn own_window(&self, start: usize) -> Tensor {
        self.weights.span(self.own.start - start, self.own.len())
    }

    /// Where this rank's shard of a reduce-scatter comes to lie, in a bucket that starts at `start`.
    pub fn scattered_grads(&self, start: usize) -> Tensor {
        self.grads.span(self.own.start - start, self.own.len())
    }
}

/// Lays out the buckets of the rank `dp_rank` of the layout's data-parallel ranks.
pub fn buckets(
    level: u8,
    dp_rank: usize,
    layout: &Layout,
    model: DType,
    on_host: OnHost,
    at: &Arenas,
) -> Vec<BucketState> {
    let longest = layout.buckets.iter().map(|bucket| bucket.range.len()).max().unwrap_or(0);
    let buffer = |arena: &Arena, dtype| arena.matrix(1, longest, dtype);
    let large = |bucket: &Bucket| bucket.params.iter().any(|param| param.spec.vocab);
    let gathered = (level == 3 || on_host.weights)
        .then(|| [buffer(&at.weights, model), buffer(&at.weights, model)]);
    let longest_share = longest / layout.shard.dp.max(1);
    let share = || at.weights.matrix(1, longest_share, model);
    let shares = (on_host.weights && level > 0).then(|| [share(), share()]);
    let windows = WINDOWS[usize::from(on_host.grads)];
    let reduced = || (0..windows).map(|_| buffer(&at.grads, DType::F32)).collect::<Vec<_>>();
    let reduced = (level >= 2 || on_host.grads).then(reduced);
    let lay = |(i, bucket): (usize, &Bucket)| {
        let len = bucket.range.len();
        let block = bucket.module == Module::Block;
        let own = match level {
            0 => bucket.range.clone(),
            _ => bucket.shard(layout.shard.dp, dp_rank),
        };
        let (offset, shard) = (own.start - bucket.range.start, own.len());
        let windowed = gathered.is_some() && (block || on_host.weights && large(bucket));
        let weights = match &gathered {
            Some(buffers) if windowed => buffers[i % 2].span(0, len),
            _ => at.weights.matrix(1, len, model),
        };
        let grads = match &reduced {
            Some(buffers) if block => buffers[i % windows].span(0, len),
            _ => at.grads.matrix(1, len, DType::F32),
        };
        let own_weights = match level == 3 {
            _ if windowed && on_host.weights => at.host_weights.matrix(1, shard, model),
            true => at.weights.matrix(1, shard, model),
            false => weights.span(offset, shard),
        };
        let share = shares.filter(|_| windowed).map(|shares| shares[i % 2].span(0, shard));
        let host = |arena: &Arena, len| arena.matrix(1, len, DType::F32);
        let kept = if level >= 2 { shard } else { len };
        let host_grads = (on_host.grads && block).then(|| host(&at.host_grads, kept));
        let own_grads = match (host_grads, level >= 2 && block) {
            (Some(own), true) => own,
            (Some(whole), false) => whole.span(offset, shard),
            (None, true) => at.grads.matrix(1, shard, DType::F32),
            (None, false) => grads.span(offset, shard),
        };
        let pending = on_host.pending.then(|| host(&at.host_states, shard));
        BucketState {
            module: bucket.module,
            windowed,
            own,
            weights,
            own_weights,
            share,
            grads,
            own_grads,
            host_grads,
            pending,
            weights_by_name: Params::new(bucket, weights),
            // What comes from the host and goes there is added up, from zero on.
            grads_by_name: GradsByName::new(bucket, grads, block && host_grads.is_none()),
        }
    };
    layout.buckets.iter().enumerate().map(lay).collect()
}

/// Lays out what is kept of the blocks' matrices in 8-bit floats, with their codes or without.
pub fn keep_codes(
    buckets: &mut [BucketState],
    layout: &Layout,
    codes: bool,
    be: &dyn Backend,
    at: &Arena,
) {
    for (state, bucket) in buckets.iter_mut().zip(&layout.buckets) {
        let keep = |size| fp8::keep(be, size, codes, at);
        state.weights_by_name = state.weights_by_name.clone().keeping(bucket, keep);
    }
}

/// The gradients of a block that no product overwrites, in as few pieces as they lie in.
fn sums_of_ops(bucket: &Bucket, grads: Tensor) -> Vec<Tensor> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let mut open = false;
    for param in &bucket.params {
        let sum = !param.spec.weight.is_of_product();
        match pieces.last_mut() {
            Some(piece) if sum && open => piece.end = param.range().end,
            _ if sum => pieces.push(param.range()),
            _ => (),
        }
        open = sum;
    }
    let tensor = |piece: &Range<usize>| grads.span(piece.start - bucket.range.start, piece.len());
    pieces.iter().map(tensor).collect()
}

/// Lays out the states of every parameter that this rank keeps something of; with `offload` those
/// that may lie on the host lie there, and what waits for an update always does.
pub fn states(
    layout: &Layout,
    buckets: &[BucketState],
    rule: &dyn OptimizerRule,
    offload: bool,
    at: &Arenas,
) -> Vec<ParamStates> {
    let on_host = |spec: &StateSpec| offload && spec.offloads;
    let mut all = Vec::new();
    for (bucket, kept) in layout.buckets.iter().zip(buckets) {
        for param in &bucket.params {
            let start = param.offset.clamp(kept.own.start, kept.own.end);
            let end = param.range().end.clamp(start, kept.own.end);
            let cut = |flat: Tensor| flat.span(start - kept.own.start, end - start);
            let part = match start < end {
                true => start - param.offset..end - param.offset,
                false => 0..0,
            };
            let specs = rule.states(&param.spec);
            assert_eq!(specs[0].name, MODEL, "{}: the first state", param.name);
            let place = |spec: &StateSpec, len| {
                if let (PENDING, Some(pending)) = (spec.name, kept.pending) {
                    return cut(pending);
                }
                let arena = if on_host(spec) { &at.host_states } else { &at.optimizer };
                arena.matrix(1, len, spec.dtype)
            };
            let tensors = [cut(kept.own_weights), cut(kept.own_grads)];
            all.extend(ParamStates::plan(param, part, tensors, &specs, on_host, place));
        }
    }
    all
}
