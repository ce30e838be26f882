//! The model without its optimizer: the next token's logits, for looking at what was learned.

use super::arenas::Arenas;
use super::groups::{Groups, context};
use super::params::{Held, StateSlice, cut};
use super::states::StateSpec;
use crate::data::{Batch, Column};
use crate::device::{Backend, OutOfMemory, Tensor};
use crate::manifest::{Manifest, Model, Precision};
use crate::model::{
    Activations, Bucket, Inputs, Layout, ModelShard, ParamStore, Params, Stage, Tables,
};
use std::ops::Range;

pub struct Sampler<'a> {
    be: &'a dyn Backend,
    groups: Groups,
    manifest: Manifest,
    layout: Layout,
    flat: Vec<Tensor>,
    weights: Weights,
    activations: Activations,
    batch: Batch,
}

/// Every bucket's weights, all the time, and no gradients.
struct Weights(Vec<Params>);

impl ParamStore for Weights {
    fn weights(&self, bucket: usize) -> &Params {
        &self.0[bucket]
    }
    fn grads(&self, _: usize) -> &Params {
        unreachable!("a sampler never goes backward")
    }
    fn grads_done(&self, _: usize, _: bool) {
        unreachable!("a sampler never goes backward")
    }
}

struct Laid {
    layout: Layout,
    /// Where each bucket lies.
    flat: Vec<Tensor>,
    tables: Tables,
    activations: Activations,
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
        let manifest =
            &Manifest { precision: Precision::F32, loss_scale: None, ..manifest.clone() };
        let measured = Arenas::measuring();
        lay(be, &groups, manifest, context_len, &measured);
        let arenas = measured.reserve(be)?;
        let laid = lay(be, &groups, manifest, context_len, &arenas);
        laid.tables.upload(&context(be, &groups, manifest, false));
        Ok(Sampler {
            be,
            groups,
            manifest: manifest.clone(),
            weights: Weights(
                laid.layout
                    .buckets
                    .iter()
                    .zip(&laid.flat)
                    .map(|(b, at)| Params::new(b, *at))
                    .collect(),
            ),
            layout: laid.layout,
            flat: laid.flat,
            activations: laid.activations,
            // Causal attention makes what follows the last token harmless.
            batch: Batch::causal(&vec![0; context_len + 1], 1, 0, 0.0),
        })
    }

    /// The weights, each whole.
    pub fn slices(&self) -> Vec<StateSlice> {
        let held = self.layout.params().map(|param| {
            let bucket = &self.layout.buckets[param.bucket];
            let at = param.tensor(bucket, self.flat[param.bucket]);
            Held { param, state: StateSpec::master(), range: 0..param.numel(), at, data: 0 }
        });
        cut(&self.layout, &self.manifest.model, held)
    }

    pub fn model(&self) -> &Model {
        &self.manifest.model
    }

    /// Writes rows of a weight, from row `first` on.
    pub fn write(&self, slice: &StateSlice, first: usize, bytes: &[u8]) {
        self.be.upload(bytes, slice.rows_of(first, bytes));
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
        let stage = Stage { cx, layout: &self.layout, store: &self.weights };
        self.activations.inputs.upload(self.be, &self.batch);
        stage.forward(&self.activations);
        let Model { vocab, vocab_padded, .. } = self.manifest.model;
        let mut host = vec![0.0; vocab_padded];
        for position in positions {
            let logits = stage.logits(&self.activations, position);
            self.be.download(logits, bytemuck::cast_slice_mut(&mut host));
            each(position, &host[..vocab]);
        }
    }
}

fn lay(be: &dyn Backend, groups: &Groups, m: &Manifest, context_len: usize, at: &Arenas) -> Laid {
    let cx = context(be, groups, m, false);
    let layout = Layout::new(&m.model, ModelShard::whole(&m.model));
    let tables = Tables::plan(&cx, &at.inputs);
    let inputs = Inputs::plan(1, context_len, true, &at.inputs);
    let bucket = |b: &Bucket| at.weights.matrix(1, b.range.len(), cx.dtype);
    Laid {
        flat: layout.buckets.iter().map(bucket).collect(),
        activations: Activations::plan(
            &cx,
            &layout.shard.chunks[0],
            inputs,
            &tables,
            &at.workspace,
            &at.workspace,
        ),
        layout,
        tables,
    }
}
