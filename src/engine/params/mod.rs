//! Parameters of a rank, sharded among data-parallel ranks (ZeRO: Rajbhandari et al. 2020; `plan`
//! lists the levels), and the collectives that gather weights and reduce gradients.
//!
//! Collectives are started during the computation and overlap with it. At ZeRO 2 and 3 the
//! reduction of a block must end before another block needs its window (`ring`): in a pipeline, that
//! may be a block of the next micro-batch or of another chunk. A breadth-first pipeline may keep the
//! weights of a chunk whole, and sum its gradients, for several micro-batches (`WindowCounts`).

mod host_grads;
mod offload;
mod plan;
mod maxima;
mod ring;
mod slices;
mod windows;
#[cfg(test)]
mod tests;

pub use host_grads::{GradSums, Norms, ZeroCounts};
pub use maxima::RankMaxima;
pub use offload::Offload;
pub use plan::{
    Among, BucketState, OffloadPlan, Residence, plan_buckets, plan_fp8_codes, plan_states,
};
pub use ring::{WindowCounts, Windows};
pub use slices::{Replica, StateRange, StateSlice, is_whole, saved_shape, slice_states};

use super::groups::{Groups, model_dtype};
use super::states::{Initial, ParamStates, StateSpec, TensorSlice};
use base::{DType, rng};
use comm::{Collective, Group, Pending};
use device::{Backend, Tensor, Transfer, op};
use host_grads::HostGrads;
use manifest::{Manifest, Model, Schedule};
use model::{Bucket, Direction, Layout, MicroBatch, Module, Param, ParamStore, Params, Weight};
use ring::{Ring, SHARE_WINDOWS};
use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Weights, gradients and states of one rank, on its device and in its groups.
pub struct ShardedParams<'a> {
    pub(crate) be: &'a dyn Backend,
    pub(crate) groups: Groups,
    pub(crate) layout: Layout,
    model: Model,
    model_dtype: DType,
    /// ZeRO level; 0 if there is only one data-parallel rank.
    level: u8,
    /// Sequence parallelism: gradients of unsplit weights are then partial sums.
    sequence: bool,
    /// Whether two stages hold the embedding, and this is one of them.
    tied: bool,
    buckets: Vec<BucketState>,
    params: Vec<ParamStates>,
    /// Offloaded states.
    pub(crate) offload: Option<Offload>,
    /// Gradients of blocks on the host.
    host_grads: Option<HostGrads>,
    /// Whether `Compression` reduces the gradients of blocks in this step.
    compressing: Cell<bool>,
    windows: WindowCounts,
    /// Direction of the running pass.
    direction: Cell<Direction>,
    in_flight: RefCell<InFlight>,
}

/// Collectives and transfers in flight, and what the windows hold.
struct InFlight {
    /// Gathers of weights, by bucket.
    gathers: Vec<Vec<Begun>>,
    /// Copies of weights from the host, by bucket.
    fills: Vec<Option<Transfer>>,
    /// Bucket whose shard each window of shards holds or is receiving.
    shares: Ring<usize>,
    /// Reductions of buckets without a window.
    reductions: Vec<Reduction>,
    /// Reductions in the windows of gradients.
    scattering: Ring<Reduction>,
    gathered: GatherState,
}

/// Reduction of a bucket's gradients after a micro-batch.
struct Reduction {
    bucket: usize,
    micro: MicroBatch,
    /// Sums over tensor-parallel ranks.
    tp_sums: Vec<Pending>,
    /// Sums over replicas; none if `Compression` does it.
    replica_sums: Vec<Begun>,
}

/// Collective over replicas in flight, and its group.
struct Begun {
    among: Among,
    pending: Pending,
}

/// Gather state of ZeRO 3 between passes: the buckets that the windows of weights hold whole. Part of the
/// key of a captured graph.
pub type GatherState = Ring<usize>;

impl InFlight {
    /// No collective or transfer, and empty windows.
    fn none(buckets: &[BucketState], windows: WindowCounts) -> InFlight {
        InFlight {
            gathers: buckets.iter().map(|_| Vec::new()).collect(),
            fills: buckets.iter().map(|_| None).collect(),
            shares: Ring::new(SHARE_WINDOWS),
            reductions: Vec::new(),
            scattering: Ring::new(windows.gradients),
            gathered: Ring::new(windows.weights),
        }
    }
}

/// Next step of the gradients that a micro-batch left in a bucket.
enum GradStep {
    /// They remain in the bucket; the next micro-batch adds its own.
    Accumulate,
    /// The running sums are copied from the window to the host.
    StoreSums,
    /// They are summed over the ranks that hold the same weights.
    Reduce,
    /// `finish_grads` reduces them, after the sum over the two stages that hold the embedding.
    ReduceLater,
}

/// Memory of a rank's parameters, as laid out.
pub struct ParamMemory {
    pub layout: Layout,
    pub buckets: Vec<BucketState>,
    pub windows: WindowCounts,
    pub states: Vec<ParamStates>,
    /// Updates of the states that are on the host.
    pub offload: Option<Offload>,
    /// Buffers for the gradients of blocks, if those are on the host.
    pub norms: Option<Norms>,
}

impl<'a> ShardedParams<'a> {
    /// Assembles the parameters.
    pub fn new(
        be: &'a dyn Backend,
        groups: Groups,
        m: &Manifest,
        memory: ParamMemory,
    ) -> ShardedParams<'a> {
        let ParamMemory { layout, buckets, windows, states, offload, norms } = memory;
        ShardedParams {
            be,
            level: zero_level(&groups, m),
            sequence: m.topology.sequence_parallel,
            tied: m.model.tied_head && groups.pipeline.size() > 1,
            model: m.model.clone(),
            model_dtype: model_dtype(m.precision),
            groups,
            layout,
            host_grads: norms.map(|norms| HostGrads::new(&buckets, windows.gradients, norms)),
            in_flight: RefCell::new(InFlight::none(&buckets, windows)),
            windows,
            direction: Cell::new(Direction::Forward),
            buckets,
            params: states,
            offload,
            compressing: Cell::new(false),
        }
    }

    /// The whole model, of which this rank may hold a part.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Dtype of the weights that forward and backward read.
    pub fn model_dtype(&self) -> DType {
        self.model_dtype
    }

    /// Whether each data-parallel rank updates only a part of the parameters.
    pub fn is_sharded(&self) -> bool {
        self.level > 0
    }

    /// States of each parameter.
    pub fn states(&self) -> &[ParamStates] {
        &self.params
    }

    /// Sets every state to its initial value.
    pub fn init(&self, seed: u64) {
        self.init_states(seed, |_| true);
        self.cast_master_to_model();
    }

    /// Sets the states of gradient compression (`Extent::serves_exchange`) to their initial values.
    pub fn init_exchange(&self, seed: u64) {
        self.init_states(seed, |state| state.extent.serves_exchange());
    }

    fn init_states(&self, seed: u64, selected: impl Fn(&StateSpec) -> bool) {
        let mut values = Vec::new();
        for states in &self.params {
            let param = &states.param;
            for (state, range, at) in states.iter().filter(|(state, ..)| selected(state)) {
                match state.init {
                    Initial::CastOf(_) => continue,
                    Initial::Zero => {
                        self.be.run(op::Zero { x: at.set() });
                        continue;
                    }
                    Initial::Parameter => {
                        self.draw(param, range, seed, at, &mut values);
                        continue;
                    }
                    Initial::Normal => {
                        let size = [param.rows, param.cols];
                        let share = TensorSlice { at: self.layout.tp_offset(param), size };
                        let part = state.extent.part_for(share);
                        values.resize(part.numel(), 0.0);
                        let key = rng::key(seed, &format!("{} {}", param.name, state.name));
                        rng::normals(key, (part.at[0] * part.size[1]) as u64, &mut values);
                    }
                }
                self.be.upload(bytemuck::cast_slice(&values[range]), at);
            }
        }
    }

    /// Sets `at` to the initial values of a range of a parameter. Values are drawn in pieces, which
    /// stay in the host's cache until the upload.
    fn draw(&self, param: &Param, range: Range<usize>, seed: u64, at: Tensor, to: &mut Vec<f32>) {
        const PIECE: usize = 1 << 20;
        let rows = range.start / param.cols..range.end.div_ceil(param.cols);
        let piece_rows = (PIECE / param.cols).max(1);
        for first in rows.clone().step_by(piece_rows) {
            let drawn = first * param.cols..rows.end.min(first + piece_rows) * param.cols;
            to.resize(drawn.len(), 0.0);
            self.layout.init_rows(param, first, &self.model, seed, to);
            let used = drawn.start.max(range.start)..drawn.end.min(range.end);
            let values = &to[used.start - drawn.start..used.end - drawn.start];
            let part = at.span(used.start - range.start, used.len());
            self.be.upload(bytemuck::cast_slice(values), part);
        }
    }

    /// Rounds the master weights into the model weights, on every rank.
    pub fn cast_master_to_model(&self) {
        match &self.offload {
            Some(offload) => {
                self.finish_copies();
                offload.cast(self.be, &self.params);
            }
            None => self.params.iter().for_each(|p| p.cast(self.be)),
        }
        self.begin_all_gather();
        self.wait_gathers();
    }

    /// x = Σ x over all ranks that update different elements.
    pub fn sum_over_owners(&self, x: Tensor) {
        self.groups.tensor.all_reduce(x);
        self.groups.pipeline.all_reduce(x);
        if self.level > 0 {
            self.groups.sum_over_pieces(self.be, x);
        }
    }

    /// Sets whether `Compression` reduces the gradients of blocks. Called before a step.
    pub fn set_compressing(&self, compressing: bool) {
        self.compressing.set(compressing);
    }

    /// See `set_compressing`. The reductions of a backward pass depend on it.
    pub fn is_compressing(&self) -> bool {
        self.compressing.get()
    }

    /// Starts a step of `micros` micro-batches with gradients of zero.
    pub fn begin_step(&self, micros: usize) {
        if let Some(host) = &self.host_grads {
            host.begin_step(self.be, micros);
        }
        // Windows are prepared when a block starts to use them.
        for bucket in self
            .buckets
            .iter()
            .filter(|bucket| !bucket.grads.residence.has_window())
        {
            self.zero_sums(bucket);
        }
    }

    /// Zeroes the gradients that ops add to from the first micro-batch on.
    fn zero_sums(&self, bucket: &BucketState) {
        for x in &bucket.grads_by_name.zeroed {
            self.be.run(op::Zero { x: x.set() });
        }
    }

    /// Gradient of a parameter that this rank updates whole, f32.
    pub fn grad(&self, param: &Param) -> Tensor {
        let bucket = &self.buckets[param.bucket];
        let first = param.offset - bucket.own.start;
        bucket.grads.own.span(first, param.numel())
    }

    /// Flat model weights of the parameters whose whole bucket is present.
    pub fn whole_weights(&self) -> Vec<(&Param, Tensor)> {
        self.held_weights(|layout, bucket| bucket.held == layout.range)
    }

    /// Parts of the parameters in the shards of weights that the copies hold too.
    pub fn copied_weights(&self) -> Vec<(&Param, Tensor)> {
        let is_copied = |_: &Bucket, bucket: &BucketState| {
            self.groups.levels.copies > 1 && bucket.weights.residence == Residence::Shard
        };
        self.held_weights(is_copied)
    }

    /// Flat model weights that the selected buckets hold between two steps.
    fn held_weights(
        &self,
        selected: impl Fn(&Bucket, &BucketState) -> bool,
    ) -> Vec<(&Param, Tensor)> {
        let mut found = Vec::new();
        for (layout, bucket) in self.layout.buckets.iter().zip(&self.buckets) {
            if selected(layout, bucket) {
                let first = bucket.held.start;
                let weights = bucket.weights.stored;
                let parts = layout.overlaps(bucket.held.clone());
                found
                    .extend(parts.map(|(param, part)| {
                        (param, weights.span(part.start - first, part.len()))
                    }));
            }
        }
        found
    }

    /// Group of a collective over replicas.
    fn group(&self, among: Among) -> &dyn Group {
        match among {
            Among::Shard => self.groups.shard(),
            Among::SameShard => &*self.groups.copies,
        }
    }

    /// Starts collectives over replicas, each of which sees the results of those before it.
    fn begin(&self, collectives: impl IntoIterator<Item = (Among, Collective)>) -> Vec<Begun> {
        collectives
            .into_iter()
            .map(|(among, what)| Begun { among, pending: self.group(among).begin(what) })
            .collect()
    }

    /// Waits for collectives over replicas.
    fn finish(&self, begun: Vec<Begun>) {
        for Begun { among, pending } in begun {
            self.group(among).finish(pending);
        }
    }

    /// Starts gathering the updated weights.
    pub fn begin_all_gather(&self) {
        let in_flight = &mut *self.in_flight.borrow_mut();
        in_flight.gathered = Ring::new(self.windows.weights);
        in_flight.shares = Ring::new(SHARE_WINDOWS);
        for (index, bucket) in self.buckets.iter().enumerate() {
            if self.level > 0 {
                in_flight.gathers[index].extend(self.begin(bucket.gathers_after_update()));
            }
        }
    }

    /// Waits for every gather, after which weights can be read.
    pub fn wait_gathers(&self) {
        let in_flight = &mut *self.in_flight.borrow_mut();
        for gathers in &mut in_flight.gathers {
            self.finish(std::mem::take(gathers));
        }
    }

    /// Gather state; None while a collective is in flight.
    pub fn gather_state(&self) -> Option<GatherState> {
        let in_flight = &*self.in_flight.borrow();
        let is_idle = in_flight.gathers.iter().all(Vec::is_empty)
            && in_flight.reductions.is_empty()
            && in_flight.scattering.is_empty();
        is_idle.then(|| in_flight.gathered.clone())
    }

    /// Sets the gather state after the replay of a pass.
    pub fn set_gather_state(&self, state: GatherState) {
        self.in_flight.borrow_mut().gathered = state;
    }

    /// Sums the tied embedding's gradients over the first and last stage, and waits for all
    /// reductions. Called after the last micro-batch.
    pub fn finish_grads(&self) {
        if self.tied {
            for (index, bucket) in self.buckets.iter().enumerate() {
                if matches!(bucket.module, Module::Embed | Module::TiedCopy) {
                    self.groups
                        .embedding
                        .all_reduce(bucket.grads_by_name.accumulate[Weight::TokenEmbed]);
                    self.begin_reduction(index, MicroBatch::new(0, 1, 1));
                }
            }
        }
        self.wait_reductions();
    }

    /// Waits for all reductions.
    pub fn wait_reductions(&self) {
        let scattering: Vec<Reduction> = self.in_flight.borrow_mut().scattering.drain().collect();
        for reduction in scattering {
            self.finish_in_window(reduction);
        }
        let reductions = std::mem::take(&mut self.in_flight.borrow_mut().reductions);
        for reduction in reductions {
            self.finish_sums(reduction);
        }
    }

    /// Starts summing a bucket's gradients over the ranks. Collectives run in the order in which
    /// they start, so the sums over tensor-parallel ranks precede those over replicas.
    fn begin_reduction(&self, index: usize, micro: MicroBatch) {
        let bucket = &self.buckets[index];
        let layout = &self.layout.buckets[index];
        let whole = bucket.grads.whole;
        let mut tp_sums = Vec::new();
        for param in &layout.params {
            if param.spec.partial_grad(self.sequence) {
                tp_sums.push(Collective::AllReduce(param.tensor(layout, whole)));
            }
        }
        let tp_sums = self.groups.tp_async.begin_all(&tp_sums);
        let compressed = self.compressing.get() && bucket.module == Module::Block;
        let sums = if compressed { Vec::new() } else { bucket.sums(self.level) };
        let replica_sums = self.begin(sums);
        let reduction = Reduction { bucket: index, micro, tp_sums, replica_sums };
        let in_flight = &mut *self.in_flight.borrow_mut();
        if bucket.grads.residence.has_window() {
            let previous = in_flight.scattering.contents(index).replace(reduction);
            assert!(previous.is_none(), "the window's last reduction is finished in `grads`");
        } else {
            in_flight.reductions.push(reduction);
        }
    }

    /// Whether gradients are reduced over replicas.
    fn has_replicas(&self) -> bool {
        self.groups.grad_sum.size() > 1
    }

    /// Waits for the sums of a reduction.
    fn finish_sums(&self, reduction: Reduction) {
        for pending in reduction.tp_sums {
            self.groups.tp_async.finish(pending);
        }
        self.finish(reduction.replica_sums);
    }

    /// Finishes the reduction in the window of gradients that bucket `index` uses, if one is running.
    fn accumulate_shard(&self, index: usize) {
        let reduction = self
            .in_flight
            .borrow_mut()
            .scattering
            .contents(index)
            .take();
        if let Some(reduction) = reduction {
            self.finish_in_window(reduction);
        }
    }

    /// Waits for a reduction in a window, and adds its result to this rank's shard of the block. After the
    /// last micro-batch, starts summing the shard over its copies.
    fn finish_in_window(&self, reduction: Reduction) {
        let Reduction { bucket: index, micro, .. } = reduction;
        self.finish_sums(reduction);
        let bucket = &self.buckets[index];
        let part = bucket.reduced_part();
        match &self.host_grads {
            None => {
                let stored = bucket.grads.stored;
                let sum = if micro.in_first_sum { stored.set() } else { stored.add() };
                self.be.run(op::Copy { x: part, y: sum });
                self.zero_sums(bucket);
                if let Some(sum) = bucket.sum_of_copies().filter(|_| micro.last) {
                    let replica_sums = self.begin([sum]);
                    let tp_sums = Vec::new();
                    let reduction = Reduction { bucket: index, micro, tp_sums, replica_sums };
                    self.in_flight.borrow_mut().reductions.push(reduction);
                }
            }
            Some(host) => host.store_reduced(self, index, part, micro.last),
        }
    }

    /// Next step of the gradients that a micro-batch left in a bucket.
    fn grad_step(&self, bucket: &BucketState, micro: MicroBatch) -> GradStep {
        let in_two_stages = self.tied && bucket.module == Module::Embed;
        match bucket.grads.residence {
            Residence::Whole if !micro.last => GradStep::Accumulate,
            Residence::Whole if in_two_stages => GradStep::ReduceLater,
            Residence::Whole => GradStep::Reduce,
            Residence::Shard | Residence::Host if self.level >= 2 && !micro.closes => {
                GradStep::Accumulate
            }
            Residence::Shard => GradStep::Reduce,
            Residence::Host if micro.last || self.level >= 2 => GradStep::Reduce,
            Residence::Host => GradStep::StoreSums,
        }
    }

    /// Waits until no transfer reads the weights on the host and all gradients stored there have
    /// arrived.
    pub fn finish_copies(&self) {
        self.wait_gathers();
        let in_flight = &mut *self.in_flight.borrow_mut();
        for fill in in_flight.fills.iter_mut().filter_map(Option::take) {
            self.be.finish_transfer(fill);
        }
        if let Some(host) = &self.host_grads {
            host.finish(self.be);
        }
    }
}

/// Effective ZeRO level: 0 if there is only one data-parallel rank.
pub fn zero_level(groups: &Groups, m: &Manifest) -> u8 {
    let level = if groups.grad_sum.size() == 1 { 0 } else { m.topology.zero };
    let is_alone = groups.pipeline.size() == 1;
    let keeps_chunks = m.topology.schedule == Schedule::BreadthFirst;
    assert!(level < 3 || is_alone || keeps_chunks, "ZeRO-{level} under a pipeline");
    level
}

impl ParamStore for ShardedParams<'_> {
    fn begin_pass(&self, direction: Direction) {
        self.direction.set(direction);
    }

    fn weights(&self, index: usize) -> &Params {
        let bucket = &self.buckets[index];
        if bucket.weights.residence.has_window() {
            self.gather_block(index);
        } else {
            self.finish(std::mem::take(&mut self.in_flight.borrow_mut().gathers[index]));
        }
        &bucket.weights_by_name
    }

    fn grads(&self, index: usize, at: MicroBatch) -> &Params {
        let bucket = &self.buckets[index];
        if bucket.grads.residence.has_window() {
            self.accumulate_shard(index);
        }
        if let Some(host) = &self.host_grads {
            host.prepare(self, index, at);
        }
        let is_shard = bucket.grads.residence == Residence::Shard;
        let is_empty = if is_shard { at.opens } else { at.first };
        let grads = &bucket.grads_by_name;
        if is_empty { &grads.overwrite } else { &grads.accumulate }
    }

    fn grads_done(&self, index: usize, micro: MicroBatch) {
        let bucket = &self.buckets[index];
        match self.grad_step(bucket, micro) {
            GradStep::Accumulate | GradStep::ReduceLater => {}
            GradStep::StoreSums => {
                if let Some(host) = &self.host_grads {
                    host.store_sums(self.be, index, bucket);
                }
            }
            GradStep::Reduce => {
                self.begin_reduction(index, micro);
                if bucket.grads.residence.has_window() && !self.has_replicas() {
                    self.accumulate_shard(index);
                }
            }
        }
    }
}
