//! One optimizer step of one rank: forwards and backwards in the schedule's order, then clip and
//! update. Every tensor is reserved in `new`; knows no files and prints nothing.

mod audit;
mod groups;
mod memory;
mod zero;
mod optimizer;
mod passes;
mod pieces;
mod sampler;
mod scaler;
mod volume;
pub mod lr;

pub use audit::{Drift, Drifted};
pub use groups::{Groups, actions, cuts, orders};
pub use memory::Bill;
pub use optimizer::Moment;
pub use pieces::{Piece, Replica, saved_shape};
pub use sampler::Sampler;
pub use scaler::Scale;
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
use passes::{Kind, Passes};
use std::cell::RefCell;
use std::time::Instant;
use zero::{Keeper, Zero};

/// What one step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub loss: f64,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// The gradient was not finite: nothing was updated.
    pub skipped: bool,
    /// Skipped, and no later step will update: the loss scale cannot be lowered any more.
    pub stuck: bool,
    /// What the next step multiplies its loss by.
    pub loss_scale: f64,
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
    /// Dropped before the groups that they call.
    passes: Passes,
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
    /// The last outcome that was waited for, as the device wrote it.
    received: RefCell<Vec<f32>>,
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
            passes: Passes::new(&groups, manifest),
            groups,
            manifest: manifest.clone(),
            layout: laid.layout,
            zero: laid.zero,
            optimizer: laid.optimizer,
            slots: laid.slots,
            work: laid.work,
            arrived: laid.arrived,
            eval: laid.eval,
            received: RefCell::new(vec![0.0; laid.scalars.outcome.numel()]),
            scalars: laid.scalars,
            bill: arenas.bill(be.workspace()),
        };
        upload_slopes(be, &engine.groups, manifest, laid.slopes);
        engine.set_scale(None, 0);
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

    /// Where the scale of the loss stands, and how many updates were made.
    pub fn scale(&self) -> Scale {
        scaler::read(self.be, self.scalars.scaler)
    }

    /// Goes on from where the scale stood, as far as the manifest's settings allow it; from the
    /// initial one where none was saved, after `updates`.
    pub fn set_scale(&self, saved: Option<Scale>, updates: u64) {
        let m = &self.manifest;
        let scale = saved.map_or(Scale { updates, ..Scale::initial(m) }, |saved| saved.under(m));
        scaler::write(self.be, self.scalars.scaler, &scale);
    }

    /// One optimizer step over `micros` micro-batches of this rank, and its outcome. The loss is
    /// Σ weight · −log p over all tokens loaded by all ranks.
    pub fn step(&self, load: Load, micros: usize, lr: f64) -> anyhow::Result<Outcome> {
        self.queue(load, micros, lr)?;
        Ok(self.outcome()?.0)
    }

    /// Asks for a step. The device may still be at it, and at the one before, when this returns: at
    /// most two steps may be without their outcome.
    pub fn queue(&self, load: Load, micros: usize, lr: f64) -> anyhow::Result<()> {
        let (be, groups, s) = (self.be, &self.groups, &self.scalars);
        let keeper = self.keeper();
        let (actions, _) = actions(self.seat(), self.manifest.topology.schedule, micros);
        self.zero.begin(be);
        be.zero(s.loss);
        self.run(&actions, &self.slots, &keeper, true, load)?;
        keeper.finish(&*groups.ends);
        groups.sum_over_stages_and_replicas(s.loss);
        self.optimizer.step(be, groups, self.zero.shares(), s, lr);
        self.zero.updated(&*groups.data);
        be.send(s.outcome);
        Ok(())
    }

    /// Waits for the oldest step whose outcome nobody has seen. Also when it ended, as far as the
    /// host knows.
    pub fn outcome(&self) -> anyhow::Result<(Outcome, Instant)> {
        let mut all = self.received.borrow_mut();
        let ended = self.be.receive(bytemuck::cast_slice_mut(&mut all))?;
        Ok((Scalars::read(&all), ended))
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
                    let ask = || stage.forward(held(pass));
                    self.pass(Kind::Forward { training }, pass, custody, ask);
                }
                Action::Backward(pass) => {
                    let last = pass.micro + 1 == micros;
                    let ask = || {
                        if seat.stage(pass.chunk) + 1 < seat.stages() {
                            be.copy(self.arrived, self.work.stream.set());
                        }
                        stage.backward(held(pass), &self.work, loss.add(), last);
                    };
                    self.pass(Kind::Backward { last }, pass, custody, ask);
                }
                Action::Loss(pass) => {
                    let ask = || stage.loss(held(pass), loss.add());
                    self.pass(Kind::Loss, pass, custody, ask);
                }
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

    /// Weights whose gradient was not finite in the step whose outcome was seen last.
    pub fn not_finite(&self) -> Vec<String> {
        let received = self.received.borrow();
        let names = self.optimizer.names().iter().zip(&received[Scalars::BEFORE_SUMS..]);
        names.filter(|(_, sum)| !sum.is_finite()).map(|(name, _)| name.clone()).collect()
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
        dtype: live_dtype(manifest.precision),
        recompute: manifest.topology.recompute,
        seed: manifest.train.seed,
        training,
    }
}

/// Of weights and activations; master weights and gradients are f32.
pub fn live_dtype(precision: Precision) -> DType {
    match precision {
        Precision::F32 | Precision::Tf32 => DType::F32,
        Precision::Bf16 => DType::BF16,
        Precision::Fp16 => DType::F16,
    }
}

fn upload_slopes(be: &dyn Backend, groups: &Groups, manifest: &Manifest, to: Option<Tensor>) {
    if let Some(to) = to {
        let first = manifest.model.heads / groups.tensor.size() * groups.tensor.rank();
        let slopes = alibi_slopes(manifest.model.heads);
        be.upload(bytemuck::cast_slice(&slopes[first..first + to.cols]), to);
    }
}
