//! One optimizer step of one rank: forwards and backwards in the schedule's order, then clip and
//! update. Every tensor is reserved in `new`; knows no files and prints nothing.

mod audit;
mod groups;
mod memory;
mod zero;
mod optimizer;
mod pieces;
mod sampler;
mod volume;
pub mod lr;

pub use audit::{Drift, Drifted};
pub use groups::{Groups, actions, cuts, orders};
pub use memory::Bill;
pub use optimizer::Moment;
pub use pieces::{Piece, Replica, saved_shape};
pub use sampler::Sampler;
pub use volume::volume;

use crate::base::DType;
use crate::comm::Message;
use crate::device::{Backend, OutOfMemory, Tensor};
use crate::manifest::{Manifest, Model, Precision};
use crate::model::{Cx, Inputs, Layout, Slot, Slots, Stage, TensorParallel, Work, alibi_slopes};
use crate::plan::schedule::{self, Action, Pass, Seat};
use groups::seat;
use memory::{Arenas, Scalars};
use optimizer::Optimizer;
use zero::{Keeper, Zero};

/// What one step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub loss: f64,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: f64,
}

impl Outcome {
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }
}

/// Loads the next micro-batch into the buffers given.
pub type Load<'a> = &'a mut dyn FnMut(&Inputs) -> anyhow::Result<()>;

/// A rank's model, its optimizer and every buffer a step needs.
pub struct Engine<'a> {
    be: &'a dyn Backend,
    groups: Groups,
    manifest: Manifest,
    layout: Layout,
    zero: Zero,
    optimizer: Optimizer,
    /// Buffers of what is in flight: by slot, for each chunk, over the same bytes.
    slots: Vec<Vec<Slots>>,
    work: Work,
    /// [n, H]: the gradient that came from the virtual stage after.
    arrived: Tensor,
    eval: Vec<Vec<Slots>>,
    scalars: Scalars,
    bill: Bill,
}

impl<'a> Engine<'a> {
    /// Reserves everything. The weights are zero until `init`, or `write` of every piece and
    /// `publish`. `causal` promises that no batch has a mask of its own.
    pub fn new(
        be: &'a dyn Backend,
        groups: Groups,
        manifest: &Manifest,
        causal: bool,
    ) -> Result<Engine<'a>, OutOfMemory> {
        let measured = Arenas::measuring();
        memory::lay(be, &groups, manifest, causal, &measured);
        let arenas = measured.reserve(be)?;
        let laid = memory::lay(be, &groups, manifest, causal, &arenas);
        let engine = Engine {
            be,
            groups,
            manifest: manifest.clone(),
            layout: laid.layout,
            zero: laid.zero,
            optimizer: laid.optimizer,
            slots: laid.slots,
            work: laid.work,
            arrived: laid.arrived,
            eval: laid.eval,
            scalars: laid.scalars,
            bill: arenas.bill(be.workspace()),
        };
        upload_slopes(be, &engine.groups, manifest, laid.slopes);
        Ok(engine)
    }

    /// The device it runs on.
    pub fn backend(&self) -> &dyn Backend {
        self.be
    }

    /// What was reserved.
    pub fn bill(&self) -> &Bill {
        &self.bill
    }

    /// The weights this rank holds.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.layout.slots()
    }

    /// Sets every weight to its initial value.
    pub fn init(&self) {
        let (model, seed) = (&self.manifest.model, self.manifest.train.seed);
        let mut values = Vec::new();
        for slot in self.layout.slots() {
            if let Some((part, master)) = self.optimizer.master_part(slot) {
                values.resize(slot.numel(), 0.0);
                self.layout.init(slot, model, seed, &mut values);
                self.be.upload(bytemuck::cast_slice(&values[part]), master);
            }
        }
        self.publish();
    }

    /// The model, of which this rank may hold a part.
    pub fn model(&self) -> &Model {
        &self.manifest.model
    }

    /// The dtype of the live weights.
    pub fn live_dtype(&self) -> DType {
        self.cx(false).dtype
    }

    /// Makes the live weights the rounded master weights, on every rank.
    pub fn publish(&self) {
        self.optimizer.publish(self.be);
        self.zero.updated(&*self.groups.data);
        self.zero.settle(&*self.groups.data);
    }

    /// Gradients of the last step's micro-batches, unclipped, f32; of a weight this rank owns whole.
    pub fn read_grad(&self, slot: &Slot, out: &mut [f32]) {
        let first = self.zero.own(slot.bucket).start;
        let grad = self.zero.own_grads(slot.bucket).span(slot.offset - first, slot.numel());
        self.be.download(grad, bytemuck::cast_slice_mut(out));
    }

    /// One optimizer step over `micros` micro-batches of this rank, the `number`th counted from 1.
    /// The loss is Σ weight · −log p over all tokens loaded by all ranks. If the outcome is not
    /// finite nothing was updated.
    pub fn step(&self, load: Load, micros: usize, lr: f64, number: u64) -> anyhow::Result<Outcome> {
        let (be, groups, s) = (self.be, &self.groups, &self.scalars);
        let keeper = self.keeper();
        let (actions, _) = actions(self.seat(), self.manifest.topology.schedule, micros);
        self.zero.begin(be);
        be.zero(s.loss);
        self.run(&actions, &self.slots, &keeper, true, load)?;
        keeper.finish(&*groups.ends);
        groups.sum_over_stages_and_replicas(s.loss);
        self.optimizer.step(be, groups, self.zero.shares(), s, (lr, number));
        self.zero.updated(&*groups.data);
        be.sync()?;
        Ok(Outcome { loss: self.scalar(s.loss), grad_norm: self.scalar(s.clip.span(0, 1)) })
    }

    /// The loss of `micros` micro-batches of this rank, without dropout and gradients.
    pub fn evaluate(&self, load: Load, micros: u64) -> anyhow::Result<f64> {
        let loss = self.scalars.loss;
        let rounds = schedule::forwards(self.seat(), micros as usize);
        let actions = schedule::with_messages(self.seat(), &rounds);
        self.be.zero(loss);
        self.run(&actions, &self.eval, &self.keeper(), false, load)?;
        self.groups.sum_over_stages_and_replicas(loss);
        self.be.sync()?;
        Ok(self.scalar(loss))
    }

    /// Does what the schedule says: the one place where order becomes work.
    fn run(
        &self,
        actions: &[Action],
        slots: &[Vec<Slots>],
        custody: &Keeper,
        training: bool,
        load: Load,
    ) -> anyhow::Result<()> {
        let (be, seat, loss) = (self.be, self.seat(), self.scalars.loss);
        let stage = Stage { cx: self.cx(training), layout: &self.layout, custody };
        let held = |pass: Pass| &slots[pass.slot][pass.chunk];
        let micros = actions.iter().map(|action| action.pass().micro + 1).max().unwrap_or(0);
        let mut left = actions;
        while let [action, rest @ ..] = left {
            left = rest;
            match *action {
                Action::Forward(pass) => {
                    let inputs = &held(pass).inputs;
                    match (pass.chunk, pass.slot == pass.home) {
                        (0, _) => load(inputs)?,
                        (_, true) => (),
                        (_, false) => inputs.copy(be, &slots[pass.home][0].inputs),
                    }
                    stage.forward(held(pass));
                }
                Action::Backward(pass) => {
                    if seat.stage(pass.chunk) + 1 < seat.stages() {
                        be.copy(self.arrived, self.work.stream.set());
                    }
                    let last = pass.micro + 1 == micros;
                    stage.backward(held(pass), &self.work, loss.add(), last);
                }
                Action::Loss(pass) => stage.loss(held(pass), loss.add()),
                message => {
                    let more = schedule::leading_messages(left);
                    left = &left[more.len()..];
                    let together = std::iter::once(&message).chain(more);
                    let posted: Vec<_> = together.map(|m| self.message(*m, held)).collect();
                    self.groups.pipeline.exchange(&posted);
                }
            }
        }
        Ok(())
    }

    /// What a rank sends and receives: a micro-batch's stream, or the gradient of it.
    fn message<'s>(&self, action: Action, held: impl Fn(Pass) -> &'s Slots) -> Message {
        let seat = self.seat();
        match action {
            Action::RecvX(pass) => Message::Recv { from: seat.before(), x: held(pass).x },
            Action::SendY(pass) => Message::Send { to: seat.after(), x: held(pass).y },
            Action::RecvDy(_) => Message::Recv { from: seat.after(), x: self.arrived },
            Action::SendDx(_) => Message::Send { to: seat.before(), x: self.work.stream },
            _ => unreachable!("computations send nothing"),
        }
    }

    /// Weights whose gradient in the last step was not finite.
    pub fn not_finite(&self) -> Vec<&str> {
        let mut sums = vec![0.0f32; self.scalars.sums.numel()];
        self.be.download(self.scalars.sums, bytemuck::cast_slice_mut(&mut sums));
        let names = self.optimizer.names().iter().zip(sums);
        names.filter(|(_, sum)| !sum.is_finite()).map(|(name, _)| name.as_str()).collect()
    }

    fn seat(&self) -> Seat {
        seat(&self.groups, &self.manifest)
    }

    fn cx(&self, training: bool) -> Cx<'_> {
        context(self.be, &self.groups, &self.manifest, training)
    }

    fn keeper(&self) -> Keeper<'_> {
        Keeper {
            be: self.be,
            zero: &self.zero,
            layout: &self.layout,
            data: &*self.groups.data,
            partial: &*self.groups.partial,
            sequence: self.manifest.topology.sequence_parallel,
            tied: self.manifest.model.tied_head && self.groups.pipeline.size() > 1,
        }
    }

    fn scalar(&self, x: Tensor) -> f64 {
        let mut value = [0.0f32];
        self.be.download(x, bytemuck::cast_slice_mut(&mut value));
        value[0] as f64
    }
}

/// What the model's layers need of a rank.
fn context<'a>(
    be: &'a dyn Backend,
    groups: &'a Groups,
    manifest: &'a Manifest,
    training: bool,
) -> Cx<'a> {
    Cx {
        be,
        tp: TensorParallel {
            group: &*groups.tensor,
            sequence: manifest.topology.sequence_parallel,
        },
        model: &manifest.model,
        dtype: match manifest.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::Fp16 => unreachable!("`runnable` refuses fp16"),
        },
        recompute: manifest.topology.recompute,
        seed: manifest.train.seed,
        training,
    }
}

fn upload_slopes(be: &dyn Backend, groups: &Groups, manifest: &Manifest, to: Option<Tensor>) {
    if let Some(to) = to {
        let first = manifest.model.heads / groups.tensor.size() * groups.tensor.rank();
        let slopes = alibi_slopes(manifest.model.heads);
        be.upload(bytemuck::cast_slice(&slopes[first..first + to.cols]), to);
    }
}
