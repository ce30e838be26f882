//! Placement of a rank's weights, gradients and states.
//!
//! | ZeRO | weights | gradients | states |
//! |---|---|---|---|
//! | 0 | whole | whole, all-reduced after the last micro-batch | whole |
//! | 1 | whole, gathered after the update | whole, reduce-scattered after the last | own shard |
//! | 2 | as 1 | blocks: own shard, reduce-scattered and added after each micro-batch | own shard |
//! | 3 | own shard; each block is gathered one block ahead, in a pipeline one chunk ahead | as 2 | own shard |
//!
//! A bucket is divided into equal shards. The embedding and the head remain whole throughout a step.
//!
//! With two levels (`topology.shard`) the shards of weights and gradients above are those of a shard
//! group, and a rank updates one piece of its shard (`plan::levels`). States are those of the piece. Where
//! the copies have equal states (`topology.states`), the piece is the whole shard.
//!
//! `topology.offload: full` stores each rank's shard (without ZeRO, everything) of blocks, embedding
//! and head matrix on the host. Two windows on the device hold the buckets in use, like the two
//! buffers of ZeRO 3. Under ZeRO two smaller windows hold the shards to be gathered next. The
//! gradients of blocks may also be stored on the host (`host_grads`).

use super::maxima::RankMaxima;
use super::ring::{SHARE_WINDOWS, WindowCounts, Windows};
use crate::arenas::Arenas;
use crate::rule::OptimizerRule;
use crate::states::{MODEL, ParamStates, StateSpec};
use base::DType;
use comm::Collective;
use device::{Arena, Backend, Tensor};
use manifest::{GradientHome, Manifest, OffloadWhat, Schedule};
use model::layers::fp8;
use model::{Bucket, Chunk, Layout, Module, Params};
use plan::levels::Levels;
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

    /// Numbers of windows of a rank at an effective ZeRO level. Breadth first, ZeRO 3 holds the weights of a
    /// chunk whole for all micro-batches while those of the next are gathered, and `topology.zero_every` the
    /// gradients of a chunk.
    pub fn count_windows(self, m: &Manifest, level: u8, chunks: &[Chunk]) -> WindowCounts {
        let blocks = chunks.iter().map(|chunk| chunk.layers.len()).max();
        let blocks = blocks.unwrap_or(0).max(1);
        let mut counts = WindowCounts::by_block(self.grads);
        let by_chunk = m.topology.schedule == Schedule::BreadthFirst;
        if by_chunk && level == 3 && !self.weights {
            (counts.weights, counts.ahead) = (2 * blocks, blocks);
        }
        if m.topology.zero_every > 1 && level >= 2 {
            counts.gradients = counts.gradients.max(blocks);
        }
        counts
    }

    fn place_weights(self, bucket: &Bucket, level: u8) -> Residence {
        let is_block = bucket.module == Module::Block;
        let is_large = bucket.params.iter().any(|param| param.spec.vocab);
        if self.weights && (is_block || is_large) {
            Residence::Host
        } else if is_block && level == 3 {
            Residence::Shard
        } else {
            Residence::Whole
        }
    }

    fn place_grads(self, bucket: &Bucket, level: u8) -> Residence {
        match bucket.module {
            Module::Block if self.grads => Residence::Host,
            Module::Block if level >= 2 => Residence::Shard,
            _ => Residence::Whole,
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
    /// Piece that this rank updates; the whole bucket at ZeRO 0.
    pub own: Tensor,
}

/// Group of a collective over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// The ranks that divide one copy of the weights (`Groups::shard`).
    Shard,
    /// The ranks that hold the same shard.
    SameShard,
}

/// Memory of a bucket.
pub struct BucketState {
    pub module: Module,
    /// First element of the bucket in the layout.
    start: usize,
    /// Elements of the layout that this rank updates.
    pub own: Range<usize>,
    /// Elements of this rank's shard, of which `own` is a piece; also at ZeRO 0, where `own` is whole.
    pub shard: Range<usize>,
    /// Elements that `weights.stored` holds.
    pub held: Range<usize>,
    levels: Levels,
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
    /// Gathers that make the bucket's weights whole, in their order. If they are on the host, `share` must
    /// hold this rank's piece.
    pub fn gathers(&self) -> Vec<(Among, Collective)> {
        let Values { residence, whole, stored, own } = self.weights;
        let part = self.share.unwrap_or(own);
        if residence == Residence::Shard {
            return vec![(Among::Shard, Collective::AllGather { part: stored, whole })];
        }
        if !self.levels.copies_divide_shard() {
            return vec![(Among::Shard, Collective::AllGather { part, whole })];
        }
        let shard = self.shard_part(whole);
        vec![
            (Among::SameShard, Collective::AllGather { part, whole: shard }),
            (Among::Shard, Collective::AllGather { part: shard, whole }),
        ]
    }

    /// Gathers that follow an update: they make a bucket without a window whole, and the stored shard of
    /// another where copies update pieces of it.
    pub fn gathers_after_update(&self) -> Vec<(Among, Collective)> {
        let Values { residence, stored, own, .. } = self.weights;
        match residence {
            Residence::Whole => self.gathers(),
            Residence::Shard if self.levels.copies_divide_shard() => {
                vec![(Among::SameShard, Collective::AllGather { part: own, whole: stored })]
            }
            Residence::Shard | Residence::Host => Vec::new(),
        }
    }

    /// Sums of the gradients of a micro-batch over replicas, in their order. With two levels, the copies
    /// sum a shard that remains on the device only after the last micro-batch (`sum_of_copies`).
    pub fn sums(&self, level: u8) -> Vec<(Among, Collective)> {
        let whole = self.grads.whole;
        if level == 0 && self.levels.copies == 1 {
            return vec![(Among::Shard, Collective::AllReduce(whole))];
        }
        let shard = self.shard_part(whole);
        let scatter = (Among::Shard, Collective::ReduceScatter { whole, part: shard });
        match self.grads.residence {
            _ if level == 0 => vec![
                scatter,
                (Among::SameShard, Collective::AllReduce(shard)),
                (Among::Shard, Collective::AllGather { part: shard, whole }),
            ],
            Residence::Whole | Residence::Host if self.levels.copies > 1 => {
                vec![scatter, self.sum_shard(shard, self.own_part(whole))]
            }
            _ => vec![scatter],
        }
    }

    /// Sum of the copies' stored shards of gradients after the last micro-batch; None if there is one
    /// copy, or `sums` includes it.
    pub fn sum_of_copies(&self) -> Option<(Among, Collective)> {
        let Values { residence, stored, own, .. } = self.grads;
        let is_due = residence == Residence::Shard && self.levels.copies > 1;
        is_due.then(|| self.sum_shard(stored, own))
    }

    /// Sum of a shard of gradients over its copies, of which this rank needs the piece `own`.
    fn sum_shard(&self, shard: Tensor, own: Tensor) -> (Among, Collective) {
        let sum = if self.levels.copies_divide_shard() {
            Collective::ReduceScatter { whole: shard, part: own }
        } else {
            Collective::AllReduce(shard)
        };
        (Among::SameShard, sum)
    }

    /// Elements that this rank updates, of `whole`, weights or gradients.
    pub fn own_part(&self, whole: Tensor) -> Tensor {
        whole.span(self.own.start - self.start, self.own.len())
    }

    /// Elements of this rank's shard, of `whole`.
    fn shard_part(&self, whole: Tensor) -> Tensor {
        whole.span(self.shard.start - self.start, self.shard.len())
    }

    /// Reduced gradients of a micro-batch in the window, which are added to the stored ones.
    pub fn reduced_part(&self) -> Tensor {
        let whole = self.grads.whole;
        match self.grads.residence {
            Residence::Shard => self.shard_part(whole),
            Residence::Whole | Residence::Host => self.own_part(whole),
        }
    }
}

/// Lays out the buckets of a rank at these levels of the replicas.
pub fn plan_buckets(
    level: u8,
    levels: Levels,
    layout: &Layout,
    model: DType,
    on_host: OffloadPlan,
    windows: WindowCounts,
    arenas: &Arenas,
) -> Vec<BucketState> {
    let weights_at = |bucket: &Bucket| on_host.place_weights(bucket, level);
    let grads_at = |bucket: &Bucket| on_host.place_grads(bucket, level);
    let in_turn = longest(layout, |bucket| weights_at(bucket).has_window());
    let gathered = in_turn.map(|len| Windows::plan(windows.weights, len, model, &arenas.weights));
    let shares = in_turn
        .filter(|_| on_host.weights && level > 0)
        .map(|len| Windows::plan(SHARE_WINDOWS, len / levels.pieces(), model, &arenas.weights));
    let reduced = longest(layout, |bucket| grads_at(bucket).has_window())
        .map(|len| Windows::plan(windows.gradients, len, DType::F32, &arenas.grads));
    let mut states = Vec::new();
    for (index, bucket) in layout.buckets.iter().enumerate() {
        let len = bucket.range.len();
        let own = match level {
            0 => bucket.range.clone(),
            _ => bucket.shard(levels.pieces(), levels.piece()),
        };
        let shard = bucket.shard(levels.shards, levels.shard);
        let piece = own.len();
        let cut = |whole: Tensor| whole.span(own.start - bucket.range.start, piece);
        let cut_shard = |stored: Tensor| stored.span(own.start - shard.start, piece);
        let weights = {
            let residence = weights_at(bucket);
            let whole = match &gathered {
                Some(windows) if residence.has_window() => windows.view(index, len),
                _ => arenas.weights.matrix(1, len, model),
            };
            let (stored, own) = match residence {
                Residence::Host => [arenas.host_weights.matrix(1, piece, model); 2].into(),
                Residence::Shard => {
                    let stored = arenas.weights.matrix(1, shard.len(), model);
                    (stored, cut_shard(stored))
                }
                Residence::Whole if level == 3 => (whole, arenas.weights.matrix(1, piece, model)),
                Residence::Whole => (whole, cut(whole)),
            };
            Values { residence, whole, stored, own }
        };
        let share = shares.as_ref().filter(|_| weights.residence.has_window());
        let grads = {
            let residence = grads_at(bucket);
            let whole = match &reduced {
                Some(windows) if residence.has_window() => windows.view(index, len),
                _ => arenas.grads.matrix(1, len, DType::F32),
            };
            let (stored, own) = match residence {
                Residence::Whole => (whole, cut(whole)),
                Residence::Shard => {
                    let stored = arenas.grads.matrix(1, shard.len(), DType::F32);
                    (stored, cut_shard(stored))
                }
                Residence::Host if level >= 2 => {
                    [arenas.host_grads.matrix(1, piece, DType::F32); 2].into()
                }
                Residence::Host => {
                    let stored = arenas.host_grads.matrix(1, len, DType::F32);
                    (stored, cut(stored))
                }
            };
            Values { residence, whole, stored, own }
        };
        // Gradients that are fetched from the host accumulate, starting from zero.
        let overwrites = bucket.module == Module::Block && grads.residence != Residence::Host;
        let held = match weights.residence {
            Residence::Whole => bucket.range.clone(),
            Residence::Shard => shard.clone(),
            Residence::Host => own.clone(),
        };
        states.push(BucketState {
            module: bucket.module,
            start: bucket.range.start,
            levels,
            shard,
            held,
            share: share.map(|windows| windows.view(index, piece)),
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
