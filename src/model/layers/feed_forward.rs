//! The feed-forward sublayer: out = fc2(activation(fc1(norm(x)))), features split over ranks.

use super::{linear, norm};
use crate::device::Epilogue::{BiasGelu, GeluBackward, Nothing};
use crate::device::{Gelu, Tensor};
use crate::model::weights::Weight::*;
use crate::model::{BlockArenas, Cx, GradBuffers, Inputs, Params};

/// The activation between the two products.
#[derive(Clone, Copy)]
enum Ffn {
    /// gelu(fc)
    Gelu(Gelu),
}

#[rustfmt::skip]
pub struct Acts {
    pub norm: norm::Acts,
    fc:       Tensor, // [N, f]   before the activation
    act:      Tensor, // [N, f]   after it
    out_in:   Tensor, // [N, H]   fc2's result, inside the split region: a partial sum
    pub out:  Tensor, // [n, H]   and outside
    ffn: Ffn,
}

impl Acts {
    /// `x` [n, H] is the norm's input; `out` and `out_in` are shared by the sublayers.
    pub fn plan(
        cx: &Cx,
        inputs: &Inputs,
        x: Tensor,
        [out, out_in]: [Tensor; 2],
        arenas: &BlockArenas,
    ) -> Acts {
        let (all, f) = (inputs.rows(), cx.tp.share(cx.model.ffn_hidden));
        Acts {
            norm: norm::Acts::plan(cx, [Ln2Scale, Ln2Shift], x, all, arenas.costly, arenas.cheap),
            fc: arenas.costly.matrix(all, f, x.dtype),
            act: arenas.cheap.matrix(all, f, x.dtype),
            out_in,
            out,
            ffn: Ffn::Gelu(cx.model.gelu),
        }
    }
}

/// After the norm; the residual adds fc2's bias.
pub fn forward(cx: &Cx, w: &Params, a: &Acts) {
    let Ffn::Gelu(gelu) = a.ffn;
    let gelu = BiasGelu { bias: w.get(Fc1B), pre: a.fc, gelu };
    linear::forward(cx, a.norm.h_in, w[Fc1W], gelu, a.act.set());
    linear::forward(cx, a.act, w[Fc2W], Nothing, a.out_in.set());
    cx.tp.reduce_out(a.out_in, a.out);
}

/// In: the gradient of `out` in `d.branch`. Out: that of the norm's output in `d.h`.
pub fn backward(cx: &Cx, w: &Params, g: &Params, a: &Acts, d: &GradBuffers) {
    cx.tp.gather_seq(d.branch, d.branch_in);
    let Ffn::Gelu(gelu) = a.ffn;
    let gelu = GeluBackward { pre: a.fc, gelu };
    linear::backward(cx, d.branch_in, a.act, w[Fc2W], gelu, d.fc.set(), g[Fc2W].add());
    let (dw, db) = (g[Fc1W].add(), g.get(Fc1B).map(Tensor::add));
    linear::backward_biased(cx, d.fc, a.norm.h_in, w[Fc1W], d.h_in.set(), dw, db);
    cx.tp.reduce_out(d.h_in, d.h);
}

/// What selective recompute drops: the outputs of the norm and of the activation.
pub fn rebuild(cx: &Cx, w: &Params, a: &Acts) {
    norm::forward(cx, w, &a.norm);
    let Ffn::Gelu(gelu) = a.ffn;
    cx.be.gelu(a.fc, gelu, a.act.set());
}
