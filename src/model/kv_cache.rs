//! KV cache: keys and values of earlier tokens, for one text that grows (`engine::Sampler`). A
//! batch appends its own and attends to all.

use super::Cx;
use base::DType;
use device::{Arena, Attend, Tensor, Visible, op};

/// Buffers of the cache, shared by the passes of a text.
#[derive(Clone, Copy, Debug)]
pub struct KvCache {
    /// [layers·C, qkv]  for C tokens in each layer, in the layout of attention
    qkv: Tensor,
    /// i32 [C, 2]  keys that each token attends to; none for tokens before the batch
    visible: Tensor,
    /// [C, q], [C, a]  output of attention in the current layer
    ctx: Tensor,
    lse: Tensor,
}

impl KvCache {
    /// Reserves the cache for texts of up to `tokens` tokens.
    pub fn plan(cx: &Cx, tokens: usize, arena: &Arena) -> KvCache {
        let heads = cx.heads();
        KvCache {
            qkv: arena.matrix(cx.model.layers * tokens, heads.qkv_width(), cx.dtype),
            visible: arena.matrix(tokens, 2, DType::I32),
            ctx: arena.matrix(tokens, heads.query_width(), cx.dtype),
            lse: arena.matrix(tokens, heads.query, DType::F32),
        }
    }

    /// Prepares a batch of `new` tokens that follow `first` others.
    pub fn begin(&self, cx: &Cx, first: usize, new: usize) {
        let ends = (0..first + new).map(|row| if row < first { 0 } else { row as i32 + 1 });
        let ranges: Vec<[i32; 2]> = ends.map(|end| [0, end]).collect();
        cx.be
            .upload(bytemuck::cast_slice(&ranges), self.visible.row_range(0, ranges.len()));
    }

    /// Attention of the batch in one layer, from `transformed` to `to`. The cost is that of the batch's
    /// own queries, because a query without visible keys is skipped.
    pub fn attend(&self, cx: &Cx, layer: usize, attend: &Attend, transformed: Tensor, to: Tensor) {
        let first = cx.cached_tokens;
        let new = transformed.rows;
        let all = first + new;
        let qkv = self.qkv.row_range(layer * self.visible.rows, all);
        cx.be
            .run(op::Copy { x: transformed, y: qkv.row_range(first, new).set() });
        let [ctx, lse, visible] = [self.ctx, self.lse, self.visible].map(|x| x.row_range(0, all));
        let attend = Attend { seq: all, visible: Visible::Ranges(visible), ..*attend };
        cx.be
            .run(op::Attention { qkv, attend, y: ctx.set(), lse: lse.set() });
        cx.be
            .run(op::Copy { x: ctx.row_range(first, new), y: to.set() });
    }
}
