//! Losses of single tokens on any grid: of a model in training, or of a read-only one.

use super::arenas::{Arenas, MemoryPlan};
use super::frozen::Frozen;
use super::groups::{Groups, context, model_shard, pipeline_rank};
use super::play::{Mail, MessageBuffers, play};
use super::{Engine, Load};
use base::DType;
use device::{Backend, OutOfMemory, Tensor, op};
use manifest::Manifest;
use model::{Activations, Inputs, Stage, Tables};
use plan::schedule::{self, Action, Pass, Side};
use std::ops::Deref;

/// Receives the losses of a micro-batch, weight · −log p of each token [N], on ranks of the last
/// stage. Micro-batches arrive in order.
pub type Heard<'a> = &'a mut dyn FnMut(&[f32]);

/// Source of token losses.
pub trait Scores {
    /// Runs `micros` micro-batches forward, without dropout. A collective of the rank's groups.
    fn score(&self, load: Load, micros: usize, heard: Heard) -> anyhow::Result<()>;
}

impl Scores for Engine<'_> {
    fn score(&self, load: Load, micros: usize, heard: Heard) -> anyhow::Result<()> {
        self.forwards(load, micros, Some(heard))
    }
}

/// Passes the losses of a stage's head, if it has one, to `heard`. Called after `Stage::loss`.
pub(super) fn tell(be: &dyn Backend, held: &Activations, heard: Heard) {
    let Some(losses) = held.token_losses() else { return };
    let mut host = vec![0.0f32; losses.numel()];
    be.download(losses, bytemuck::cast_slice_mut(&mut host));
    heard(&host);
}

/// Model without optimizer, on a rank of any grid. Each replica holds all weights in f32.
pub struct Scorer<'a> {
    be: &'a dyn Backend,
    groups: Groups,
    manifest: Manifest,
    weights: Frozen<'a>,
    /// Buffers of the micro-batches in flight: by slot, for each chunk.
    slots: Vec<Vec<Activations>>,
    loss: Tensor,
    memory_plan: MemoryPlan,
}

struct Laid<'a> {
    weights: Frozen<'a>,
    tables: Tables,
    slots: Vec<Vec<Activations>>,
    loss: Tensor,
}

impl<'a> Deref for Scorer<'a> {
    type Target = Frozen<'a>;
    fn deref(&self) -> &Frozen<'a> {
        &self.weights
    }
}

impl<'a> Scorer<'a> {
    /// Reserves weights, and buffers for micro-batches of the manifest's size with samples of
    /// `seq_len` tokens. The weights are zero until every slice is written.
    pub fn new(
        be: &'a dyn Backend,
        groups: Groups,
        manifest: &Manifest,
        seq_len: usize,
    ) -> Result<Scorer<'a>, OutOfMemory> {
        let manifest = Frozen::manifest(manifest);
        let lay = |at: &Arenas| lay(be, &groups, &manifest, seq_len, at);
        let (Laid { weights, tables, slots, loss }, memory_plan) = Arenas::laid(be, lay)?;
        tables.upload(&context(be, &groups, &manifest, false));
        Ok(Scorer { be, groups, manifest, weights, slots, loss, memory_plan })
    }

    /// Reserved memory.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory_plan
    }
}

impl Scores for Scorer<'_> {
    fn score(&self, load: Load, micros: usize, heard: Heard) -> anyhow::Result<()> {
        let pp = pipeline_rank(&self.groups, &self.manifest);
        let actions = schedule::with_messages(pp, &schedule::forwards(pp, micros));
        let cx = context(self.be, &self.groups, &self.manifest, false);
        let stage = Stage { cx, layout: self.weights.layout(), store: &self.weights };
        let held = |pass: Pass| &self.slots[pass.slot][pass.chunk];
        self.be.run(op::Zero { x: self.loss });
        let mail = Mail {
            be: self.be,
            pp,
            groups: &self.groups,
            tp: cx.tp,
            buffers: &MessageBuffers::NONE,
        };
        let place = |side, pass| match side {
            Side::RecvX => held(pass).x,
            Side::SendY => held(pass).y,
            _ => unreachable!("forwards have no gradients"),
        };
        play(&actions, &mail, place, |action| {
            match action {
                Action::Forward(pass) => {
                    if pass.chunk == 0 {
                        load(&held(pass).inputs)?;
                    }
                    stage.forward(held(pass));
                }
                Action::Loss(pass) => {
                    stage.loss(held(pass), self.loss.add());
                    tell(self.be, held(pass), heard);
                }
                _ => unreachable!("forwards compute nothing else"),
            }
            Ok(())
        })?;
        self.be.sync()
    }
}

/// Lays out the scorer's memory. Deterministic: equal arguments give equal addresses.
fn lay<'a>(
    be: &'a dyn Backend,
    groups: &Groups,
    m: &Manifest,
    seq_len: usize,
    at: &Arenas,
) -> Laid<'a> {
    let cx = context(be, groups, m, false);
    let weights = Frozen::lay(be, &m.model, model_shard(groups, m), at);
    let tables = Tables::plan(&cx, &at.inputs);
    let loss = at.inputs.matrix(1, 1, DType::F32);
    let slots = schedule::forward_slots(pipeline_rank(groups, m));
    let inputs = |_| Inputs::plan(m.batch.micro, seq_len, false, &at.inputs);
    let inputs: Vec<Inputs> = (0..slots).map(inputs).collect();
    let chunks = |inputs: &Inputs| {
        let chunks = weights.layout().shard.chunks.iter();
        let space = &at.workspace;
        space.overlay(chunks.map(|c| Activations::plan(&cx, c, *inputs, &tables, space, space)))
    };
    let slots = inputs.iter().map(chunks).collect();
    Laid { weights, tables, slots, loss }
}
