//! The layers of a rank, run forwards and backwards on one micro-batch.

use super::layers::{embedding, head};
use super::{Cx, Inputs, Params, Weight, block};
use crate::device::{Arena, Out, Tensor};

/// Who holds weights and gradients between uses. The stage brackets every bucket with these doors
/// and never learns which ZeRO stage is behind them. Buckets: 0 the embedding, then the blocks,
/// then the head.
pub trait Custody {
    /// The whole weights of a bucket, until `release`.
    fn weights(&self, bucket: usize) -> &Params;
    fn release(&self, bucket: usize);
    /// Where gradients of a bucket are added up.
    fn grads(&self, bucket: usize) -> &Params;
    /// A micro-batch has added its share to a bucket.
    fn grads_done(&self, bucket: usize, last_micro: bool);
}

/// Backward's buffers, shared by all layers.
#[rustfmt::skip]
pub struct Work {
    pub stream:    Tensor, // [n, H]   gradient of the residual stream: dy in, dx out
    pub stream_in: Tensor, // [N, H]
    pub branch:    Tensor, // [n, H]   gradient of a branch: the stream's own, but for dropout
    pub branch_in: Tensor, // [N, H]
    pub h:         Tensor, // [n, H]   gradient of a normed input
    pub h_in:      Tensor, // [N, H]
    pub fc:        Tensor, // [N, f]
    pub ctx:       Tensor, // [N, h]
    pub qkv:       Tensor, // [N, 3h]
}

impl Work {
    pub fn plan(cx: &Cx, all: usize, arena: &Arena) -> Work {
        let outside = || arena.matrix(cx.tp.tokens(all), cx.model.hidden, cx.dtype);
        let (stream, h) = (outside(), outside());
        let stream_in = cx.tp.inside(stream, all, arena);
        let own = cx.training && cx.model.dropout.residual > 0.0;
        let branch = if own { outside() } else { stream };
        let branch_in = if own { cx.tp.inside(branch, all, arena) } else { stream_in };
        let width = cx.tp.share(cx.model.hidden);
        Work {
            stream,
            stream_in,
            branch,
            branch_in,
            h,
            h_in: cx.tp.inside(h, all, arena),
            fc: arena.matrix(all, cx.tp.share(cx.model.ffn_hidden), cx.dtype),
            ctx: arena.matrix(all, width, cx.dtype),
            qkv: arena.matrix(all, 3 * width, cx.dtype),
        }
    }
}

/// The buffers of one micro-batch through all layers.
pub struct Slots {
    pub inputs: Inputs,
    embed: embedding::Acts,
    blocks: Vec<block::Acts>,
    head: head::Acts,
}

impl Slots {
    /// In training what backward needs is laid in `stash`; otherwise all is scratch, and two
    /// streams take turns. `slopes` f32 [1, a] under ALiBi.
    pub fn plan(
        cx: &Cx,
        inputs: Inputs,
        slopes: Option<Tensor>,
        stash: &Arena,
        scratch: &Arena,
    ) -> Slots {
        let n = cx.tp.tokens(inputs.rows());
        let stream = || stash.matrix(n, cx.model.hidden, cx.dtype);
        let mut x = stream();
        let mut spare = stream();
        let embed = scratch.scratch(|s| embedding::Acts::plan(cx, &inputs, x, stash, s));
        let mut blocks = Vec::new();
        for layer in 0..cx.model.layers {
            let y = if cx.training && layer > 0 { stream() } else { spare };
            blocks.push(scratch.scratch(|scratch| {
                let stash = if cx.training { stash } else { scratch };
                block::Acts::plan(cx, layer, &inputs, slopes, (x, y), stash, scratch)
            }));
            (x, spare) = (y, x);
        }
        let head = scratch.scratch(|scratch| head::Acts::plan(cx, &inputs, x, scratch));
        Slots { inputs, embed, blocks, head }
    }
}

/// The whole depth of the model.
pub struct Stage<'a> {
    pub cx: Cx<'a>,
    pub custody: &'a dyn Custody,
}

impl Stage<'_> {
    /// Embedding and blocks.
    pub fn forward(&self, s: &Slots) {
        embedding::forward(&self.cx, self.custody.weights(0), &s.inputs, &s.embed);
        self.custody.release(0);
        for (layer, acts) in s.blocks.iter().enumerate() {
            block::forward(&self.cx, self.custody.weights(layer + 1), acts);
            self.custody.release(layer + 1);
        }
    }

    /// The head's forward and everything's backward; adds the weighted loss to `loss`.
    pub fn backward(&self, s: &Slots, d: &Work, loss: Out, last_micro: bool) {
        let (cx, c) = (&self.cx, self.custody);
        let top = s.blocks.len() + 1;
        let (table, dtable) = (self.table(c.weights(top)), self.dtable(c.grads(top)));
        let (w, g) = (c.weights(top), c.grads(top));
        head::forward_backward(cx, w, g, table, dtable, &s.inputs, &s.head, d, loss);
        self.done(top, last_micro);
        for (layer, acts) in s.blocks.iter().enumerate().rev() {
            block::backward(cx, c.weights(layer + 1), c.grads(layer + 1), acts, d);
            self.done(layer + 1, last_micro);
        }
        let (w, g) = (c.weights(0), c.grads(0));
        embedding::backward(cx, w, g, &s.inputs, &s.embed, d.stream, d.stream_in);
        self.done(0, last_micro);
    }

    /// The head alone, without gradients, after `forward`; adds the weighted loss to `loss`.
    pub fn loss(&self, s: &Slots, loss: Out) {
        let w = self.custody.weights(s.blocks.len() + 1);
        head::forward(&self.cx, w, self.table(w), &s.inputs, &s.head, loss);
    }

    /// Logits [1, v] of one row of the micro-batch, after `forward`.
    pub fn logits(&self, s: &Slots, row: usize) -> Tensor {
        let w = self.custody.weights(s.blocks.len() + 1);
        head::logits(&self.cx, w, self.table(w), &s.head, row)
    }

    fn done(&self, bucket: usize, last_micro: bool) {
        self.custody.release(bucket);
        self.custody.grads_done(bucket, last_micro);
    }

    /// The head's matrix [v, H]: the token embedding, if tied.
    fn table(&self, head: &Params) -> Tensor {
        match self.cx.model.tied_head {
            true => self.custody.weights(0)[Weight::TokenEmbed],
            false => head[Weight::HeadW],
        }
    }

    fn dtable(&self, head: &Params) -> Tensor {
        match self.cx.model.tied_head {
            true => self.custody.grads(0)[Weight::TokenEmbed],
            false => head[Weight::HeadW],
        }
    }
}
