//! The next token's logits, of one rank, for looking at what was learned.

use super::arenas::Arenas;
use super::frozen::Frozen;
use super::groups::{Groups, context};
use data::{Batch, Column};
use device::{Backend, OutOfMemory};
use manifest::{Manifest, Model};
use model::{Activations, Inputs, ModelShard, Stage, Tables};
use std::ops::{Deref, Range};

/// The model without its optimizer, for one text at a time.
pub struct Sampler<'a> {
    be: &'a dyn Backend,
    groups: Groups,
    manifest: Manifest,
    weights: Frozen<'a>,
    activations: Activations,
    batch: Batch,
}

struct Laid<'a> {
    weights: Frozen<'a>,
    tables: Tables,
    activations: Activations,
}

impl<'a> Deref for Sampler<'a> {
    type Target = Frozen<'a>;
    fn deref(&self) -> &Frozen<'a> {
        &self.weights
    }
}

impl<'a> Sampler<'a> {
    /// Reserves f32 weights and the buffers for one sample of `context_len` tokens. The weights are
    /// zero until every slice is written.
    pub fn new(
        be: &'a dyn Backend,
        manifest: &Manifest,
        context_len: usize,
    ) -> Result<Sampler<'a>, OutOfMemory> {
        let groups = Groups::solo();
        let manifest = Frozen::manifest(manifest);
        let lay = |at: &Arenas| lay(be, &groups, &manifest, context_len, at);
        let (Laid { weights, tables, activations }, _) = Arenas::laid(be, lay)?;
        tables.upload(&context(be, &groups, &manifest, false));
        Ok(Sampler {
            be,
            groups,
            manifest,
            weights,
            activations,
            // Causal attention makes what follows the last token harmless.
            batch: Batch::causal(&vec![0; context_len + 1], 1, 0, 0.0),
        })
    }

    /// Logits of the token after `tokens`, one for each entry of the vocabulary.
    pub fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let context_len = self.batch.seq_len();
        let tail = &tokens[tokens.len().saturating_sub(context_len)..];
        let mut last = Vec::new();
        self.forward(tail, tail.len() - 1..tail.len(), |_, logits| last = logits.to_vec());
        last
    }

    /// Calls `each` with every position of `tokens`, which fit into the context, and the logits of
    /// the token after it.
    pub fn each_logits(&mut self, tokens: &[u32], each: impl FnMut(usize, &[f32])) {
        self.forward(tokens, 0..tokens.len(), each);
    }

    fn forward(
        &mut self,
        tokens: &[u32],
        positions: Range<usize>,
        mut each: impl FnMut(usize, &[f32]),
    ) {
        for (to, token) in self.batch.column_mut(Column::Tokens).iter_mut().zip(tokens) {
            *to = *token as i32;
        }
        let cx = context(self.be, &self.groups, &self.manifest, false);
        let stage = Stage { cx, layout: self.weights.layout(), store: &self.weights };
        self.activations.inputs.upload(self.be, &self.batch);
        stage.forward(&self.activations);
        let Model { vocab, vocab_padded, logit_softcap, .. } = self.manifest.model;
        let mut host = vec![0.0; vocab_padded];
        for position in positions {
            let logits = stage.logits(&self.activations, position);
            self.be.download(logits, bytemuck::cast_slice_mut(&mut host));
            if let Some(cap) = logit_softcap {
                host.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
            }
            each(position, &host[..vocab]);
        }
    }
}

fn lay<'a>(
    be: &'a dyn Backend,
    groups: &Groups,
    m: &Manifest,
    context_len: usize,
    at: &Arenas,
) -> Laid<'a> {
    let cx = context(be, groups, m, false);
    let weights = Frozen::lay(be, &m.model, ModelShard::whole(&m.model), at);
    let tables = Tables::plan(&cx, &at.inputs);
    let inputs = Inputs::plan(1, context_len, true, &at.inputs);
    let chunk = &weights.layout().shard.chunks[0];
    let activations = Activations::plan(&cx, chunk, inputs, &tables, &at.workspace, &at.workspace);
    Laid { weights, tables, activations }
}
