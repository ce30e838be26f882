//! Feed-forward sublayer: out = fc2(activation(fc1(norm(x)))), features split over ranks.

use super::linear::{self, Entry, Input};
use super::norm::{self, NormActs};
use crate::weights::Weight::*;
use crate::{BlockArenas, Cx, GradBuffers, Inputs, Params};
use comm::Pending;
use device::Epilogue::{self, BiasGelu, GeluBackward, Nothing};
use device::{Gelu, Tensor, op};

/// Activation between the two products.
#[derive(Clone, Copy)]
enum Ffn {
    /// gelu(fc)
    Gelu(Gelu),
    /// silu(gate)·value; gates and values alternate in fc.
    Swiglu,
}

#[rustfmt::skip]
pub struct FeedForwardActs {
    pub norm: NormActs,
    to_fc:    Input,  // [N, H]   output of the norm
    fc:       Tensor, // [N, f1]  before the activation: f columns, or 2f of SwiGLU
    act:      Input,  // [N, f]   after the activation
    out_in:   Tensor, // [N, H]   result of fc2 inside the split region: a partial sum
    pub out:  Tensor, // [n, H]   result outside the split region
    ffn: Ffn,
}

impl FeedForwardActs {
    /// Lays out the buffers. `x` [n, H] is the input of the norm; the sublayers share `out` and
    /// `out_in`.
    pub fn plan(
        cx: &Cx,
        inputs: &Inputs,
        x: Tensor,
        out: Tensor,
        out_in: Tensor,
        arenas: &BlockArenas,
    ) -> FeedForwardActs {
        let all = inputs.rows();
        let norm = NormActs::plan(cx, [Ln2Scale, Ln2Shift], x, all, arenas.costly, arenas.cheap);
        let input = |x| Input::plan(cx, x, arenas.always);
        FeedForwardActs {
            norm,
            to_fc: input(norm.h_in),
            fc: arenas
                .costly
                .matrix(all, cx.tp.share(cx.model.ffn_rows()), x.dtype),
            act: input(
                arenas
                    .cheap
                    .matrix(all, cx.tp.share(cx.model.ffn_hidden), x.dtype),
            ),
            out_in,
            out,
            ffn: match cx.model.ffn {
                manifest::Ffn::Gelu => Ffn::Gelu(cx.model.gelu),
                manifest::Ffn::Swiglu => Ffn::Swiglu,
            },
        }
    }
}

/// Forward after the norm. The residual adds the bias of fc2.
pub fn forward(cx: &Cx, w: &Params, a: &FeedForwardActs) {
    forward_inner(cx, w, a);
    linear::forward(cx, a.act, (w, Fc2W), Nothing, a.out_in.set());
    cx.tp.reduce_out(a.out_in, a.out);
}

/// Forward up to the input of fc2, which is all that backward needs.
pub fn forward_inner(cx: &Cx, w: &Params, a: &FeedForwardActs) {
    match a.ffn {
        Ffn::Gelu(gelu) => {
            let gelu = BiasGelu { bias: w.get(Fc1B), pre: a.fc, gelu };
            linear::forward(cx, a.to_fc, (w, Fc1W), gelu, a.act.x.set());
        }
        Ffn::Swiglu => {
            let bias = w.get(Fc1B).map_or(Nothing, Epilogue::Bias);
            linear::forward(cx, a.to_fc, (w, Fc1W), bias, a.fc.set());
            cx.be.run(op::Swiglu { x: a.fc, y: a.act.x.set() });
        }
    }
}

/// Backward. `d.branch` holds the gradient of `out`, and `gather` is the result of `rebuild`.
/// Leaves the gradient of the norm's output in `d.h`.
pub fn backward(
    cx: &Cx,
    w: &Params,
    g: &Params,
    a: &FeedForwardActs,
    d: &GradBuffers,
    gather: Option<Pending>,
) {
    cx.tp.gather_seq(d.branch, d.branch_in);
    let then = match a.ffn {
        Ffn::Gelu(gelu) => GeluBackward { pre: a.fc, gelu },
        Ffn::Swiglu => Nothing,
    };
    linear::backward(cx, d.branch_in, a.act, (w, Fc2W), then, d.act.set(), g.out(Fc2W));
    if let Ffn::Swiglu = a.ffn {
        cx.be
            .run(op::SwigluBackward { dy: d.act, x: a.fc, dx: d.fc.set() });
    }
    let dw = g.out(Fc1W);
    let db = g.get_out(Fc1B);
    let entry = Entry { x: a.to_fc, gather, dx_in: d.h_in, dx: d.h };
    linear::backward_entry(cx, d.fc, entry, (w, Fc1W), dw, db);
}

/// Recomputes what selective recompute drops: the outputs of the norm and of the activation. Starts
/// the gather of the layer's input.
pub fn rebuild(cx: &Cx, w: &Params, a: &FeedForwardActs) -> Option<Pending> {
    let gather = norm::rebuild(cx, w, &a.norm);
    match a.ffn {
        Ffn::Gelu(gelu) => cx.be.run(op::Gelu { x: a.fc, gelu, y: a.act.x.set() }),
        Ffn::Swiglu => cx.be.run(op::Swiglu { x: a.fc, y: a.act.x.set() }),
    }
    gather
}
