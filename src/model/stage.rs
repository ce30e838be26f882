//! Layers of a rank: forward and backward of one micro-batch.

use super::block::{self, BlockActs};
use super::layers::embedding::{self, EmbeddingActs};
use super::layers::head::{self, HeadActs};
use super::{Chunk, Cx, GradBuffers, Inputs, Layout, Module, Params, Tables, Weight};
use device::{Arena, Out, Tensor};

/// Owner of weights and gradients between uses. The stage calls it around every bucket and does not
/// know the ZeRO level.
pub trait ParamStore {
    /// Called before a pass, which uses the buckets in this order.
    fn begin_pass(&self, direction: Direction);
    /// Whole weights of a bucket. Those of a block are valid until the call for another block.
    fn weights(&self, bucket: usize) -> &Params;
    /// Destination of a bucket's gradients.
    fn grads(&self, bucket: usize, at: MicroBatch) -> &Params;
    /// Called when a micro-batch's gradients have been added to a bucket.
    fn grads_done(&self, bucket: usize, at: MicroBatch);
}

/// Order in which a pass uses the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// Position of a micro-batch in its step, and in the sum of micro-batches (`topology.zero_every`) whose
/// gradients a rank adds up before replicas sum them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MicroBatch {
    pub first: bool,
    /// Whether gradients that are whole are reduced after it.
    pub last: bool,
    /// First and last of its sum.
    pub opens: bool,
    pub closes: bool,
    /// Whether its sum is the step's first.
    pub in_first_sum: bool,
}

impl MicroBatch {
    /// Micro-batch `number` of `micros`, in sums of `every`.
    pub fn new(number: usize, micros: usize, every: usize) -> MicroBatch {
        let last = number + 1 == micros;
        MicroBatch {
            first: number == 0,
            last,
            opens: number.is_multiple_of(every),
            closes: last || (number + 1).is_multiple_of(every),
            in_first_sum: number < every,
        }
    }
}

/// Buffers of one micro-batch in one chunk of layers.
pub struct Activations {
    pub inputs: Inputs,
    embed: Option<EmbeddingActs>,
    first_layer: usize,
    blocks: Vec<BlockActs>,
    head: Option<HeadActs>,
    /// [n, H]: input of the first layer and output of the last.
    pub x: Tensor,
    pub y: Tensor,
}

impl Activations {
    /// Lays out the buffers. In training, buffers that backward reads are placed in `saved`. In
    /// evaluation all are in `workspace`, and the layers alternate between two residual streams.
    pub fn plan(
        cx: &Cx,
        chunk: &Chunk,
        inputs: Inputs,
        tables: &Tables,
        saved: &Arena,
        workspace: &Arena,
    ) -> Activations {
        let n = cx.tp.tokens(inputs.rows());
        let stream = || saved.matrix(n, cx.model.hidden, cx.dtype);
        let first = stream();
        let mut x = first;
        let mut spare = stream();
        let embed = chunk.first.then(|| {
            workspace.temporary(|workspace| EmbeddingActs::plan(cx, &inputs, x, saved, workspace))
        });
        let mut blocks = Vec::new();
        let first_layer = chunk.layers.start;
        for layer in chunk.layers.clone() {
            let y = if cx.training && layer > first_layer { stream() } else { spare };
            blocks.push(workspace.temporary(|workspace| {
                let saved = if cx.training { saved } else { workspace };
                BlockActs::plan(cx, layer, &inputs, tables, x, y, saved, workspace)
            }));
            (x, spare) = (y, x);
        }
        let head = chunk
            .last
            .then(|| workspace.temporary(|workspace| HeadActs::plan(cx, &inputs, x, workspace)));
        Activations { inputs, embed, first_layer, blocks, head, x: first, y: x }
    }

    /// Weighted loss of each token, f32 [N, 1]; valid after `Stage::loss`, on the last stage.
    pub fn token_losses(&self) -> Option<Tensor> {
        self.head.as_ref().map(|head| head.losses)
    }
}

/// Layers of a rank.
#[derive(Clone, Copy)]
pub struct Stage<'a> {
    pub cx: Cx<'a>,
    pub layout: &'a Layout,
    pub store: &'a dyn ParamStore,
}

impl Stage<'_> {
    /// Forward of embedding and blocks.
    pub fn forward(&self, s: &Activations) {
        self.store.begin_pass(Direction::Forward);
        if let (Some(acts), Some(bucket)) = (&s.embed, self.layout.bucket(Module::Embed)) {
            embedding::forward(&self.cx, self.store.weights(bucket), &s.inputs, acts);
        }
        for (bucket, acts) in self.blocks(s) {
            block::forward(&self.cx, self.store.weights(bucket), acts);
        }
    }

    /// Forward of the head, then backward of head, blocks and embedding. The last chunk adds the
    /// weighted loss to `loss`; the others read the gradient of their output in `d.stream`. Leaves
    /// the gradient of the chunk's input there.
    pub fn backward(&self, s: &Activations, d: &GradBuffers, loss: Out, at: MicroBatch) {
        let cx = &self.cx;
        let store = self.store;
        let grads = |bucket| store.grads(bucket, at);
        store.begin_pass(Direction::Backward);
        if let (Some(acts), Some(bucket)) = (&s.head, self.layout.bucket(Module::Head)) {
            let w = store.weights(bucket);
            let g = grads(bucket);
            let (owner, weight) = self.head_matrix();
            let table = store.weights(owner)[weight];
            let dtable = grads(owner)[weight];
            head::forward_backward(cx, w, g, table, dtable, &s.inputs, acts, d, loss);
            store.grads_done(bucket, at);
        }
        for (bucket, acts) in self.blocks(s).rev() {
            block::backward(cx, store.weights(bucket), grads(bucket), acts, d);
            store.grads_done(bucket, at);
        }
        if let (Some(acts), Some(bucket)) = (&s.embed, self.layout.bucket(Module::Embed)) {
            let w = store.weights(bucket);
            let g = grads(bucket);
            embedding::backward(cx, w, g, &s.inputs, acts, d.stream, d.stream_in);
            store.grads_done(bucket, at);
        }
    }

    /// Forward of the head without gradients, after `forward`. Adds the weighted loss to `loss`.
    pub fn loss(&self, s: &Activations, loss: Out) {
        if let (Some(acts), Some(bucket)) = (&s.head, self.layout.bucket(Module::Head)) {
            let (owner, weight) = self.head_matrix();
            let w = self.store.weights(bucket);
            let table = self.store.weights(owner)[weight];
            head::forward(&self.cx, w, table, &s.inputs, acts, loss);
        }
    }

    /// Logits [1, v] of one row of the micro-batch, after `forward`, on the last stage.
    pub fn logits(&self, s: &Activations, row: usize) -> Tensor {
        let bucket = self.layout.bucket(Module::Head).expect("the last stage");
        let (owner, weight) = self.head_matrix();
        let w = self.store.weights(bucket);
        let table = self.store.weights(owner)[weight];
        head::logits(&self.cx, w, table, s.head.as_ref().expect("the last stage"), row)
    }

    fn blocks<'s>(
        &self,
        s: &'s Activations,
    ) -> impl DoubleEndedIterator<Item = (usize, &'s BlockActs)> {
        let first = if s.blocks.is_empty() { 0 } else { self.layout.block(s.first_layer) };
        s.blocks
            .iter()
            .enumerate()
            .map(move |(i, acts)| (first + i, acts))
    }

    /// Bucket and weight of the head's matrix.
    fn head_matrix(&self) -> (usize, Weight) {
        let param = self.layout.head_matrix();
        (param.bucket, param.spec.weight)
    }
}
