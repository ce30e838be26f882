//! Placement of a rank's weights, gradients and states.
//!
//! | ZeRO | weights | gradients | states |
//! |---|---|---|---|
//! | 0 | whole | whole, all-reduced after the last micro-batch | whole |
//! | 1 | whole, gathered after the update | whole, reduce-scattered after the last | own shard |
//! | 2 | as 1 | blocks: own shard, reduce-scattered and added after each micro-batch | own shard |
//! | 3 | own shard; each block is gathered one block ahead | as 2 | own shard |
//!
//! A bucket is divided into equal shards. The embedding and the head remain whole throughout a step.
//!
//! `topology.offload: full` stores each rank's shard (without ZeRO, everything) of blocks, embedding
//! and head matrix on the host. Two windows on the device hold the buckets in use, like the two
//! buffers of ZeRO 3. Under ZeRO two smaller windows hold the shards to be gathered next. The
//! gradients of blocks may also be stored on the host (`host_grads`).

use super::maxima::RankMaxima;
use super::ring::{WEIGHT_WINDOWS, Windows, gradient_windows};
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

/// Place of a bucket's weights or gradients while no pass uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// Whole on the device.
    Whole,
    /// This rank's shard on the device. A window holds the whole while it is in use.
    Shard,
    /// On the host. A window on the device holds the whole while it is in use.
    Host,
}

impl Residence {
    /// Whether a window holds the whole while it is in use.
    pub fn has_window(self) -> bool {
        self != Residence::Whole
    }
}

/// Memory of a bucket's weights or gradients.
pub struct Values {
    pub residence: Residence,
    /// The whole bucket on the device, for forward and backward. A window unless `residence` is `Whole`.
    pub whole: Tensor,
    /// Memory that keeps its values between two passes: the whole bucket, or this rank's shard.
    pub stored: Tensor,
    /// This rank's shard; the whole bucket at ZeRO 0.
    pub own: Tensor,
}

/// Memory of a bucket.
pub struct BucketState {
    pub module: Module,
    /// Elements of the layout that this rank updates.
    pub own: Range<usize>,
    pub weights: Values,
    /// Device copy of `weights.own` during a gather, if they are on the host.
    pub share: Option<Tensor>,
    pub grads: Values,
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
        Collective::AllGather {
            part: self.share.unwrap_or(self.weights.own),
            whole: self.weights.whole,
        }
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
    let weights_at = |bucket: &Bucket| {
        let is_block = bucket.module == Module::Block;
        let is_large = bucket.params.iter().any(|param| param.spec.vocab);
        if on_host.weights && (is_block || is_large) {
            Residence::Host
        } else if is_block && level == 3 {
            Residence::Shard
        } else {
            Residence::Whole
        }
    };
    let grads_at = |bucket: &Bucket| match bucket.module {
        Module::Block if on_host.grads => Residence::Host,
        Module::Block if level >= 2 => Residence::Shard,
        _ => Residence::Whole,
    };
    let in_turn = longest(layout, |bucket| weights_at(bucket).has_window());
    let gathered = in_turn.map(|len| Windows::plan(WEIGHT_WINDOWS, len, model, &arenas.weights));
    let shares = in_turn.filter(|_| on_host.weights && level > 0).map(|len| {
        let shard = len / layout.shard.dp.max(1);
        Windows::plan(WEIGHT_WINDOWS, shard, model, &arenas.weights)
    });
    let reduced = longest(layout, |bucket| grads_at(bucket).has_window())
        .map(|len| Windows::plan(gradient_windows(on_host.grads), len, DType::F32, &arenas.grads));
    let mut states = Vec::new();
    for (index, bucket) in layout.buckets.iter().enumerate() {
        let len = bucket.range.len();
        let own = match level {
            0 => bucket.range.clone(),
            _ => bucket.shard(layout.shard.dp, dp_rank),
        };
        let shard = own.len();
        let cut = |whole: Tensor| whole.span(own.start - bucket.range.start, shard);
        let weights = {
            let residence = weights_at(bucket);
            let whole = match &gathered {
                Some(windows) if residence.has_window() => windows.view(index, len),
                _ => arenas.weights.matrix(1, len, model),
            };
            let own = match residence {
                Residence::Host => arenas.host_weights.matrix(1, shard, model),
                _ if level == 3 => arenas.weights.matrix(1, shard, model),
                _ => cut(whole),
            };
            let stored = if residence.has_window() { own } else { whole };
            Values { residence, whole, stored, own }
        };
        let share = shares.as_ref().filter(|_| weights.residence.has_window());
        let grads = {
            let residence = grads_at(bucket);
            let whole = match &reduced {
                Some(windows) if residence.has_window() => windows.view(index, len),
                _ => arenas.grads.matrix(1, len, DType::F32),
            };
            let scatters = residence.has_window() && level >= 2;
            let stored_len = if scatters { shard } else { len };
            let stored = match residence {
                Residence::Whole => whole,
                Residence::Shard => arenas.grads.matrix(1, stored_len, DType::F32),
                Residence::Host => arenas.host_grads.matrix(1, stored_len, DType::F32),
            };
            let own = if scatters { stored } else { cut(stored) };
            Values { residence, whole, stored, own }
        };
        // Gradients that are fetched from the host accumulate, starting from zero.
        let overwrites = bucket.module == Module::Block && grads.residence != Residence::Host;
        states.push(BucketState {
            module: bucket.module,
            share: share.map(|windows| windows.view(index, shard)),
            weights_by_name: Params::new(bucket, weights.whole),
            grads_by_name: GradsByName::new(bucket, grads.whole, overwrites),
            own,
            weights,
            grads,
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

/// Lays out the states of every parameter of which this rank holds a part, in as much memory as the
/// rank with most needs. With `offload`, offloadable states are placed on the host.
pub fn plan_states(
    layout: &Layout,
    buckets: &[BucketState],
    rule: &dyn OptimizerRule,
    offload: bool,
    arenas: &Arenas,
) -> (Vec<ParamStates>, RankMaxima) {
    let on_host = |spec: &StateSpec| offload && spec.offloads;
    let specs: Vec<Vec<StateSpec>> = layout
        .params()
        .map(|param| rule.states(&param.spec))
        .collect();
    let weights: Vec<Tensor> = buckets.iter().map(|bucket| bucket.weights.own).collect();
    let maxima = RankMaxima::new(layout, &weights, &specs, on_host);
    let [on_device, offloaded] =
        [(&arenas.optimizer, maxima.device_bytes), (&arenas.host_states, maxima.host_bytes)]
            .map(|(arena, bytes)| Arena::over(arena.matrix(1, bytes, DType::U8)));
    let mut specs = specs.iter();
    let mut states = Vec::new();
    for (layout, bucket) in layout.buckets.iter().zip(buckets) {
        let own = &bucket.own;
        for (param, specs) in layout.params.iter().zip(&mut specs) {
            let start = param.offset.clamp(own.start, own.end);
            let end = param.range().end.clamp(start, own.end);
            let cut = |flat: Tensor| flat.span(start - own.start, end - start);
            let part = if start < end { start - param.offset..end - param.offset } else { 0..0 };
            assert_eq!(specs[0].name, MODEL, "{}: the first state", param.name);
            states.extend(ParamStates::plan(
                param,
                part,
                cut(bucket.weights.own),
                cut(bucket.grads.own),
                specs,
                on_host,
                |spec: &StateSpec, len| {
                    let arena = if on_host(spec) { &offloaded } else { &on_device };
                    arena.matrix(1, len, spec.dtype)
                },
            ));
        }
    }
    (states, maxima)
}
