//! Buffers that layers share.

use super::Cx;
use device::{Arena, Tensor};
use manifest::Ffn;

/// Where a block's buffers are laid. Recompute is nothing but this choice.
pub struct BlockArenas<'a> {
    /// Of results of products and attention: kept until backward, but under full recompute.
    pub costly: &'a Arena,
    /// Of norms and activation functions: kept only without recompute.
    pub cheap: &'a Arena,
    /// Of a number for each column: kept until backward in any case.
    pub always: &'a Arena,
}

/// Backward's buffers, shared by all layers.
#[rustfmt::skip]
pub struct GradBuffers {
    pub stream:    Tensor, // [n, H]   gradient of the residual stream: dy in, dx out
    pub stream_in: Tensor, // [N, H]
    pub branch:    Tensor, // [n, H]   gradient of a branch: the stream's own, but for dropout
    pub branch_in: Tensor, // [N, H]
    pub h:         Tensor, // [n, H]   gradient of a normed input
    pub h_in:      Tensor, // [N, H]
    pub act:       Tensor, // [N, f]   gradient of what the second product reads
    pub fc:        Tensor, // [N, f1]  and of what the first one gave: the same, but for SwiGLU
    pub ctx:       Tensor, // [N, q]
    pub qkv:       Tensor, // [N, qkv]
    pub scale:     Tensor, // f32 [1, 1]  of all gradients: what the loss is multiplied by
    pub z_loss:    Tensor, // f32 [1, 1]  where the second loss is added up
}

impl GradBuffers {
    /// `sums` are the places of `scale` and `z_loss`.
    pub fn plan(cx: &Cx, all: usize, [scale, z_loss]: [Tensor; 2], arena: &Arena) -> GradBuffers {
        let outside = || arena.matrix(cx.tp.tokens(all), cx.model.hidden, cx.dtype);
        let (stream, h) = (outside(), outside());
        let stream_in = cx.tp.gathered(stream, all, arena);
        let wide = |cols| arena.matrix(all, cx.tp.share(cols), cx.dtype);
        let act = wide(cx.model.ffn_hidden);
        let fc = if cx.model.ffn == Ffn::Swiglu { wide(cx.model.ffn_rows()) } else { act };
        let own = cx.training && cx.model.dropout.residual > 0.0;
        let branch = if own { outside() } else { stream };
        let branch_in = if own { cx.tp.gathered(branch, all, arena) } else { stream_in };
        GradBuffers {
            stream,
            stream_in,
            branch,
            branch_in,
            h,
            h_in: cx.tp.gathered(h, all, arena),
            act,
            fc,
            ctx: arena.matrix(all, cx.heads().query_width(), cx.dtype),
            qkv: arena.matrix(all, cx.heads().qkv_width(), cx.dtype),
            scale,
            z_loss,
        }
    }
}
