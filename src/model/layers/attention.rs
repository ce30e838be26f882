//! The attention sublayer: out = projection(attention(norm(x)·qkvᵀ)), heads split over ranks.

use super::{linear, norm};
use crate::base::DType::F32;
use crate::device::Epilogue::{Bias, Nothing};
use crate::device::{Attend, Dropout, Tensor};
use crate::model::weights::Weight::*;
use crate::model::{BlockArenas, Cx, GradBuffers, Inputs, Params};

#[rustfmt::skip]
pub struct Acts {
    pub norm: norm::Acts,
    qkv:      Tensor, // [N, qkv]
    ctx:      Tensor, // [N, q]   attention output
    lse:      Tensor, // [N, a]   log-sum-exp of the scores
    out_in:   Tensor, // [N, H]   the projection's result, inside the split region: a partial sum
    pub out:  Tensor, // [n, H]   and outside
    attend: Attend,
}

impl Acts {
    /// `x` [n, H] is the norm's input; `out` and `out_in` are shared by the sublayers.
    pub fn plan(
        cx: &Cx,
        layer: usize,
        inputs: &Inputs,
        slopes: Option<Tensor>,
        x: Tensor,
        [out, out_in]: [Tensor; 2],
        arenas: &BlockArenas,
    ) -> Acts {
        let (all, heads) = (inputs.rows(), cx.heads());
        let kept = |cols, dtype| arenas.costly.matrix(all, cols, dtype);
        let drop = cx.dropout(&format!("block.{layer}.scores"), cx.model.dropout.attention, inputs);
        Acts {
            norm: norm::Acts::plan(cx, [Ln1Scale, Ln1Shift], x, all, arenas.costly, arenas.cheap),
            qkv: kept(heads.qkv_width(), x.dtype),
            ctx: kept(heads.query_width(), x.dtype),
            lse: kept(heads.query, F32),
            out_in,
            out,
            attend: Attend {
                heads,
                first_head: cx.tp.first(cx.model.heads().query),
                seq: inputs.seq,
                visible: inputs.visible(),
                slopes,
                dropout: Dropout { first_row: 0, ..drop },
            },
        }
    }
}

/// After the norm; the residual adds the projection's bias.
pub fn forward(cx: &Cx, w: &Params, a: &Acts) {
    let bias = w.get(QkvB).map_or(Nothing, Bias);
    linear::forward(cx, a.norm.h_in, w[QkvW], bias, a.qkv.set());
    cx.be.attention(a.qkv, &a.attend, a.ctx.set(), a.lse.set());
    linear::forward(cx, a.ctx, w[ProjW], Nothing, a.out_in.set());
    cx.tp.reduce_out(a.out_in, a.out);
}

/// In: the gradient of `out` in `d.branch`. Out: that of the norm's output in `d.h`.
pub fn backward(cx: &Cx, w: &Params, g: &Params, a: &Acts, d: &GradBuffers) {
    cx.tp.gather_seq(d.branch, d.branch_in);
    linear::backward(cx, d.branch_in, a.ctx, w[ProjW], Nothing, d.ctx.set(), g[ProjW].add());
    cx.be.attention_backward(d.ctx, a.qkv, a.ctx, a.lse, &a.attend, d.qkv.set());
    let (dw, db) = (g[QkvW].add(), g.get(QkvB).map(Tensor::add));
    linear::backward_biased(cx, d.qkv, a.norm.h_in, w[QkvW], d.h_in.set(), dw, db);
    cx.tp.reduce_out(d.h_in, d.h);
}

/// What selective recompute drops: the norm's output.
pub fn rebuild(cx: &Cx, w: &Params, a: &Acts) {
    norm::forward(cx, w, &a.norm);
}
