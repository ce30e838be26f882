//! Buffers shared by several layers.

use super::Cx;
use device::{Arena, Tensor};
use manifest::Ffn;

/// Arenas of a block's buffers. This choice alone implements recompute.
pub struct BlockArenas<'a> {
    /// Results of matrix products and attention: kept until backward, except under full recompute.
    pub costly: &'a Arena,
    /// Results of norms and activation functions: kept only without recompute.
    pub cheap: &'a Arena,
    /// Buffers of one number per column: always kept until backward.
    pub always: &'a Arena,
}

/// Buffers of backward, shared by all layers.
#[rustfmt::skip]
pub struct GradBuffers {
    pub stream:    Tensor, // [n, H]   gradient of the residual stream: dy in, dx out
    pub stream_in: Tensor, // [N, H]
    pub branch:    Tensor, // [n, H]   gradient of a branch: `stream` itself without dropout
    pub branch_in: Tensor, // [N, H]
    pub h:         Tensor, // [n, H]   gradient of a normed input
    pub h_in:      Tensor, // [N, H]
    pub act:       Tensor, // [N, f]   gradient of the second product's input
    pub fc:        Tensor, // [N, f1]  gradient of the first product's output; `act` unless SwiGLU
    pub ctx:       Tensor, // [N, q]
    pub qkv:       Tensor, // [N, qkv]
    pub scale:     Tensor, // f32 [1, 1]  loss scale, a factor of all gradients
    pub z_loss:    Tensor, // f32 [1, 1]  sum of the z-loss
}

impl GradBuffers {
    /// Lays out the buffers for `all` tokens. `scale` and `z_loss` are given.
    pub fn plan(cx: &Cx, all: usize, scale: Tensor, z_loss: Tensor, arena: &Arena) -> GradBuffers {
        let outside = || arena.matrix(cx.tp.tokens(all), cx.model.hidden, cx.dtype);
        let stream = outside();
        let h = outside();
        let stream_in = cx.tp.gathered_buffer(stream, all, arena);
        let wide = |cols| arena.matrix(all, cx.tp.share(cols), cx.dtype);
        let act = wide(cx.model.ffn_hidden);
        let fc = if cx.model.ffn == Ffn::Swiglu { wide(cx.model.ffn_rows()) } else { act };
        let own = cx.training && cx.model.dropout.residual > 0.0;
        let branch = if own { outside() } else { stream };
        let branch_in = if own { cx.tp.gathered_buffer(branch, all, arena) } else { stream_in };
        GradBuffers {
            stream,
            stream_in,
            branch,
            branch_in,
            h,
            h_in: cx.tp.gathered_buffer(h, all, arena),
            act,
            fc,
            ctx: arena.matrix(all, cx.heads().query_width(), cx.dtype),
            qkv: arena.matrix(all, cx.heads().qkv_width(), cx.dtype),
            scale,
            z_loss,
        }
    }
}
