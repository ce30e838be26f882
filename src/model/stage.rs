//! The layers of a rank, run forwards and backwards on one micro-batch.

use super::layers::{embedding, head};
use super::{Chunk, Cx, Inputs, Layout, Params, Place, Weight, block};
use crate::device::{Arena, Out, Tensor};

/// Who holds weights and gradients between uses. The stage brackets every bucket with these doors
/// and never learns which ZeRO stage is behind them.
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
    pub scale:     Tensor, // f32 [1, 1]  of all gradients: what the loss is multiplied by
}

impl Work {
    pub fn plan(cx: &Cx, all: usize, scale: Tensor, arena: &Arena) -> Work {
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
            scale,
        }
    }
}

/// The buffers of one micro-batch through one chunk of layers.
pub struct Slots {
    pub inputs: Inputs,
    embed: Option<embedding::Acts>,
    first_layer: usize,
    blocks: Vec<block::Acts>,
    head: Option<head::Acts>,
    /// [n, H]: what the first layer reads and the last one writes.
    pub x: Tensor,
    pub y: Tensor,
}

impl Slots {
    /// In training what backward needs is laid in `stash`; otherwise all is scratch, and two
    /// streams take turns. `slopes` f32 [1, a] under ALiBi.
    pub fn plan(
        cx: &Cx,
        chunk: &Chunk,
        inputs: Inputs,
        slopes: Option<Tensor>,
        stash: &Arena,
        scratch: &Arena,
    ) -> Slots {
        let n = cx.tp.tokens(inputs.rows());
        let stream = || stash.matrix(n, cx.model.hidden, cx.dtype);
        let first = stream();
        let (mut x, mut spare) = (first, stream());
        let embed = chunk.first.then(|| {
            scratch.scratch(|scratch| embedding::Acts::plan(cx, &inputs, x, stash, scratch))
        });
        let mut blocks = Vec::new();
        let first_layer = chunk.layers.start;
        for layer in chunk.layers.clone() {
            let y = if cx.training && layer > first_layer { stream() } else { spare };
            blocks.push(scratch.scratch(|scratch| {
                let stash = if cx.training { stash } else { scratch };
                block::Acts::plan(cx, layer, &inputs, slopes, (x, y), stash, scratch)
            }));
            (x, spare) = (y, x);
        }
        let head = chunk
            .last
            .then(|| scratch.scratch(|scratch| head::Acts::plan(cx, &inputs, x, scratch)));
        Slots { inputs, embed, first_layer, blocks, head, x: first, y: x }
    }
}

/// A rank's layers.
pub struct Stage<'a> {
    pub cx: Cx<'a>,
    pub layout: &'a Layout,
    pub custody: &'a dyn Custody,
}

impl Stage<'_> {
    /// Embedding and blocks.
    pub fn forward(&self, s: &Slots) {
        if let (Some(acts), Some(bucket)) = (&s.embed, self.layout.bucket(Place::Embed)) {
            embedding::forward(&self.cx, self.custody.weights(bucket), &s.inputs, acts);
            self.custody.release(bucket);
        }
        for (bucket, acts) in self.blocks(s) {
            block::forward(&self.cx, self.custody.weights(bucket), acts);
            self.custody.release(bucket);
        }
    }

    /// The head's forward and everything's backward. The last chunk adds the weighted loss to
    /// `loss`; the others find the gradient of their output in `d.stream`. Leaves the gradient of
    /// the input there.
    pub fn backward(&self, s: &Slots, d: &Work, loss: Out, last_micro: bool) {
        let (cx, custody) = (&self.cx, self.custody);
        if let (Some(acts), Some(bucket)) = (&s.head, self.layout.bucket(Place::Head)) {
            let (w, g) = (custody.weights(bucket), custody.grads(bucket));
            let (owner, weight) = self.table();
            let (table, dtable) = (custody.weights(owner)[weight], custody.grads(owner)[weight]);
            head::forward_backward(cx, w, g, table, dtable, &s.inputs, acts, d, loss);
            self.done(bucket, last_micro);
        }
        for (bucket, acts) in self.blocks(s).rev() {
            block::backward(cx, custody.weights(bucket), custody.grads(bucket), acts, d);
            self.done(bucket, last_micro);
        }
        if let (Some(acts), Some(bucket)) = (&s.embed, self.layout.bucket(Place::Embed)) {
            let (w, g) = (custody.weights(bucket), custody.grads(bucket));
            embedding::backward(cx, w, g, &s.inputs, acts, d.stream, d.stream_in);
            self.done(bucket, last_micro);
        }
    }

    /// The head alone, without gradients, after `forward`; adds the weighted loss to `loss`.
    pub fn loss(&self, s: &Slots, loss: Out) {
        if let (Some(acts), Some(bucket)) = (&s.head, self.layout.bucket(Place::Head)) {
            let (owner, weight) = self.table();
            let (w, table) = (self.custody.weights(bucket), self.custody.weights(owner)[weight]);
            head::forward(&self.cx, w, table, &s.inputs, acts, loss);
        }
    }

    /// Logits [1, v] of one row of the micro-batch, after `forward`, on the last stage.
    pub fn logits(&self, s: &Slots, row: usize) -> Tensor {
        let bucket = self.layout.bucket(Place::Head).expect("the last stage");
        let (owner, weight) = self.table();
        let (w, table) = (self.custody.weights(bucket), self.custody.weights(owner)[weight]);
        head::logits(&self.cx, w, table, s.head.as_ref().expect("the last stage"), row)
    }

    fn blocks<'s>(
        &self,
        s: &'s Slots,
    ) -> impl DoubleEndedIterator<Item = (usize, &'s block::Acts)> {
        let first = if s.blocks.is_empty() { 0 } else { self.layout.block(s.first_layer) };
        s.blocks.iter().enumerate().map(move |(i, acts)| (first + i, acts))
    }

    fn done(&self, bucket: usize, last_micro: bool) {
        self.custody.release(bucket);
        self.custody.grads_done(bucket, last_micro);
    }

    /// Bucket and name of the head's matrix [v, H]: its own, or the embedding's, here or as a copy.
    fn table(&self) -> (usize, Weight) {
        let place = |place| self.layout.bucket(place);
        match self.cx.model.tied_head {
            false => (place(Place::Head).expect("the last stage"), Weight::HeadW),
            true => {
                let owner = place(Place::Embed).or(place(Place::TiedCopy));
                (owner.expect("the last stage has the embedding or its copy"), Weight::TokenEmbed)
            }
        }
    }
}
