//! Attention sublayer: out = projection(attention(transformed(norm(x)·qkvᵀ))), heads split over ranks.
//! `transformed` normalises queries and keys (if the model has head norms) and rotates them by position
//! (RoPE).

use super::linear::{self, Entry, Input};
use super::norm::{self, NormActs};
use crate::weights::Weight::*;
use crate::{BlockArenas, Cx, GradBuffers, Inputs, KvCache, Params, Tables, mup};
use base::DType::F32;
use comm::Pending;
use device::Epilogue::{Bias, Nothing};
use device::{Attend, Dropout, QkNorm, QueryKey, Rotation, Tensor, op};

#[rustfmt::skip]
pub struct AttentionActs {
    pub norm: NormActs,
    to_qkv:   Input,  // [N, H]   output of the norm
    qkv:      Tensor, // [N, qkv]
    transformed:   Tensor, // [N, qkv]  after head norms and RoPE: `qkv` itself without head norms
    ctx:      Input,  // [N, q]   attention output
    lse:      Tensor, // [N, a]   log-sum-exp of the scores
    out_in:   Tensor, // [N, H]   result of the projection inside the split region: a partial sum
    pub out:  Tensor, // [n, H]   result outside the split region
    rotation: Option<Rotation>,
    attend: Attend,
    kv_cache: Option<(usize, KvCache)>, // with the index of the layer
}

impl AttentionActs {
    /// Lays out the buffers. `x` [n, H] is the input of the norm; the sublayers share `out` and
    /// `out_in`.
    pub fn plan(
        cx: &Cx,
        layer: usize,
        inputs: &Inputs,
        tables: &Tables,
        x: Tensor,
        [out, out_in]: [Tensor; 2],
        arenas: &BlockArenas,
    ) -> AttentionActs {
        let all = inputs.rows();
        let heads = cx.heads();
        let kept = |cols, dtype| arenas.costly.matrix(all, cols, dtype);
        let drop = cx.dropout(&format!("block.{layer}.scores"), cx.model.dropout.attention, inputs);
        let norm = NormActs::plan(cx, [Ln1Scale, Ln1Shift], x, all, arenas.costly, arenas.cheap);
        let qkv = kept(heads.qkv_width(), x.dtype);
        let transformed =
            if cx.model.qk_norm { arenas.cheap.matrix(all, qkv.cols, x.dtype) } else { qkv };
        let input = |x| Input::plan(cx, x, arenas.always);
        AttentionActs {
            norm,
            to_qkv: input(norm.h_in),
            qkv,
            transformed,
            ctx: input(kept(heads.query_width(), x.dtype)),
            lse: kept(heads.query, F32),
            out_in,
            out,
            rotation: tables
                .rotation(cx, layer)
                .map(|table| Rotation { positions: inputs.positions, table }),
            attend: Attend {
                heads,
                first_head: cx.tp.first(cx.model.heads().query),
                scale: mup::score_factor(cx.model),
                seq: inputs.seq,
                visible: inputs.visible(),
                window: cx.model.window_of(layer),
                slopes: tables.slopes,
                dropout: Dropout { first_row: 0, ..drop },
            },
            kv_cache: tables.kv_cache.map(|cache| (layer, cache)),
        }
    }

    /// Transform of queries and keys before attention; None if the model has none.
    fn query_key(&self, cx: &Cx, w: &Params) -> Option<QueryKey> {
        let heads = self.attend.heads;
        let eps = cx.model.layernorm_eps;
        let norm = w
            .get(QNorm)
            .map(|query| QkNorm { query, key: w[KNorm], eps });
        let any = norm.is_some() || self.rotation.is_some();
        any.then_some(QueryKey { heads, norm, rotation: self.rotation })
    }
}

/// Forward after the norm. The residual adds the projection's bias.
pub fn forward(cx: &Cx, w: &Params, a: &AttentionActs) {
    let bias = w.get(QkvB).map_or(Nothing, Bias);
    linear::forward(cx, a.to_qkv, (w, QkvW), bias, a.qkv.set());
    transform_query_key(cx, w, a);
    match a.kv_cache {
        None => cx.be.run(op::Attention {
            qkv: a.transformed,
            attend: a.attend,
            y: a.ctx.x.set(),
            lse: a.lse.set(),
        }),
        Some((layer, cache)) => {
            cache.attend(cx, layer, &a.attend, a.transformed, a.ctx.x);
        }
    }
    linear::forward(cx, a.ctx, (w, ProjW), Nothing, a.out_in.set());
    cx.tp.reduce_out(a.out_in, a.out);
}

fn transform_query_key(cx: &Cx, w: &Params, a: &AttentionActs) {
    if let Some(transform) = a.query_key(cx, w) {
        cx.be
            .run(op::QueryKey { qkv: a.qkv, transform, y: a.transformed.set() });
    }
}

/// Backward. `d.branch` holds the gradient of `out`, and `gather` is the result of `rebuild`.
/// Leaves the gradient of the norm's output in `d.h`.
pub fn backward(
    cx: &Cx,
    w: &Params,
    g: &Params,
    a: &AttentionActs,
    d: &GradBuffers,
    gather: Option<Pending>,
) {
    cx.tp.gather_seq(d.branch, d.branch_in);
    linear::backward(cx, d.branch_in, a.ctx, (w, ProjW), Nothing, d.ctx.set(), g.out(ProjW));
    cx.be.run(op::AttentionBackward {
        dy: d.ctx,
        qkv: a.transformed,
        y: a.ctx.x,
        lse: a.lse,
        attend: a.attend,
        dqkv: d.qkv.set(),
    });
    if let Some(transform) = a.query_key(cx, w) {
        let [dquery, dkey] = [QNorm, KNorm].map(|norm| g.get(norm).map(Tensor::add));
        cx.be.run(op::QueryKeyBackward {
            dy: d.qkv,
            qkv: transform.norm.map(|_| a.qkv),
            transform,
            dx: d.qkv.set(),
            dquery,
            dkey,
        });
    }
    let dw = g.out(QkvW);
    let db = g.get_out(QkvB);
    let entry = Entry { x: a.to_qkv, gather, dx_in: d.h_in, dx: d.h };
    linear::backward_entry(cx, d.qkv, entry, (w, QkvW), dw, db);
}

/// Recomputes what selective recompute drops: the outputs of the norms. Starts the gather of the
/// layer's input.
pub fn rebuild(cx: &Cx, w: &Params, a: &AttentionActs) -> Option<Pending> {
    let gather = norm::rebuild(cx, w, &a.norm);
    if a.transformed != a.qkv {
        transform_query_key(cx, w, a);
    }
    gather
}
