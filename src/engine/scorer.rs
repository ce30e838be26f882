//! Losses of single tokens on any grid: of a model in training, or of a read-only one.

use super::arenas::{Arenas, MemoryPlan};
use super::execute::{MessageBuffers, PipelineComm, execute};
use super::frozen::Frozen;
use super::groups::{Groups, context, model_shard, pipeline_rank};
use super::{Engine, Load};
use base::DType;
use device::{Backend, OutOfMemory, Tensor, op};
use manifest::Manifest;
use model::{Activations, Inputs, Stage, Tables};
use plan::schedule::{self, Action, Pass, Side};

/// Receives the losses of a micro-batch, weight · −log p of each token [N], on ranks of the last
/// stage. Micro-batches arrive in order.
pub type LossSink<'a> = &'a mut dyn FnMut(&[f32]);

/// Source of token losses.
pub trait LossSource {
    /// Runs `micros` micro-batches forward, without dropout. A collective of the rank's groups.
    fn score(&self, load: Load, micros: usize, sink: LossSink) -> anyhow::Result<()>;
}

impl LossSource for Engine<'_> {
    fn score(&self, load: Load, micros: usize, sink: LossSink) -> anyhow::Result<()> {
        self.forwards(load, micros, Some(sink))
    }
}

/// Passes the losses of a stage's head, if it has one, to `sink`. Called after `Stage::loss`.
pub(super) fn report_losses(be: &dyn Backend, activations: &Activations, sink: LossSink) {
    let Some(losses) = activations.token_losses() else { return };
    let mut host = vec![0.0f32; losses.numel()];
    be.download(losses, bytemuck::cast_slice_mut(&mut host));
    sink(&host);
}

/// Model without optimizer, on a rank of any grid. Each replica holds all weights in f32.
pub struct Scorer<'a> {
    be: &'a dyn Backend,
    groups: Groups,
    manifest: Manifest,
    pub weights: Frozen<'a>,
    /// Buffers of the micro-batches in flight: by slot, for each chunk.
    slots: Vec<Vec<Activations>>,
    loss: Tensor,
    memory_plan: MemoryPlan,
}

struct ScorerBuffers<'a> {
    weights: Frozen<'a>,
    tables: Tables,
    slots: Vec<Vec<Activations>>,
    loss: Tensor,
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
        let (ScorerBuffers { weights, tables, slots, loss }, memory_plan) =
            Arenas::reserve_for(be, |arenas: &Arenas| {
                lay_out(be, &groups, &manifest, seq_len, arenas)
            })?;
        tables.upload(&context(be, &groups, &manifest, false));
        Ok(Scorer { be, groups, manifest, weights, slots, loss, memory_plan })
    }

    /// Reserved memory.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.memory_plan
    }
}

impl LossSource for Scorer<'_> {
    fn score(&self, load: Load, micros: usize, sink: LossSink) -> anyhow::Result<()> {
        let pp = pipeline_rank(&self.groups, &self.manifest);
        let actions = schedule::with_messages(pp, &schedule::forwards(pp, micros));
        let cx = context(self.be, &self.groups, &self.manifest, false);
        let stage = Stage { cx, layout: self.weights.layout(), store: &self.weights };
        let activations = |pass: Pass| &self.slots[pass.slot][pass.chunk];
        self.be.run(op::Zero { x: self.loss.set() });
        let buffers = &MessageBuffers::NONE;
        let comm = PipelineComm { be: self.be, pp, groups: &self.groups, tp: cx.tp, buffers };
        execute(
            &actions,
            &comm,
            |side, pass| match side {
                Side::RecvX => activations(pass).x,
                Side::SendY => activations(pass).y,
                _ => unreachable!("forwards have no gradients"),
            },
            |action| {
                match action {
                    Action::Forward(pass) => {
                        if pass.chunk == 0 {
                            load(&activations(pass).inputs)?;
                        }
                        stage.forward(activations(pass));
                    }
                    Action::Loss(pass) => {
                        stage.loss(activations(pass), self.loss.add());
                        report_losses(self.be, activations(pass), sink);
                    }
                    _ => unreachable!("forwards compute nothing else"),
                }
                Ok(())
            },
        )?;
        self.be.sync()
    }
}

/// Lays out the scorer's memory. Deterministic: equal arguments give equal addresses.
fn lay_out<'a>(
    be: &'a dyn Backend,
    groups: &Groups,
    m: &Manifest,
    seq_len: usize,
    arenas: &Arenas,
) -> ScorerBuffers<'a> {
    let cx = context(be, groups, m, false);
    let weights = Frozen::lay_out(be, &m.model, model_shard(groups, m), arenas);
    let tables = Tables::plan(&cx, &arenas.inputs);
    let loss = arenas.inputs.matrix(1, 1, DType::F32);
    let slots = schedule::forward_slots(pipeline_rank(groups, m));
    let inputs: Vec<Inputs> = (0..slots)
        .map(|_| Inputs::plan(m.batch.micro, seq_len, false, &arenas.inputs))
        .collect();
    let slots = inputs
        .iter()
        .map(|inputs| {
            let chunks = weights.layout().shard.chunks.iter();
            let space = &arenas.workspace;
            space.overlay(chunks.map(|c| Activations::plan(&cx, c, *inputs, &tables, space, space)))
        })
        .collect();
    ScorerBuffers { weights, tables, slots, loss }
}
