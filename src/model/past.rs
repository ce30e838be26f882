//! Keys and values of the tokens before a batch's, of one text that grows (`engine::Sampler`): a
//! batch adds its own and attends to all.

use super::Cx;
use base::DType;
use device::{Arena, Attend, Tensor, Visible};

/// Where they lie; shared by the passes of a text.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    /// [layers·C, qkv]  of C tokens in each layer, as attention reads them
    qkv: Tensor,
    /// i32 [C, 2]  keys that each token sees: those before the batch see none, their turn is over
    visible: Tensor,
    /// [C, q], [C, a]  what attention gives, of the layer at hand
    ctx: Tensor,
    lse: Tensor,
}

impl Past {
    /// For texts of so many tokens.
    pub fn plan(cx: &Cx, tokens: usize, arena: &Arena) -> Past {
        let heads = cx.heads();
        Past {
            qkv: arena.matrix(cx.model.layers * tokens, heads.qkv_width(), cx.dtype),
            visible: arena.matrix(tokens, 2, DType::I32),
            ctx: arena.matrix(tokens, heads.query_width(), cx.dtype),
            lse: arena.matrix(tokens, heads.query, DType::F32),
        }
    }

    /// A batch of `new` tokens comes after `first` others.
    pub fn begin(&self, cx: &Cx, first: usize, new: usize) {
        let ends = (0..first + new).map(|row| if row < first { 0 } else { row as i32 + 1 });
        let ranges: Vec<[i32; 2]> = ends.map(|end| [0, end]).collect();
        cx.be.upload(bytemuck::cast_slice(&ranges), self.visible.row_range(0, ranges.len()));
    }

    /// Attention of the batch of `cx`, in a layer: from what is turned to `ctx`. It costs the batch's own queries alone: a query
    /// that sees nothing is passed over.
    pub fn attend(&self, cx: &Cx, layer: usize, how: &Attend, [turned, to]: [Tensor; 2]) {
        let (first, new) = (cx.past, turned.rows);
        let all = first + new;
        let qkv = self.qkv.row_range(layer * self.visible.rows, all);
        cx.be.copy(turned, qkv.row_range(first, new).set());
        let [ctx, lse, visible] = [self.ctx, self.lse, self.visible].map(|x| x.row_range(0, all));
        let how = Attend { seq: all, visible: Visible::Ranges(visible), ..*how };
        cx.be.attention(qkv, &how, ctx.set(), lse.set());
        cx.be.copy(ctx.row_range(first, new), to.set());
    }
}
