//! The model without its optimizer: the next token's logits, for looking at what was learned.

use super::memory::{self, Arenas};
use super::{Groups, Piece, context, pieces, upload_slopes};
use crate::data::Batch;
use crate::device::{Backend, OutOfMemory, Tensor};
use crate::manifest::{Manifest, Model, Precision};
use crate::model::{Bucket, Custody, Inputs, Layout, Params, Part, Slots, Stage};

pub struct Sampler<'a> {
    be: &'a dyn Backend,
    groups: Groups,
    manifest: Manifest,
    layout: Layout,
    live: Vec<Tensor>,
    weights: Weights,
    slots: Slots,
    batch: Batch,
}

/// Every bucket's weights, all the time, and no gradients.
struct Weights(Vec<Params>);

impl Custody for Weights {
    fn weights(&self, bucket: usize) -> &Params {
        &self.0[bucket]
    }
    fn release(&self, _: usize) {}
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
    live: Vec<Tensor>,
    slopes: Option<Tensor>,
    slots: Slots,
}

impl<'a> Sampler<'a> {
    /// Reserves f32 weights and the buffers for one sample of `context_len` tokens. The weights are
    /// zero until every piece is written.
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
        upload_slopes(be, &groups, manifest, laid.slopes);
        Ok(Sampler {
            be,
            groups,
            manifest: manifest.clone(),
            weights: Weights(
                laid.layout
                    .buckets
                    .iter()
                    .zip(&laid.live)
                    .map(|(b, at)| Params::new(b, *at))
                    .collect(),
            ),
            layout: laid.layout,
            live: laid.live,
            slots: laid.slots,
            batch: blank(context_len),
        })
    }

    /// The weights, each whole.
    pub fn pieces(&self) -> Vec<Piece> {
        let whole = |bucket: usize| (self.layout.buckets[bucket].range.clone(), 0);
        pieces::cut(&self.layout, &self.manifest.model, whole)
    }

    pub fn model(&self) -> &Model {
        &self.manifest.model
    }

    /// A weight's rows from row `first` on.
    pub fn write(&self, piece: &Piece, first: usize, values: &[f32]) {
        let slot = &piece.slot;
        let weight = slot.tensor(&self.layout.buckets[slot.bucket], self.live[slot.bucket]);
        let rows = weight.row_range(first, values.len() / slot.cols);
        self.be.upload(bytemuck::cast_slice(values), rows);
    }

    /// Logits of the token after `tokens`, one for each entry of the vocabulary.
    pub fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let context_len = self.batch.seq_len;
        let tail = &tokens[tokens.len().saturating_sub(context_len)..];
        for (slot, token) in self.batch.tokens.iter_mut().zip(tail) {
            *slot = *token as i32;
        }
        let cx = context(self.be, &self.groups, &self.manifest, false);
        let stage = Stage { cx, layout: &self.layout, custody: &self.weights };
        self.slots.inputs.upload(self.be, &self.batch);
        stage.forward(&self.slots);
        let logits = stage.logits(&self.slots, tail.len() - 1);
        let mut host = vec![0.0; self.manifest.model.vocab_padded];
        self.be.download(logits, bytemuck::cast_slice_mut(&mut host));
        host.truncate(self.manifest.model.vocab);
        host
    }
}

fn lay(be: &dyn Backend, groups: &Groups, m: &Manifest, context_len: usize, at: &Arenas) -> Laid {
    let cx = context(be, groups, m, false);
    let layout = Layout::new(&m.model, Part::whole(&m.model));
    let slopes = memory::slopes(&cx, m, &at.inputs);
    let inputs = Inputs::plan(1, context_len, true, &at.inputs);
    let bucket = |b: &Bucket| at.weights.matrix(1, b.range.len(), cx.dtype);
    Laid {
        live: layout.buckets.iter().map(bucket).collect(),
        slots: Slots::plan(&cx, &layout.part.chunks[0], inputs, slopes, &at.scratch, &at.scratch),
        layout,
        slopes,
    }
}

/// One sample of the right shape; causal attention makes what follows the last token harmless.
fn blank(len: usize) -> Batch {
    Batch {
        samples: 1,
        seq_len: len,
        tokens: vec![0; len],
        targets: vec![0; len],
        weights: vec![0.0; len],
        positions: (0..len as i32).collect(),
        visible: vec![0; 2 * len],
        ..Batch::default()
    }
}
