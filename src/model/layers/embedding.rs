//! Token and position embedding: x = dropout(norm(e·(token[id] + position[t]))). The token table is
//! split by vocabulary rows. Position, µP's factor e and the norm are optional.

use crate::weights::Weight::*;
use crate::{Cx, Inputs, Params, mup};
use base::DType;
use device::{Arena, Dropout, Tensor, op};
use manifest::Position;

#[rustfmt::skip]
pub struct EmbeddingActs {
    sum:     Tensor, // [n, H]  token + position: input of the norm (x itself without one)
    sum_in:  Tensor, // [N, H]  the same inside the split region, a partial sum
    stats:   Tensor, // [n, 2]
    pub x:   Tensor, // [n, H]  output
    drop: Dropout,
}

impl EmbeddingActs {
    /// Lays out the buffers. `x` is the input stream of the first block.
    pub fn plan(cx: &Cx, inputs: &Inputs, x: Tensor, saved: &Arena, workspace: &Arena) -> Self {
        let sum =
            if cx.model.embedding_layernorm { saved.matrix(x.rows, x.cols, x.dtype) } else { x };
        EmbeddingActs {
            sum,
            sum_in: cx.tp.gathered_buffer(sum, inputs.rows(), workspace),
            stats: saved.matrix(x.rows, 2, DType::F32),
            x,
            drop: cx.dropout("embed", cx.model.dropout.embedding, inputs),
        }
    }
}

pub fn forward(cx: &Cx, w: &Params, inputs: &Inputs, a: &EmbeddingActs) {
    let first = cx.tp.first(cx.model.vocab_padded);
    cx.be
        .run(op::Embed { ids: inputs.tokens, table: w[TokenEmbed], first, y: a.sum_in.set() });
    cx.tp.reduce_out(a.sum_in, a.sum);
    if cx.model.position == Position::Learned {
        cx.be.run(op::Embed {
            ids: positions(cx, inputs),
            table: w[PosEmbed],
            first: 0,
            y: a.sum.add(),
        });
    }
    if let Some(factor) = mup::embedding_factor(cx.model) {
        cx.be.run(op::Blend::multiply(factor, a.sum));
    }
    if cx.model.embedding_layernorm {
        let norm = cx.norm(w, [EmbedLnScale, EmbedLnShift]);
        cx.be
            .run(op::LayerNorm { x: a.sum, norm, y: a.x.set(), stats: a.stats.set() });
    }
    if a.drop.rate > 0.0 {
        cx.be
            .run(op::Dropout { x: a.x, drop: a.drop, y: a.x.set() });
    }
}

/// Backward. `d` [n, H] is the gradient of x (overwritten); `d_in` [N, H] is its buffer inside the
/// split region.
pub fn backward(
    cx: &Cx,
    w: &Params,
    g: &Params,
    inputs: &Inputs,
    a: &EmbeddingActs,
    d: Tensor,
    d_in: Tensor,
) {
    if a.drop.rate > 0.0 {
        cx.be.run(op::Dropout { x: d, drop: a.drop, y: d.set() });
    }
    if cx.model.embedding_layernorm {
        let dscale = g[EmbedLnScale].add();
        let dshift = g.get(EmbedLnShift).map(Tensor::add);
        cx.be.run(op::LayerNormBackward {
            dy: d,
            x: a.sum,
            stats: a.stats,
            scale: w[EmbedLnScale],
            dx: d.set(),
            dscale,
            dshift,
        });
    }
    if let Some(factor) = mup::embedding_factor(cx.model) {
        cx.be.run(op::Blend::multiply(factor, d));
    }
    if cx.model.position == Position::Learned {
        cx.be.run(op::EmbedBackward {
            dy: d,
            ids: positions(cx, inputs),
            first: 0,
            dtable: g[PosEmbed].add(),
        });
    }
    cx.tp.gather_seq(d, d_in);
    let first = cx.tp.first(cx.model.vocab_padded);
    cx.be.run(op::EmbedBackward {
        dy: d_in,
        ids: inputs.tokens,
        first,
        dtable: g[TokenEmbed].add(),
    });
}

/// Positions of this rank's tokens outside split regions.
fn positions(cx: &Cx, inputs: &Inputs) -> Tensor {
    let rows = inputs.rows();
    inputs
        .positions
        .row_range(cx.tp.first_row(rows), cx.tp.tokens(rows))
}
