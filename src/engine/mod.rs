//! One optimizer step of one rank: forwards and backwards in the schedule's order, then clip and
//! update. Allocates nothing after `new`; knows no files and prints nothing.

pub mod lr;
mod memory;
mod optimizer;
mod sampler;
mod zero;

pub use memory::Bill;
pub use optimizer::Moment;
pub use sampler::Sampler;

use crate::base::DType;
use crate::comm::{Group, Solo};
use crate::device::{Backend, OutOfMemory, Tensor};
use crate::manifest::{Manifest, Precision};
use crate::model::{Cx, Inputs, Layout, Slot, Slots, Stage, TensorParallel, Work, alibi_slopes};
use crate::plan::schedule::{self, Action};
use memory::{Arenas, Scalars};
use optimizer::Optimizer;
use zero::Replica;

/// The groups a rank belongs to.
pub struct Groups {
    pub tensor: Box<dyn Group>,
}

impl Groups {
    /// One rank, alone in every group.
    pub fn solo() -> Groups {
        Groups { tensor: Box::new(Solo) }
    }
}

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
    replica: Replica,
    optimizer: Optimizer,
    slots: Vec<Slots>,
    work: Work,
    eval: Slots,
    scalars: Scalars,
    bill: Bill,
}

impl<'a> Engine<'a> {
    /// Reserves everything. The weights are zero until `init`, or `write` of every slot and
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
            replica: laid.replica,
            optimizer: laid.optimizer,
            slots: laid.slots,
            work: laid.work,
            eval: laid.eval,
            scalars: laid.scalars,
            bill: arenas.bill(),
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
            values.resize(slot.numel(), 0.0);
            self.layout.init(slot, model, seed, &mut values);
            self.write(Moment::Master, slot, &values);
        }
        self.publish();
    }

    /// What the optimizer keeps of one weight, to the host.
    pub fn read(&self, moment: Moment, slot: &Slot, out: &mut [f32]) {
        self.be.download(self.optimizer.kept(moment, slot), bytemuck::cast_slice_mut(out));
    }

    /// Rows of the live copy of one weight, which forward and backward compute with, as they lie in
    /// memory.
    pub fn read_live(&self, slot: &Slot, rows: std::ops::Range<usize>, out: &mut [u8]) {
        self.be.download(self.optimizer.live(slot).row_range(rows.start, rows.len()), out);
    }

    /// Token ids are below this: rows of the embedding from here on are padding.
    pub fn vocab(&self) -> usize {
        self.manifest.model.vocab
    }

    /// The dtype of the live weights.
    pub fn live_dtype(&self) -> DType {
        context(self.be, &self.groups, &self.manifest, false).dtype
    }

    /// What the optimizer keeps of one weight, from the host. After the last master weight:
    /// `publish`.
    pub fn write(&self, moment: Moment, slot: &Slot, values: &[f32]) {
        self.be.upload(bytemuck::cast_slice(values), self.optimizer.kept(moment, slot));
    }

    /// Some rows of it, from row `first` on.
    pub fn write_rows(&self, moment: Moment, slot: &Slot, first: usize, values: &[f32]) {
        let rows = self.optimizer.kept(moment, slot).row_range(first, values.len() / slot.cols);
        self.be.upload(bytemuck::cast_slice(values), rows);
    }

    /// Makes the live weights the rounded master weights.
    pub fn publish(&self) {
        self.optimizer.publish(self.be);
    }

    /// Gradients of the last step's micro-batches, unclipped, f32.
    pub fn read_grad(&self, slot: &Slot, out: &mut [f32]) {
        let grad = slot.tensor(self.replica.flat_grads);
        self.be.download(grad, bytemuck::cast_slice_mut(out));
    }

    /// One optimizer step over `micros` micro-batches, the `number`th counted from 1. The loss is
    /// Σ weight · −log p over all tokens loaded. If the outcome is not finite nothing was updated.
    pub fn step(&self, load: Load, micros: usize, lr: f64, number: u64) -> anyhow::Result<Outcome> {
        let cx = context(self.be, &self.groups, &self.manifest, true);
        let stage = Stage { cx, custody: &self.replica };
        self.be.zero(self.replica.flat_grads);
        self.be.zero(self.scalars.loss);
        for action in schedule::one_f_one_b(0, 1, micros) {
            match action {
                Action::Forward(micro) => {
                    let slots = &self.slots[micro % self.slots.len()];
                    load(&slots.inputs)?;
                    stage.forward(slots);
                }
                Action::Backward(micro) => {
                    let slots = &self.slots[micro % self.slots.len()];
                    stage.backward(slots, &self.work, self.scalars.loss.add(), micro + 1 == micros);
                }
            }
        }
        self.optimizer.step(self.be, &self.scalars, lr, number);
        self.be.sync()?;
        Ok(Outcome {
            loss: self.scalar(self.scalars.loss),
            grad_norm: self.scalar(self.scalars.clip.span(0, 1)),
        })
    }

    /// Weights whose gradient in the last step was not finite.
    pub fn not_finite(&self) -> Vec<&str> {
        let mut sums = vec![0.0f32; self.scalars.sums.numel()];
        self.be.download(self.scalars.sums, bytemuck::cast_slice_mut(&mut sums));
        let slots = self.layout.slots().zip(sums);
        slots.filter(|(_, sum)| !sum.is_finite()).map(|(slot, _)| slot.name.as_str()).collect()
    }

    /// The loss of `micros` micro-batches, without dropout and gradients.
    pub fn evaluate(&self, load: Load, micros: u64) -> anyhow::Result<f64> {
        let cx = context(self.be, &self.groups, &self.manifest, false);
        let stage = Stage { cx, custody: &self.replica };
        self.be.zero(self.scalars.loss);
        for _ in 0..micros {
            load(&self.eval.inputs)?;
            stage.forward(&self.eval);
            stage.loss(&self.eval, self.scalars.loss.add());
        }
        self.be.sync()?;
        Ok(self.scalar(self.scalars.loss))
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
        tp: TensorParallel { group: &*groups.tensor, sequence: false },
        model: &manifest.model,
        dtype: match manifest.precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
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
