//! One optimizer step of one rank: forward and backward passes in the order of the schedule, then
//! clipping and the update. Every tensor is reserved in `new`. The engine opens no files and prints
//! nothing.

mod states;
mod rule;
mod params;
mod powersgd;
mod update;
mod scaler;
mod groups;
mod order;
mod play;
mod graph_cache;
mod arenas;
mod memory;
mod masters;
mod scalars;
mod replica_check;
mod frozen;
mod sampler;
mod scorer;
pub mod volume;
pub mod lr;

pub use arenas::MemoryPlan;
pub use frozen::Frozen;
pub use groups::{Groups, actions, begins_messages, cuts, groups_overlap, model_dtype, orders};
pub use params::{Replica, ShardedParams, StateSlice, saved_shape};
pub use replica_check::{Divergence, ReplicasDiverged};
pub use rule::{
    Conversion, ERROR, OptimizerRule, Place, Q, SECOND, Saved, Step, decoded, of as rule,
};
pub use sampler::Sampler;
pub use scalars::Outcome;
pub use scaler::Scale;
pub use scorer::{Heard, Scorer, Scores};
pub use states::{Extent, Initial, MASTER, MODEL, ParamStates, StateSpec, TensorSlice};

use arenas::Arenas;
use device::{Backend, Home, OutOfMemory, Section, StepLimits, Tensor, op};
use graph_cache::{GraphCache, PassKind};
use groups::{context, pipeline_rank};
use manifest::Manifest;
use model::layers::fp8::Fp8Pass;
use model::{Activations, Cx, GradBuffers, Inputs, Layout, MicroBatch, Param, Stage};
use order::StepOrder;
use plan::schedule::{self, Action, Pass, PipelineRank, Side};
use play::{Mail, MessageBuffers, play};
use powersgd::Compression;
use scalars::Scalars;
use std::cell::{Cell, RefCell};
use std::time::Instant;
use update::{At, Update};

/// Loads the next micro-batch into the given buffers.
pub type Load<'a> = &'a mut dyn FnMut(&Inputs) -> anyhow::Result<()>;

/// Model and optimizer of a rank, and every buffer of a step.
pub struct Engine<'a> {
    be: &'a dyn Backend,
    /// Dropped before the groups, which its graphs call.
    graphs: GraphCache,
    params: ShardedParams<'a>,
    rule: Box<dyn OptimizerRule>,
    update: Update,
    compression: Option<Compression>,
    /// Steps of the run that were queued.
    steps: Cell<u64>,
    /// Limits of the steps queued from now on.
    limits: Cell<Option<StepLimits>>,
    manifest: Manifest,
    /// Buffers of the micro-batches in flight, by slot. The chunks of a slot share its bytes.
    slots: Vec<Vec<Activations>>,
    work: GradBuffers,
    messages: MessageBuffers,
    eval: Vec<Vec<Activations>>,
    scalars: Scalars,
    /// Buffers for fp8 operands.
    fp8: Option<Fp8Pass>,
    order: StepOrder,
    /// Last outcome received, as the device wrote it.
    received: RefCell<Vec<f32>>,
    memory_plan: MemoryPlan,
}

impl<'a> Engine<'a> {
    /// Reserves all memory for the manifest's optimizer, within the device memory that the manifest
    /// allows. The weights are zero until `init`, or until every slice of `store` is written and
    /// the master weights are cast. With `causal` the caller promises that no batch has its own
    /// mask.
    pub fn new(
        be: &'a dyn Backend,
        groups: Groups,
        manifest: &Manifest,
        causal: bool,
    ) -> Result<Engine<'a>, OutOfMemory> {
        Engine::with_rule(be, groups, manifest, causal, rule::of(manifest))
    }

    /// Like `new`, with another optimizer rule.
    pub fn with_rule(
        be: &'a dyn Backend,
        groups: Groups,
        manifest: &Manifest,
        causal: bool,
        rule: Box<dyn OptimizerRule>,
    ) -> Result<Engine<'a>, OutOfMemory> {
        let manifest = &memory::placed(be, &groups, manifest, &*rule, causal);
        let measured = Arenas::measuring();
        memory::lay(be, &groups, manifest, &*rule, causal, &measured);
        let (home, asked) = (Home::Device, measured.memory_plan(be.workspace()).total());
        match manifest.train.device_memory {
            Some(most) if asked > most => {
                return Err(OutOfMemory { home, asked, available: Some(most) });
            }
            _ => {}
        }
        let arenas = measured.reserve(be)?;
        let laid = memory::lay(be, &groups, manifest, &*rule, causal, &arenas);
        let pp = pipeline_rank(&groups, manifest);
        // A group whose messages a graph can capture is a device's own.
        let order = StepOrder::new(pp, &manifest.topology, groups.pipeline.capturable());
        laid.tables.upload(&context(be, &groups, manifest, true));
        let engine = Engine {
            be,
            graphs: GraphCache::new(&groups, manifest),
            params: ShardedParams::new(
                be,
                groups,
                manifest,
                laid.layout,
                laid.buckets,
                laid.states,
            )
            .offloaded(laid.offload, laid.norms),
            rule,
            update: laid.update,
            compression: laid.compression,
            steps: Cell::new(0),
            limits: Cell::new(None),
            manifest: manifest.clone(),
            slots: laid.slots,
            work: laid.work,
            messages: laid.messages,
            eval: laid.eval,
            order,
            received: RefCell::new(vec![0.0; laid.scalars.outcome.numel()]),
            scalars: laid.scalars,
            fp8: laid.fp8,
            memory_plan: arenas.memory_plan(be.workspace()),
        };
        engine.set_scale(None, 0, 0);
        Ok(engine)
    }

    /// Memory plan of `new`, and the layout of its weights. Reserves nothing.
    pub fn plan(
        be: &dyn Backend,
        groups: &Groups,
        manifest: &Manifest,
        causal: bool,
    ) -> (MemoryPlan, Layout) {
        let rule = rule::of(manifest);
        let manifest = &memory::placed(be, groups, manifest, &*rule, causal);
        let measured = Arenas::measuring();
        let laid = memory::lay(be, groups, manifest, &*rule, causal, &measured);
        (measured.memory_plan(be.workspace()), laid.layout)
    }

    /// Device of the engine.
    pub fn backend(&self) -> &dyn Backend {
        self.be
    }

    /// Reserved memory.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory_plan
    }

    /// Parameters of which this rank holds a share.
    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.params.layout().params()
    }

    /// Weights, gradients and optimizer states of the parameters.
    pub fn store(&self) -> &ShardedParams<'a> {
        &self.params
    }

    pub fn rule(&self) -> &dyn OptimizerRule {
        &*self.rule
    }

    /// Sets every weight and state to its initial value.
    pub fn init(&self) {
        self.params.init(self.manifest.train.seed);
    }

    /// Sets the number of steps done; the next step follows them.
    pub fn set_steps(&self, steps: u64) {
        self.steps.set(steps);
    }

    /// Sets limits for steps queued from now on: a step whose loss or gradient norm is above them
    /// updates nothing. Must be equal on all ranks.
    pub fn set_limits(&self, limits: Option<StepLimits>) {
        self.limits.set(limits);
    }

    /// Sets the states that serve the exchange of gradients to their initial values.
    pub fn init_exchange(&self) {
        self.params.init_exchange(self.manifest.train.seed);
    }

    /// Replaces every replica's compression error by the mean over replicas, which a checkpoint
    /// stores. Later gradients change by rounding only. A collective: all replicas call it after
    /// the same step.
    pub fn average_errors(&self) {
        if let Some(compression) = self.compression.as_ref().filter(|c| c.begun(self.steps.get())) {
            compression.average_errors(&self.params);
        }
    }

    /// Reads the unclipped f32 gradient of the last step. This rank must own the weight whole.
    pub fn read_grad(&self, param: &Param, out: &mut [f32]) {
        self.params.finish_copies();
        self.be.download(self.params.grad(param), bytemuck::cast_slice_mut(out));
    }

    /// Compares the weights that must be equal on several ranks, bit by bit (`replica_check`). A
    /// collective: all ranks call it after the same step, and either all return `Ok` or none.
    pub fn check_replicas(&self) -> Result<(), ReplicasDiverged> {
        replica_check::check(&self.params, self.scalars.digests, self.scalars.norm)
    }

    /// Current loss scale, and the number of updates.
    pub fn scale(&self) -> Scale {
        scaler::read(self.be, self.scalars.scaler)
    }

    /// Restores the loss scale within the limits of the manifest's settings. Starts from the
    /// initial scale if none was saved, after `updates` and `skipped` steps.
    pub fn set_scale(&self, saved: Option<Scale>, updates: u64, skipped: u64) {
        let m = &self.manifest;
        let unscaled = Scale { updates, skipped, ..Scale::initial(m) };
        let scale = saved.map_or(unscaled, |saved| saved.under(m));
        scaler::write(self.be, self.scalars.scaler, &scale);
    }

    /// Runs one optimizer step over `micros` micro-batches of this rank and returns its outcome.
    /// The loss is Σ weight · −log p over all tokens loaded by all ranks.
    pub fn step(&self, load: Load, micros: usize, lr: f64) -> anyhow::Result<Outcome> {
        self.queue(load, micros, lr)?;
        Ok(self.outcome()?.0)
    }

    /// Queues a step. The device may still run it, and the previous one, when this returns. At most
    /// two steps may have an unread outcome.
    pub fn queue(&self, load: Load, micros: usize, lr: f64) -> anyhow::Result<()> {
        let (be, s, params) = (self.be, &self.scalars, &self.params);
        let order = self.order.next(micros);
        let (rule, step) = (&*self.rule, self.steps.get());
        let compression = self.compression.as_ref().filter(|c| c.applies(step));
        self.steps.set(step + 1);
        params.set_compressing(compression.is_some());
        params.begin_step(micros);
        be.run(op::Zero { x: s.loss });
        be.run(op::Zero { x: s.z_loss });
        be.enter(Section::Passes);
        let computed = self.run(&order, &self.slots, true, load, None);
        be.enter(Section::Once);
        computed?;
        params.finish_grads();
        let scale = compression.map_or(s.scaler.scale, |c| c.run(params, s));
        params.groups().sum_over_stages_and_replicas(s.loss);
        if self.manifest.train.z_loss.is_some() {
            params.groups().sum_over_stages_and_replicas(s.z_loss);
        }
        let _span = tracing::trace_span!("optimizer", gpu = true).entered();
        self.update.run(params, rule, s, At { scale, lr, limits: self.limits.get() });
        params.begin_all_gather();
        be.download_async(s.outcome);
        Ok(())
    }

    /// Waits for the oldest unread outcome. Also returns the time at which that step ended, as far
    /// as the host can measure it.
    pub fn outcome(&self) -> anyhow::Result<(Outcome, Instant)> {
        let mut all = self.received.borrow_mut();
        let ended = self.be.finish_download(bytemuck::cast_slice_mut(&mut all))?;
        Ok((Scalars::read(&all), ended))
    }

    /// Loss of `micros` micro-batches of this rank, without dropout and gradients.
    pub fn evaluate(&self, load: Load, micros: u64) -> anyhow::Result<f64> {
        let loss = self.scalars.loss;
        self.forwards(load, micros as usize, None)?;
        self.params.groups().sum_over_stages_and_replicas(loss);
        self.be.sync()?;
        Ok(self.scalar(loss))
    }

    /// Forward passes without dropout; adds up the loss of this rank.
    fn forwards(&self, load: Load, micros: usize, heard: Option<Heard>) -> anyhow::Result<()> {
        let rounds = schedule::forwards(self.pipeline_rank(), micros);
        let actions = schedule::with_messages(self.pipeline_rank(), &rounds);
        self.be.run(op::Zero { x: self.scalars.loss });
        self.run(&actions, &self.eval, false, load, heard)
    }

    /// Executes the actions of a schedule.
    fn run(
        &self,
        actions: &[Action],
        slots: &[Vec<Activations>],
        training: bool,
        load: Load,
        mut heard: Option<Heard>,
    ) -> anyhow::Result<()> {
        let (be, pp, loss) = (self.be, self.pipeline_rank(), self.scalars.loss);
        let (params, graphs) = (&self.params, &self.graphs);
        let cx = context(be, params.groups(), &self.manifest, training);
        let cx = Cx { fp8: self.fp8, ..cx };
        let stage = Stage { cx, layout: params.layout(), store: params };
        let held = |pass: Pass| &slots[pass.slot][pass.chunk];
        let micros = actions.iter().map(|action| action.pass().micro + 1).max().unwrap_or(0);
        let (groups, buffers) = (params.groups(), &self.messages);
        let mail = Mail { be, pp, groups, tp: cx.tp, buffers };
        let place = |side, pass| self.place(side, held(pass));
        play(actions, &mail, place, |action| {
            match action {
                Action::Forward(pass) => {
                    let inputs = &held(pass).inputs;
                    match (pass.chunk, pass.slot == pass.home) {
                        (0, _) => load(inputs)?,
                        (_, true) => (),
                        (_, false) => inputs.copy(be, &slots[pass.home][0].inputs),
                    }
                    let room = self.fp8.map(|room| room.for_forward(pass.micro == 0));
                    let codes = room.is_some_and(|room| room.new_weights);
                    let stage = Stage { cx: Cx { fp8: room, ..cx }, ..stage };
                    let enqueue = || stage.forward(held(pass));
                    graphs.run(params, PassKind::Forward { training, codes }, pass, enqueue);
                }
                Action::Backward(pass) => {
                    // Every schedule runs a chunk's backward passes in the order of micro-batches.
                    let at = MicroBatch { first: pass.micro == 0, last: pass.micro + 1 == micros };
                    let enqueue = || stage.backward(held(pass), &self.work, loss.add(), at);
                    graphs.run(params, PassKind::Backward(at), pass, enqueue);
                }
                Action::Loss(pass) => {
                    let enqueue = || stage.loss(held(pass), loss.add());
                    graphs.run(params, PassKind::Loss, pass, enqueue);
                    if let Some(heard) = &mut heard {
                        scorer::tell(be, held(pass), heard);
                    }
                }
                _ => unreachable!("`play` handles messages itself"),
            }
            Ok(())
        })
    }

    /// Tensor that a rank sends or receives: the stream of a micro-batch, or its gradient.
    fn place(&self, side: Side, held: &Activations) -> Tensor {
        match side {
            Side::RecvX => held.x,
            Side::SendY => held.y,
            Side::RecvDy | Side::SendDx => self.work.stream,
        }
    }

    /// Weights with a non-finite gradient in the step whose outcome was read last.
    pub fn not_finite(&self) -> Vec<String> {
        let received = self.received.borrow();
        let own = self.compression.iter().flat_map(|compression| compression.names());
        let names = self.update.names().iter().chain(own).zip(&received[Scalars::BEFORE_SUMS..]);
        let mut found = Vec::new();
        for (name, _) in names.filter(|(_, sum)| !sum.is_finite()) {
            if !found.contains(name) {
                found.push(name.clone());
            }
        }
        found
    }

    fn pipeline_rank(&self) -> PipelineRank {
        pipeline_rank(self.params.groups(), &self.manifest)
    }

    fn scalar(&self, x: Tensor) -> f64 {
        let mut value = [0.0f32];
        self.be.download(x, bytemuck::cast_slice_mut(&mut value));
        value[0] as f64
    }
}
