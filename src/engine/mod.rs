//! One optimizer step of one rank: forward and backward passes in the order of the schedule, then
//! clipping and the update. Every tensor is reserved in `new`. The engine opens no files and prints
//! nothing.

mod states;
mod rule;
mod params;
mod powersgd;
mod update;
mod measures;
mod scaler;
mod groups;
mod order;
mod execute;
mod graph_cache;
mod arenas;
mod memory;
mod micro_batch;
mod masters;
mod scalars;
mod replica_check;
mod saved_bytes;
mod frozen;
mod sampler;
mod scorer;
pub mod lr;

pub use arenas::MemoryPlan;
pub use frozen::Frozen;
pub use groups::{Groups, actions, cuts, groups_overlap, messages_overlap, model_dtype, orders};
pub use micro_batch::check_micro_batch;
pub use params::{Replica, ShardedParams, StateSlice, saved_shape};
pub use replica_check::{Divergence, ReplicasDiverged};
pub use rule::{
    Conversion, ERROR, OptimizerRule, Place, Q, SECOND, SavedStates, Step, decoding_conversions,
    is_never_negative, optimizer_rule,
};
pub use sampler::Sampler;
pub use saved_bytes::saved_bytes;
pub use scalars::Outcome;
pub use scaler::ScaleState;
pub use scorer::{LossSink, LossSource, Scorer};
pub use states::{Extent, Initial, MASTER, MODEL, ParamStates, StateSpec, TensorSlice};

use arenas::Arenas;
use base::Moment;
use device::{Backend, MemoryKind, OutOfMemory, Section, StepLimits, Tensor, op};
use execute::{PipelineComm, execute};
use graph_cache::{GraphCache, PassKind};
use groups::{context, pipeline_rank};
use manifest::Manifest;
use measures::Measures;
use memory::{PassInputs, TrainingBuffers};
use model::layers::fp8::Fp8Pass;
use model::{Activations, Cx, Inputs, Layout, MicroBatch, Param, Stage, Tables};
use order::StepOrder;
use plan::schedule::{self, Action, Pass, PipelineRank};
use plan::segments::MicroShape;
use powersgd::Compression;
use scalars::Scalars;
use std::cell::{Cell, RefCell};
use update::{StepArgs, Update};

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
    measures: Measures,
    compression: Option<Compression>,
    /// Steps of the run that were queued.
    steps: Cell<u64>,
    /// Limits of the steps queued from now on.
    limits: Cell<Option<StepLimits>>,
    manifest: Manifest,
    /// Arenas after everything that keeps its place: `training` is laid out behind it.
    arenas: Arenas,
    tables: Tables,
    causal: bool,
    training: RefCell<TrainingBuffers>,
    /// Activations of evaluations, as `TrainingBuffers::slots`.
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
        Engine::with_rule(be, groups, manifest, causal, optimizer_rule(manifest))
    }

    /// Like `new`, with another optimizer rule.
    pub fn with_rule(
        be: &'a dyn Backend,
        groups: Groups,
        manifest: &Manifest,
        causal: bool,
        rule: Box<dyn OptimizerRule>,
    ) -> Result<Engine<'a>, OutOfMemory> {
        let manifest = &memory::resolve_gradient_home(be, &groups, manifest, &*rule, causal);
        let measured = Arenas::measuring();
        memory::lay_out(be, &groups, manifest, &*rule, causal, &measured);
        let memory = MemoryKind::Device;
        let asked = measured.memory_plan(be.workspace()).total();
        if let Some(most) = manifest.train.device_memory.filter(|most| asked > *most) {
            return Err(OutOfMemory { memory, asked, available: Some(most) });
        }
        let arenas = measured.reserve(be)?;
        let memory = memory::lay_out(be, &groups, manifest, &*rule, causal, &arenas);
        let pp = pipeline_rank(&groups, manifest);
        // A group whose messages a graph can capture is a device's own.
        let order = StepOrder::new(pp, &manifest.topology, groups.pipeline.capturable());
        memory.tables.upload(&context(be, &groups, manifest, true));
        let params = ShardedParams::new(be, groups, manifest, memory.params);
        let engine = Engine {
            be,
            graphs: GraphCache::new(&params.groups, manifest),
            params,
            rule,
            update: memory.update,
            measures: memory.measures,
            compression: memory.compression,
            steps: Cell::new(0),
            limits: Cell::new(None),
            manifest: manifest.clone(),
            training: RefCell::new(memory.training),
            eval: memory.eval,
            tables: memory.tables,
            causal,
            order,
            received: RefCell::new(vec![0.0; memory.scalars.outcome.numel()]),
            scalars: memory.scalars,
            fp8: memory.fp8,
            memory_plan: arenas.memory_plan(be.workspace()),
            arenas,
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
        let rule = optimizer_rule(manifest);
        let manifest = &memory::resolve_gradient_home(be, groups, manifest, &*rule, causal);
        let measured = Arenas::measuring();
        let memory = memory::lay_out(be, groups, manifest, &*rule, causal, &measured);
        (measured.memory_plan(be.workspace()), memory.params.layout)
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
        self.params.layout.params()
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

    /// Lays out the buffers of the steps queued from now on for micro-batches of this shape, in the memory
    /// that is reserved for the largest. Does nothing if the shape is the same; otherwise waits for the
    /// device. Must be equal on all ranks.
    pub fn set_micro(&self, micro: MicroShape) -> anyhow::Result<()> {
        if self.training.borrow().micro == micro {
            return Ok(());
        }
        self.be.sync()?;
        self.graphs.clear();
        let groups = &self.params.groups;
        let m = &self.manifest;
        let [train, eval] = [true, false]
            .map(|training| Cx { fp8: self.fp8, ..context(self.be, groups, m, training) });
        let (layout, tables, causal) = (&self.params.layout, &self.tables, self.causal);
        let inputs = PassInputs { train: &train, eval: &eval, causal, layout, tables };
        let buffers = memory::plan_training(groups, m, &inputs, &self.scalars, micro, &self.arenas);
        *self.training.borrow_mut() = buffers;
        Ok(())
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

    /// Sets the states of gradient compression to their initial values.
    pub fn init_exchange(&self) {
        self.params.init_exchange(self.manifest.train.seed);
    }

    /// Replaces every replica's compression error by the mean over replicas, which a checkpoint
    /// stores. Later gradients change by rounding only. A collective: all replicas call it after
    /// the same step.
    pub fn average_errors(&self) {
        match &self.compression {
            Some(compression) if compression.has_applied(self.steps.get()) => {
                compression.average_errors(&self.params);
            }
            _ => {}
        }
    }

    /// Compares the weights that must be equal on several ranks, bit by bit (`replica_check`). A
    /// collective: all ranks call it after the same step, and either all return `Ok` or none.
    pub fn check_replicas(&self) -> Result<(), ReplicasDiverged> {
        replica_check::check(&self.params, self.scalars.digests, self.scalars.norm)
    }

    /// Current loss scale, and the number of updates.
    pub fn scale(&self) -> ScaleState {
        scaler::read(self.be, self.scalars.scaler)
    }

    /// Restores the loss scale within the limits of the manifest's settings. Starts from the
    /// initial scale if none was saved, after `updates` and `skipped` steps.
    pub fn set_scale(&self, saved: Option<ScaleState>, updates: u64, skipped: u64) {
        let m = &self.manifest;
        let unscaled = ScaleState { updates, skipped, ..ScaleState::initial(m) };
        let scale = saved.map_or(unscaled, |saved| saved.within_settings(m));
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
        let be = self.be;
        let s = &self.scalars;
        let params = &self.params;
        let order = self.order.next(micros);
        let rule = &*self.rule;
        let step = self.steps.get();
        let compression = self.compression.as_ref().filter(|c| c.applies(step));
        self.steps.set(step + 1);
        params.set_compressing(compression.is_some());
        params.begin_step(micros);
        be.run(op::Zero { x: s.loss.set() });
        be.run(op::Zero { x: s.z_loss.set() });
        be.enter(Section::Passes);
        let training = self.training.borrow();
        let computed = self.run(&order, &training.slots, true, load, None);
        be.enter(Section::Once);
        computed?;
        params.finish_grads();
        let scale = compression.map_or(s.scaler.scale, |c| c.run(params, s));
        params.groups.sum_over_stages_and_replicas(s.loss);
        if self.manifest.train.z_loss.is_some() {
            params.groups.sum_over_stages_and_replicas(s.z_loss);
        }
        let _span = tracing::trace_span!("optimizer", gpu = true).entered();
        let args = StepArgs { scale, lr, limits: self.limits.get() };
        self.measures.count_zeros(&self.update, params, s);
        self.update.run(params, rule, s, args);
        self.measures.sum_weights(params, s);
        params.begin_all_gather();
        be.download_async(s.outcome);
        Ok(())
    }

    /// Waits for the oldest unread outcome. Also returns the time at which that step ended, as far
    /// as the host can measure it.
    pub fn outcome(&self) -> anyhow::Result<(Outcome, Moment)> {
        let mut received = self.received.borrow_mut();
        let bytes = bytemuck::cast_slice_mut(&mut received);
        let ended = self.be.finish_download(bytes)?;
        Ok((Scalars::read(&received), ended))
    }

    /// Loss of `micros` micro-batches of this rank, without dropout and gradients.
    pub fn evaluate(&self, load: Load, micros: u64) -> anyhow::Result<f64> {
        let loss = self.scalars.loss;
        self.forwards(load, micros as usize, None)?;
        self.params.groups.sum_over_stages_and_replicas(loss);
        self.be.sync()?;
        Ok(self.scalar(loss))
    }

    /// Forward passes without dropout; adds up the loss of this rank.
    fn forwards(&self, load: Load, micros: usize, sink: Option<LossSink>) -> anyhow::Result<()> {
        let rounds = schedule::forwards(self.pipeline_rank(), micros);
        let actions = schedule::with_messages(self.pipeline_rank(), &rounds);
        self.be.run(op::Zero { x: self.scalars.loss.set() });
        self.run(&actions, &self.eval, false, load, sink)
    }

    /// Executes the actions of a schedule.
    fn run(
        &self,
        actions: &[Action],
        slots: &[Vec<Activations>],
        training: bool,
        load: Load,
        mut sink: Option<LossSink>,
    ) -> anyhow::Result<()> {
        let be = self.be;
        let pp = self.pipeline_rank();
        let loss = self.scalars.loss;
        let params = &self.params;
        let graphs = &self.graphs;
        let cx = Cx { fp8: self.fp8, ..context(be, &params.groups, &self.manifest, training) };
        let stage = Stage { cx, layout: &params.layout, store: params };
        let activations = |pass: Pass| &slots[pass.slot][pass.chunk];
        let micros = actions
            .iter()
            .map(|action| action.pass().micro + 1)
            .max()
            .unwrap_or(0);
        let zero_every = self.manifest.topology.zero_every;
        let groups = &params.groups;
        let buffers = self.training.borrow();
        let TrainingBuffers { work, messages, .. } = &*buffers;
        let comm = PipelineComm { be, pp, groups, tp: cx.tp, buffers: messages };
        execute(
            actions,
            &comm,
            |side, pass| messages.tensor(side, activations(pass), work),
            |action| {
                match action {
                    Action::Forward(pass) => {
                        let inputs = &activations(pass).inputs;
                        match (pass.chunk, pass.slot == pass.home) {
                            (0, _) => load(inputs)?,
                            (_, true) => {}
                            (_, false) => inputs.copy(be, &slots[pass.home][0].inputs),
                        }
                        let fp8 = self.fp8.map(|fp8| fp8.for_forward(pass.micro == 0));
                        let codes = fp8.is_some_and(|fp8| fp8.new_weights);
                        let stage = Stage { cx: Cx { fp8, ..cx }, ..stage };
                        graphs.run(params, PassKind::Forward { training, codes }, pass, || {
                            stage.forward(activations(pass))
                        });
                    }
                    Action::Backward(pass) => {
                        // Every schedule runs a chunk's backward passes in the order of micro-batches.
                        let at = MicroBatch::new(pass.micro, micros, zero_every);
                        graphs.run(params, PassKind::Backward(at), pass, || {
                            messages.take_gradient(be, pp, pass, activations(pass), work);
                            stage.backward(activations(pass), work, loss.add(), at)
                        });
                    }
                    Action::Loss(pass) => {
                        graphs.run(params, PassKind::Loss, pass, || {
                            stage.loss(activations(pass), loss.add())
                        });
                        if let Some(sink) = &mut sink {
                            scorer::report_losses(be, activations(pass), sink);
                        }
                    }
                    _ => unreachable!("`execute` handles messages itself"),
                }
                Ok(())
            },
        )
    }

    /// Weights with a non-finite gradient in the step whose outcome was read last.
    pub fn not_finite(&self) -> Vec<String> {
        let received = self.received.borrow();
        let local = self
            .compression
            .iter()
            .flat_map(|compression| &compression.names);
        let names = self
            .update
            .names
            .iter()
            .chain(local)
            .zip(&received[Scalars::BEFORE_SUMS..]);
        let mut found = Vec::new();
        for (name, _) in names.filter(|(_, sum)| !sum.is_finite()) {
            if !found.contains(name) {
                found.push(name.clone());
            }
        }
        found
    }

    fn pipeline_rank(&self) -> PipelineRank {
        pipeline_rank(&self.params.groups, &self.manifest)
    }

    fn scalar(&self, x: Tensor) -> f64 {
        let mut value = [0.0f32];
        self.be.download(x, bytemuck::cast_slice_mut(&mut value));
        value[0] as f64
    }
}
