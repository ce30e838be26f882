//! Normalisation before a split region: h = norm(x), gathered over the sequence.

use crate::{Cx, GradBuffers, Params, Weight};
use base::DType;
use comm::Pending;
use device::{Arena, Dropout, Out, Tensor, op};

#[rustfmt::skip]
#[derive(Clone, Copy)]
pub struct NormActs {
    weights: [Weight; 2], // scale, and shift unless it is an RMS norm
    x:        Tensor,     // [n, H]
    stats:    Tensor,     // [n, 2]  mean and 1/std
    h:        Tensor,     // [n, H]  normalised
    pub h_in: Tensor,     // [N, H]  inside the split region
}

impl NormActs {
    /// Lays out the buffers for `all` = N tokens: statistics in `kept`, values that they rebuild in
    /// `arena`.
    pub fn plan(
        cx: &Cx,
        weights: [Weight; 2],
        x: Tensor,
        all: usize,
        kept: &Arena,
        arena: &Arena,
    ) -> NormActs {
        let stats = kept.matrix(x.rows, 2, DType::F32);
        let h = arena.matrix(x.rows, x.cols, x.dtype);
        NormActs { weights, x, stats, h, h_in: cx.tp.gathered_buffer(h, all, arena) }
    }

    fn forward(&self, cx: &Cx, w: &Params) -> op::LayerNorm {
        let norm = cx.norm(w, self.weights);
        op::LayerNorm { x: self.x, norm, y: self.h.set(), stats: self.stats.set() }
    }

    fn backward(&self, w: &Params, g: &Params, dy: Tensor, dx: Out) -> op::LayerNormBackward {
        let [scale, shift] = self.weights;
        let dscale = g[scale].add();
        let dshift = g.get(shift).map(Tensor::add);
        op::LayerNormBackward {
            dy,
            x: self.x,
            stats: self.stats,
            scale: w[scale],
            dx,
            dscale,
            dshift,
        }
    }
}

pub fn forward(cx: &Cx, w: &Params, a: &NormActs) {
    cx.be.run(a.forward(cx, w));
    cx.tp.gather_seq(a.h, a.h_in);
}

/// Like `forward`, but only starts the gather of h_in.
pub fn rebuild(cx: &Cx, w: &Params, a: &NormActs) -> Option<Pending> {
    cx.be.run(a.forward(cx, w));
    cx.tp.begin_gather(a.h, a.h_in)
}

/// Forward that first computes x = stream + dropout(branch + bias), in one pass.
pub fn forward_residual(
    cx: &Cx,
    w: &Params,
    a: &NormActs,
    stream: Tensor,
    branch: Tensor,
    bias: Option<Tensor>,
    drop: &Dropout,
) {
    let residual = op::Residual { x: stream, branch, bias, drop: *drop, y: a.x.set() };
    cx.be
        .run(op::ResidualNorm { residual, norm: a.forward(cx, w) });
    cx.tp.gather_seq(a.h, a.h_in);
}

/// Backward. `d` [n, H] is the gradient of h.
pub fn backward(cx: &Cx, w: &Params, g: &Params, a: &NormActs, d: Tensor, dx: Out) {
    cx.be.run(a.backward(w, g, d, dx));
}

/// Backward of `forward_residual`. Reads the gradient of h in `d.h`, adds that of x to `d.stream`,
/// and leaves that of the branch in `d.branch`.
pub fn backward_residual(
    cx: &Cx,
    w: &Params,
    g: &Params,
    a: &NormActs,
    d: &GradBuffers,
    drop: &Dropout,
    dbias: Option<Out>,
) {
    let norm = a.backward(w, g, d.h, d.stream.add());
    let dbranch = drop.output(d.stream, d.branch);
    let residual = op::ResidualBackward { dy: d.stream, drop: *drop, dbranch, dbias };
    cx.be.run(op::NormResidualBackward { norm, residual });
}
