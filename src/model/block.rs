//! Pre-norm transformer block, for every device and every split: x plus the attention sublayer of
//! its norm, plus the feed-forward sublayer of that sum's norm.

use super::layers::attention::{self, AttentionActs};
use super::layers::feed_forward::{self, FeedForwardActs};
use super::layers::norm;
use super::weights::Weight::*;
use super::{BlockArenas, Cx, GradBuffers, Inputs, Params, Tables};
use comm::Pending;
use device::{Arena, Dropout, Tensor, op};
use manifest::Recompute;

/// Buffers that the forward of one block writes, for one micro-batch.
#[rustfmt::skip]
pub struct BlockActs {
    pub x: Tensor, // [n, H]   input
    mid:   Tensor, // [n, H]   after attention
    pub y: Tensor, // [n, H]   output, and the next block's input
    attention: AttentionActs,
    ffn:       FeedForwardActs,
    drop_attn: Dropout,
    drop_ffn:  Dropout,
}

impl BlockActs {
    /// Lays out the buffers. `saved` is kept until backward, `workspace` is shared by all blocks.
    pub fn plan(
        cx: &Cx,
        layer: usize,
        inputs: &Inputs,
        tables: &Tables,
        x: Tensor,
        y: Tensor,
        saved: &Arena,
        workspace: &Arena,
    ) -> BlockActs {
        let arenas = BlockArenas {
            costly: if cx.recompute == Recompute::Full { workspace } else { saved },
            cheap: if cx.recompute == Recompute::None { saved } else { workspace },
            always: saved,
        };
        let mid = arenas.costly.matrix(x.rows, x.cols, x.dtype);
        let out = workspace.matrix(x.rows, x.cols, x.dtype);
        let out_in = cx.tp.gathered_buffer(out, inputs.rows(), workspace);
        let drop =
            |site| cx.dropout(&format!("block.{layer}.{site}"), cx.model.dropout.residual, inputs);
        BlockActs {
            x,
            mid,
            y,
            attention: AttentionActs::plan(cx, layer, inputs, tables, x, out, out_in, &arenas),
            ffn: FeedForwardActs::plan(cx, inputs, mid, out, out_in, &arenas),
            drop_attn: drop("attn"),
            drop_ffn: drop("mlp"),
        }
    }
}

pub fn forward(cx: &Cx, w: &Params, a: &BlockActs) {
    forward_to_ffn(cx, w, a);
    feed_forward::forward(cx, w, &a.ffn);
    cx.be.run(op::Residual {
        x: a.mid,
        branch: a.ffn.out,
        bias: w.get(Fc2B),
        drop: a.drop_ffn,
        y: a.y.set(),
    });
}

/// Forward up to the input of the feed-forward sublayer.
fn forward_to_ffn(cx: &Cx, w: &Params, a: &BlockActs) {
    norm::forward(cx, w, &a.attention.norm);
    attention::forward(cx, w, &a.attention);
    let x = a.x;
    let branch = a.attention.out;
    norm::forward_residual(cx, w, &a.ffn.norm, x, branch, w.get(ProjB), &a.drop_attn);
}

/// Backward. `d.stream` holds the gradient of y on entry and the gradient of x on return.
pub fn backward(cx: &Cx, w: &Params, g: &Params, a: &BlockActs, d: &GradBuffers) {
    let [to_attention, to_ffn] = rebuild(cx, w, a);

    let dbias = |weight| g.get(weight).map(Tensor::add);
    cx.be.run(op::ResidualBackward {
        dy: d.stream,
        drop: a.drop_ffn,
        dbranch: a.drop_ffn.output(d.stream, d.branch),
        dbias: dbias(Fc2B),
    });
    feed_forward::backward(cx, w, g, &a.ffn, d, to_ffn);
    norm::backward_residual(cx, w, g, &a.ffn.norm, d, &a.drop_attn, dbias(ProjB));
    attention::backward(cx, w, g, &a.attention, d, to_attention);
    norm::backward(cx, w, g, &a.attention.norm, d.h, d.stream.add());
}

/// Recomputes what `Recompute` let forward drop. Returns the gathers of the sublayers' inputs that
/// are still running.
fn rebuild(cx: &Cx, w: &Params, a: &BlockActs) -> [Option<Pending>; 2] {
    match cx.recompute {
        Recompute::None => [None, None],
        Recompute::Selective => {
            let to_ffn = feed_forward::rebuild(cx, w, &a.ffn);
            [attention::rebuild(cx, w, &a.attention), to_ffn]
        }
        Recompute::Full => {
            forward_to_ffn(cx, w, a);
            feed_forward::forward_inner(cx, w, &a.ffn);
            [None, None]
        }
    }
}
