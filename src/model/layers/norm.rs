//! A normalisation before a split region: h = norm(x), gathered over the sequence.

use crate::{Cx, GradBuffers, Params, Weight};
use base::DType;
use comm::Pending;
use device::{Arena, Dropout, Norm, Out, Tensor};

#[rustfmt::skip]
#[derive(Clone, Copy)]
pub struct Acts {
    weights: [Weight; 2], // scale and, but for an RMS norm, shift
    x:        Tensor,     // [n, H]
    stats:    Tensor,     // [n, 2]  mean and 1/std
    h:        Tensor,     // [n, H]  normed
    pub h_in: Tensor,     // [N, H]  inside the split region
}

impl Acts {
    /// `kept` is for the statistics, `arena` for what they rebuild; `all` is N.
    pub fn plan(
        cx: &Cx,
        weights: [Weight; 2],
        x: Tensor,
        all: usize,
        kept: &Arena,
        arena: &Arena,
    ) -> Acts {
        let (stats, h) =
            (kept.matrix(x.rows, 2, DType::F32), arena.matrix(x.rows, x.cols, x.dtype));
        Acts { weights, x, stats, h, h_in: cx.tp.gathered(h, all, arena) }
    }

    fn norm(&self, cx: &Cx, w: &Params) -> Norm {
        cx.norm(w, self.weights)
    }
}

pub fn forward(cx: &Cx, w: &Params, a: &Acts) {
    cx.be.layernorm(a.x, &a.norm(cx, w), a.h.set(), a.stats.set());
    cx.tp.gather_seq(a.h, a.h_in);
}

/// As `forward`, but h_in is there only after the gather that it begins.
pub fn rebuild(cx: &Cx, w: &Params, a: &Acts) -> Option<Pending> {
    cx.be.layernorm(a.x, &a.norm(cx, w), a.h.set(), a.stats.set());
    cx.tp.begin_gather(a.h, a.h_in)
}

/// x = stream + dropout(branch + bias) before it, in one pass.
pub fn forward_residual(
    cx: &Cx,
    w: &Params,
    a: &Acts,
    [stream, branch]: [Tensor; 2],
    bias: Option<Tensor>,
    drop: &Dropout,
) {
    let (x, h, stats) = (a.x.set(), a.h.set(), a.stats.set());
    cx.be.residual_norm(stream, branch, bias, drop, x, &a.norm(cx, w), h, stats);
    cx.tp.gather_seq(a.h, a.h_in);
}

/// `d` [n, H] is the gradient of h.
pub fn backward(cx: &Cx, w: &Params, g: &Params, a: &Acts, d: Tensor, dx: Out) {
    let [scale, shift] = a.weights;
    let (dscale, dshift) = (g[scale].add(), g.get(shift).map(Tensor::add));
    cx.be.layernorm_backward(d, a.x, a.stats, w[scale], dx, dscale, dshift);
}

/// From the gradient of h in `d.h` on to that of x, added to `d.stream`, and that of the branch.
pub fn backward_residual(
    cx: &Cx,
    w: &Params,
    g: &Params,
    a: &Acts,
    d: &GradBuffers,
    drop: &Dropout,
    dbias: Option<Out>,
) {
    let [scale, shift] = a.weights;
    let norm = [d.h, a.x, a.stats, w[scale]];
    let (dnorm, dshift) = ([d.stream, g[scale]].map(Tensor::add), g.get(shift).map(Tensor::add));
    cx.be.norm_residual_backward(norm, dnorm, dshift, drop, d.branch.set(), dbias);
}
