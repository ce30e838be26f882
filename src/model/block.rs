//! A transformer block (pre-LN, GPT-2), once for every device and every way of cutting it.

use super::layers::linear;
use super::weights::Weight::*;
use super::{Cx, Inputs, Params, Work};
use crate::base::DType::F32;
use crate::device::Epilogue::{Bias, BiasGelu, GeluBackward, Nothing};
use crate::device::{Arena, Attend, Dropout, Gelu, Tensor};
use crate::manifest::{self, Recompute};

/// Every buffer one block's forward writes, for one micro-batch.
#[rustfmt::skip]
pub struct Acts {
    pub x:  Tensor, // [n, H]   input
    stats1: Tensor, // [n, 2]   mean and 1/std
    h1:     Tensor, // [n, H]   normed
    h1_in:  Tensor, // [N, H]   normed, inside the split region
    qkv:    Tensor, // [N, 3h]
    ctx:    Tensor, // [N, h]   attention output
    lse:    Tensor, // [N, a]   log-sum-exp of the scores
    mid:    Tensor, // [n, H]   after attention
    stats2: Tensor, // [n, 2]
    h2:     Tensor, // [n, H]
    h2_in:  Tensor, // [N, H]
    fc:     Tensor, // [N, f]   before the activation function
    act:    Tensor, // [N, f]   after it
    out:    Tensor, // [n, H]   a projection's result, outside
    out_in: Tensor, // [N, H]   and inside, a partial sum
    pub y:  Tensor, // [n, H]   output, and the next block's input
    attend: Attend,
    drop_attn: Dropout,
    drop_ffn:  Dropout,
}

impl Acts {
    /// The whole memory plan of a block: `stash` survives until backward, `scratch` is shared by
    /// all blocks. Recompute is nothing but which of the two a buffer is laid in.
    #[allow(clippy::too_many_arguments)]
    pub fn plan(
        cx: &Cx,
        layer: usize,
        inputs: &Inputs,
        slopes: Option<Tensor>,
        (x, y): (Tensor, Tensor),
        stash: &Arena,
        scratch: &Arena,
    ) -> Acts {
        let (n, all) = (x.rows, inputs.rows());
        let (h, f) = (cx.tp.share(cx.model.hidden), cx.tp.share(cx.model.ffn_hidden));
        let costly = if cx.recompute == Recompute::Full { scratch } else { stash };
        let cheap = if cx.recompute == Recompute::None { stash } else { scratch };
        let h1 = cheap.matrix(n, x.cols, x.dtype);
        let h2 = cheap.matrix(n, x.cols, x.dtype);
        let out = scratch.matrix(n, x.cols, x.dtype);
        let place = |site| format!("block.{layer}.{site}");
        let dropout = cx.model.dropout;
        Acts {
            x,
            stats1: costly.matrix(n, 2, F32),
            h1,
            h1_in: cx.tp.inside(h1, all, cheap),
            qkv: costly.matrix(all, 3 * h, x.dtype),
            ctx: costly.matrix(all, h, x.dtype),
            lse: costly.matrix(all, cx.tp.share(cx.model.heads), F32),
            mid: costly.matrix(n, x.cols, x.dtype),
            stats2: costly.matrix(n, 2, F32),
            h2,
            h2_in: cx.tp.inside(h2, all, cheap),
            fc: costly.matrix(all, f, x.dtype),
            act: cheap.matrix(all, f, x.dtype),
            out,
            out_in: cx.tp.inside(out, all, scratch),
            y,
            attend: attend(cx, inputs, slopes, &place("scores")),
            drop_attn: cx.dropout(&place("attn"), dropout.residual, inputs),
            drop_ffn: cx.dropout(&place("mlp"), dropout.residual, inputs),
        }
    }
}

pub fn forward(cx: &Cx, w: &Params, a: &Acts) {
    norm_attention(cx, w, a);
    linear::forward(cx, a.h1_in, w[QkvW], Bias(w[QkvB]), a.qkv.set());
    cx.be.attention(a.qkv, &a.attend, a.ctx.set(), a.lse.set());
    linear::forward(cx, a.ctx, w[ProjW], Nothing, a.out_in.set());
    cx.tp.leave(a.out_in, a.out);

    let (norm, bias, drop) = (cx.norm(w[Ln2Scale], w[Ln2Shift]), w[ProjB], &a.drop_attn);
    let (mid, h2, stats2) = (a.mid.set(), a.h2.set(), a.stats2.set());
    cx.be.residual_norm(a.x, a.out, bias, drop, mid, &norm, h2, stats2);
    cx.tp.enter(a.h2, a.h2_in);
    let gelu = BiasGelu { bias: w[Fc1B], pre: a.fc, gelu: gelu(cx) };
    linear::forward(cx, a.h2_in, w[Fc1W], gelu, a.act.set());
    linear::forward(cx, a.act, w[Fc2W], Nothing, a.out_in.set());
    cx.tp.leave(a.out_in, a.out);
    cx.be.residual(a.mid, a.out, w[Fc2B], &a.drop_ffn, a.y.set());
}

/// In: the gradient of y in `d.stream`. Out: the gradient of x there.
pub fn backward(cx: &Cx, w: &Params, g: &Params, a: &Acts, d: &Work) {
    rebuild(cx, w, a);

    cx.be.residual_backward(d.stream, &a.drop_ffn, d.branch.set(), g[Fc2B].add());
    cx.tp.enter(d.branch, d.branch_in);
    let gelu = GeluBackward { pre: a.fc, gelu: gelu(cx) };
    linear::backward(cx, d.branch_in, a.act, w[Fc2W], gelu, d.fc.set(), g[Fc2W].add());
    let (dw, db) = (g[Fc1W].add(), g[Fc1B].add());
    linear::backward_biased(cx, d.fc, a.h2_in, w[Fc1W], d.h_in.set(), dw, db);
    cx.tp.leave(d.h_in, d.h);

    let norm = [d.h, a.mid, a.stats2, w[Ln2Scale]];
    let dnorm = [d.stream, g[Ln2Scale], g[Ln2Shift]].map(Tensor::add);
    let (dbranch, dbias) = (d.branch.set(), g[ProjB].add());
    cx.be.norm_residual_backward(norm, dnorm, &a.drop_attn, dbranch, dbias);
    cx.tp.enter(d.branch, d.branch_in);
    linear::backward(cx, d.branch_in, a.ctx, w[ProjW], Nothing, d.ctx.set(), g[ProjW].add());
    cx.be.attention_backward(d.ctx, a.qkv, a.ctx, a.lse, &a.attend, d.qkv.set());
    let (dw, db) = (g[QkvW].add(), g[QkvB].add());
    linear::backward_biased(cx, d.qkv, a.h1_in, w[QkvW], d.h_in.set(), dw, db);
    cx.tp.leave(d.h_in, d.h);
    let (dscale, dshift) = (g[Ln1Scale].add(), g[Ln1Shift].add());
    cx.be.layernorm_backward(d.h, a.x, a.stats1, w[Ln1Scale], d.stream.add(), dscale, dshift);
}

fn norm_attention(cx: &Cx, w: &Params, a: &Acts) {
    cx.be.layernorm(a.x, &cx.norm(w[Ln1Scale], w[Ln1Shift]), a.h1.set(), a.stats1.set());
    cx.tp.enter(a.h1, a.h1_in);
}

fn norm_ffn(cx: &Cx, w: &Params, a: &Acts) {
    cx.be.layernorm(a.mid, &cx.norm(w[Ln2Scale], w[Ln2Shift]), a.h2.set(), a.stats2.set());
    cx.tp.enter(a.h2, a.h2_in);
}

/// Brings back what `Recompute` let forward drop.
fn rebuild(cx: &Cx, w: &Params, a: &Acts) {
    match cx.recompute {
        Recompute::None => (),
        Recompute::Selective => {
            norm_attention(cx, w, a);
            norm_ffn(cx, w, a);
            cx.be.gelu(a.fc, gelu(cx), a.act.set());
        }
        Recompute::Full => forward(cx, w, a),
    }
}

fn attend(cx: &Cx, inputs: &Inputs, slopes: Option<Tensor>, place: &str) -> Attend {
    Attend {
        heads: cx.tp.share(cx.model.heads),
        first_head: cx.tp.first(cx.model.heads),
        seq: inputs.seq,
        visible: inputs.visible(),
        slopes,
        dropout: Dropout { first_row: 0, ..cx.dropout(place, cx.model.dropout.attention, inputs) },
    }
}

fn gelu(cx: &Cx) -> Gelu {
    match cx.model.gelu {
        manifest::Gelu::Tanh => Gelu::Tanh,
        manifest::Gelu::Exact => Gelu::Exact,
    }
}
