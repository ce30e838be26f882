//! Arguments of the ops of normalisation, dropout, attention and loss.

use super::{Out, Tensor};
use base::{Heads, div_exact};

/// Normalisation of each row of H elements, with its weights [1, H].
#[derive(Clone, Copy, Debug)]
pub enum Norm {
    /// (x − mean)/√(variance + eps)·scale + shift (Ba, Kiros & Hinton 2016).
    Layer { scale: Tensor, shift: Tensor, eps: f32 },
    /// x/√(mean of x² + eps), rounded to its dtype, ·scale (Zhang & Sennrich 2019).
    Rms { scale: Tensor, eps: f32 },
}

impl Norm {
    /// Scale, shift if there is one, and eps.
    pub fn parts(self) -> (Tensor, Option<Tensor>, f32) {
        match self {
            Norm::Layer { scale, shift, eps } => (scale, Some(shift), eps),
            Norm::Rms { scale, eps } => (scale, None, eps),
        }
    }

    /// Panics if the weights do not fit x.
    pub fn check(self, x: Tensor) {
        let (scale, shift, _) = self.parts();
        for weight in [Some(scale), shift].into_iter().flatten() {
            assert_eq!((weight.numel(), weight.dtype), (x.cols, x.dtype), "weights of a norm");
        }
    }
}

/// Transform of queries and keys before attention: the norm, then the rotation.
#[derive(Clone, Copy, Debug)]
pub struct QueryKey {
    /// Heads of this rank.
    pub heads: Heads,
    pub norm: Option<QkNorm>,
    pub rotation: Option<Rotation>,
}

/// RMS norm of each head's columns of a query and of a key (Qwen3; Dehghani et al. 2023).
#[derive(Clone, Copy, Debug)]
pub struct QkNorm {
    /// [1, head_dim], both.
    pub query: Tensor,
    pub key: Tensor,
    pub eps: f32,
}

/// RoPE (Su et al. 2021): columns j and j + head_dim/2 of a head are a point in the plane, rotated
/// by angle j of its token's position.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// i32 [N, 1]: row of the table for each token.
    pub positions: Tensor,
    /// f32 [positions, head_dim]: head_dim/2 cosines, then the sines.
    pub table: Tensor,
}

/// This rank's share of the logits of R tokens, and how to read them.
#[derive(Clone, Copy, Debug)]
pub struct Logits {
    /// [R, v]: entries `first ..` of the vocabulary. Entries from `vocab` on are padding and are
    /// ignored.
    pub x: Tensor,
    pub first: usize,
    pub vocab: usize,
    /// Soft cap: with a cap of c, a logit x is used as c·tanh(x/c) (Gemma 2).
    pub cap: Option<f32>,
}

impl Logits {
    /// Columns that are entries of the vocabulary.
    pub fn own(&self) -> usize {
        self.vocab.saturating_sub(self.first).min(self.x.cols)
    }
}

/// Logits of a loss: kept, or replaced by its gradient.
#[derive(Clone, Copy, Debug)]
pub struct LossLogits {
    pub logits: Logits,
    /// Scale of the gradient, f32 [1, 1]; None to keep the logits, of which the loss then reads only
    /// the stats.
    pub scale: Option<Tensor>,
}

/// z-loss, which keeps the normaliser of the logits Z = Σ exp(logit) near 1: coefficient·(ln Z)²
/// (PaLM: Chowdhery et al. 2022, § 5).
#[derive(Clone, Copy, Debug)]
pub struct ZLoss {
    pub coefficient: f32,
    /// Weighted z-loss of each token: f32 [R, 1].
    pub losses: Out,
}

/// Inverted dropout without a stored mask. Whether an element is kept is a function of its position
/// in the whole run, so recompute, resume and every split of the model agree.
///
/// Element (row, column) of a tensor whose first row is row `first_row` of the micro-batch: with g
/// = first_sample·seq + first_row + row, it is dropped if word `column % 4` of `philox(key, g << 64
/// | head << 32 | column / 4)` is below rate·2³². Outside attention head is 0; inside, the column
/// is the position of the key in its sample. Kept elements are multiplied by 1/(1 − rate).
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// In [0, 1). At 0 no random numbers are drawn.
    pub rate: f32,
    /// Random key of this layer and call site (`base::rng::key`).
    pub key: u64,
    /// i64 [1, 1] in device memory: index in the run of the micro-batch's first sample.
    pub first_sample: Tensor,
    /// Rows per sample.
    pub seq: usize,
    /// Row of the micro-batch at which the tensor starts (sequence parallelism).
    pub first_row: usize,
}

impl Dropout {
    /// Destination of `ResidualBackward`: None if nothing is dropped and y is x.
    pub fn output(&self, x: Tensor, y: Tensor) -> Option<Out> {
        (self.rate > 0.0 || y != x).then_some(y.set())
    }
}

/// Keys visible to each query.
#[derive(Clone, Copy, Debug)]
pub enum Visible {
    /// Key ≤ query.
    Causal,
    /// i32 [N, 2]: half-open range of keys for each query, as positions in its own sample.
    Ranges(Tensor),
}

/// Self-attention over packed samples.
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Heads of this rank. qkv has `heads.qkv_width()` columns, in the order of `Heads::column`.
    pub heads: Heads,
    /// Index of this rank's first query head in the whole model.
    pub first_head: usize,
    /// Factor of the dot products of queries and keys, usually 1/√head_dim.
    pub scale: f32,
    /// Rows per sample.
    pub seq: usize,
    pub visible: Visible,
    /// Width of the window: a query at position p does not see keys before p + 1 − window.
    pub window: Option<usize>,
    /// ALiBi, f32 [1, heads]: adds slope·(key − query) to the scores.
    pub slopes: Option<Tensor>,
    pub dropout: Dropout,
}

impl Attend {
    /// Samples in the rows of a tensor.
    pub fn samples(&self, rows: usize) -> usize {
        div_exact(rows, self.seq)
    }
}
