//! What the ops of normalisation, dropout, attention and loss are told.

use super::{Out, Tensor};
use base::{DType, Heads, div_exact};

/// The normalisation of each row of H elements, with its weights [1, H].
#[derive(Clone, Copy, Debug)]
pub enum Norm {
    /// (x − mean)/√(variance + eps)·scale + shift (Ba, Kiros & Hinton 2016).
    Layer { scale: Tensor, shift: Tensor, eps: f32 },
    /// x/√(mean of x² + eps), rounded to its dtype, ·scale (Zhang & Sennrich 2019).
    Rms { scale: Tensor, eps: f32 },
}

impl Norm {
    /// Scale, shift if there is one, and eps. Panics if the weights do not fit x.
    pub fn parts(self, x: Tensor) -> (Tensor, Option<Tensor>, f32) {
        let (scale, shift, eps) = match self {
            Norm::Layer { scale, shift, eps } => (scale, Some(shift), eps),
            Norm::Rms { scale, eps } => (scale, None, eps),
        };
        for weight in [Some(scale), shift].into_iter().flatten() {
            assert_eq!((weight.numel(), weight.dtype), (x.cols, x.dtype), "weights of a norm");
        }
        (scale, shift, eps)
    }
}

/// What happens to queries and keys before attention: the norm, then the rotation.
#[derive(Clone, Copy, Debug)]
pub struct QueryKey {
    /// This rank's heads.
    pub heads: Heads,
    pub norm: Option<QkNorm>,
    pub rotation: Option<Rotation>,
}

/// An RMS norm of each head's columns of a query and of a key (Qwen3; Dehghani et al. 2023).
#[derive(Clone, Copy, Debug)]
pub struct QkNorm {
    /// [1, head_dim], both.
    pub query: Tensor,
    pub key: Tensor,
    pub eps: f32,
}

/// RoPE (Su et al. 2021): columns j and j + head_dim/2 of a head are a point in the plane, turned by
/// the angle j of its token's position.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// i32 [N, 1]: of each token, a row of the table.
    pub positions: Tensor,
    /// [positions, head_dim]: head_dim/2 cosines, then the sines.
    pub table: Tensor,
}

impl QueryKey {
    /// Panics if the tensors do not fit these of queries, keys and values.
    pub fn check(&self, qkv: Tensor, y: Tensor) {
        assert_eq!(qkv.cols, self.heads.qkv_width(), "qkv");
        assert_eq!((y.rows, y.cols, y.dtype), (qkv.rows, qkv.cols, qkv.dtype), "y");
        assert!(self.heads.dim <= 256, "a head of {} is wider than 256", self.heads.dim);
        let wide = (self.heads.dim, qkv.dtype);
        if let Some(QkNorm { query, key, .. }) = self.norm {
            assert!([query, key].iter().all(|w| (w.numel(), w.dtype) == wide), "norms of heads");
        }
        if let Some(Rotation { positions, table }) = self.rotation {
            assert_eq!((positions.rows, positions.dtype), (qkv.rows, DType::I32), "positions");
            assert_eq!((table.cols, table.dtype), wide, "angles");
            assert!(self.heads.dim.is_multiple_of(2), "a head of {} columns", self.heads.dim);
        }
    }

    /// The same of the tensors of backward.
    pub fn check_backward(&self, dy: Tensor, qkv: Tensor, dx: Out, dscales: Option<[Out; 2]>) {
        assert!(!dx.add, "dx is overwritten");
        self.check(qkv, dx.to);
        assert_eq!((dy.rows, dy.cols, dy.dtype), (qkv.rows, qkv.cols, qkv.dtype), "dy and qkv");
        assert_eq!(self.norm.is_some(), dscales.is_some(), "gradients of the norm's scales");
        for out in dscales.into_iter().flatten() {
            let fits = out.add && out.to.numel() == self.heads.dim;
            assert!(fits, "the gradients of scales accumulate");
        }
    }
}

/// This rank's share of the logits of R tokens, and how they are read.
#[derive(Clone, Copy, Debug)]
pub struct Logits {
    /// [R, v]: entries `first ..` of the vocabulary. Those from `vocab` on are padding and do not
    /// count.
    pub x: Tensor,
    pub first: usize,
    pub vocab: usize,
    /// Of a cap c every logit x counts as c·tanh(x/c) (Gemma 2).
    pub cap: Option<f32>,
}

impl Logits {
    /// Columns that are entries of the vocabulary.
    pub fn own(&self) -> usize {
        self.vocab.saturating_sub(self.first).min(self.x.cols)
    }
}

/// A second loss, which keeps the logits' normaliser Z = Σ exp(logit) near 1: coefficient·(ln Z)²
/// (PaLM: Chowdhery et al. 2022, § 5).
#[derive(Clone, Copy, Debug)]
pub struct ZLoss {
    pub coefficient: f32,
    /// Of each token, weighted: f32 [R, 1].
    pub losses: Out,
}

/// Inverted dropout without a stored mask: whether an element is kept is a function of its place in
/// the whole run, so recompute, resume and every way of cutting the model agree.
///
/// Element (row, column) of a tensor whose first row is row `first_row` of the micro-batch: with
/// g = first_sample·seq + first_row + row, it is dropped when word `column % 4` of
/// `philox(key, g << 64 | head << 32 | column / 4)` is below rate·2³² (head 0 outside attention;
/// inside, the column is the key's position in its sample). Kept elements grow by 1/(1 − rate).
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// In [0, 1). At 0 nothing is drawn.
    pub rate: f32,
    /// Random key of this layer and call site (`base::rng::key`).
    pub key: u64,
    /// i64 [1, 1] in device memory: number of the micro-batch's first sample in the run.
    pub first_sample: Tensor,
    /// Rows per sample.
    pub seq: usize,
    /// Row of the micro-batch at which the tensor starts (sequence parallelism).
    pub first_row: usize,
}

/// Which keys each query sees.
#[derive(Clone, Copy, Debug)]
pub enum Visible {
    /// Key ≤ query.
    Causal,
    /// i32 [N, 2]: for each query the half-open range of keys, as positions in its own sample.
    Ranges(Tensor),
}

/// Self-attention over packed samples.
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// This rank's heads: the columns of qkv are `heads.qkv_width()`, as `Heads::column` lays them
    /// out.
    pub heads: Heads,
    /// Number of this rank's first query head in the whole model.
    pub first_head: usize,
    /// What products of queries and keys are multiplied by, 1/√head_dim as a rule.
    pub scale: f32,
    /// Rows per sample.
    pub seq: usize,
    pub visible: Visible,
    /// A query at position p does not see the keys before p + 1 − window.
    pub window: Option<usize>,
    /// ALiBi, f32 [1, heads]: slope·(key − query) is added to the scores.
    pub slopes: Option<Tensor>,
    pub dropout: Dropout,
}

impl Attend {
    /// Panics if a tensor's shape does not follow from the heads and `seq`; returns the number of
    /// samples.
    pub fn check(&self, qkv: Tensor, y: Tensor, lse: Tensor) -> usize {
        let Heads { query, kv, .. } = self.heads;
        assert!(query.is_multiple_of(kv), "{query} query heads share {kv} of keys and values");
        assert_eq!(qkv.cols, self.heads.qkv_width(), "qkv");
        let width = self.heads.query_width();
        assert_eq!((y.rows, y.cols, y.dtype), (qkv.rows, width, qkv.dtype), "y");
        assert_eq!((lse.rows, lse.cols, lse.dtype), (qkv.rows, query, DType::F32), "lse");
        if let Visible::Ranges(ranges) = self.visible {
            assert_eq!((ranges.rows, ranges.cols), (qkv.rows, 2), "visible ranges");
        }
        if let Some(slopes) = self.slopes {
            assert_eq!(slopes.numel(), query, "slopes");
        }
        div_exact(qkv.rows, self.seq)
    }
}
