//! Attention, and the transform of queries and keys before it.

use super::{Accesses, Spec, assert_like, reads};
use crate::{ATTENTION, ATTENTION_BACKWARD, Attend, Out, QkNorm, Rotation, Tensor, Visible, Work};
use base::{DType, Heads};

/// y = qkv with normalised and rotated queries and keys; values are copied. In place.
#[derive(Clone, Copy, Debug)]
pub struct QueryKey {
    pub qkv: Tensor,
    pub how: crate::QueryKey,
    pub y: Out,
}

impl Spec for QueryKey {
    const NAME: &'static str = "queries and keys";
    fn check(&self) {
        assert!(!self.y.add, "y is overwritten");
        check_query_key(&self.how, self.qkv, self.y.to);
    }
    fn cost(&self) -> Work {
        let (elements, moved) = moved_elements(self.qkv, &self.how, self.y.to == self.qkv);
        Work::op(10 * elements).moving([moved, moved])
    }
    fn tensors(&self) -> Accesses {
        reads([self.qkv]).read(self.how.tensors()).write([self.y])
    }
}

/// dx from dy; the gradients of the norm's scales, f32, accumulate. qkv is the input of forward,
/// and only needed with a norm. Overwrites. In place (dx on dy).
#[derive(Clone, Copy, Debug)]
pub struct QueryKeyBackward {
    pub dy: Tensor,
    pub qkv: Tensor,
    pub how: crate::QueryKey,
    pub dx: Out,
    /// Gradient of `QkNorm::query`.
    pub dquery: Option<Out>,
    /// Gradient of `QkNorm::key`.
    pub dkey: Option<Out>,
}

impl Spec for QueryKeyBackward {
    const NAME: &'static str = "queries and keys backward";
    fn check(&self) {
        let QueryKeyBackward { dy, qkv, how, dx, dquery, dkey } = *self;
        assert!(!dx.add, "dx is overwritten");
        check_query_key(&how, qkv, dx.to);
        assert_like(qkv, &[dy], "qkv and dy");
        for out in [dquery, dkey] {
            assert_eq!(how.norm.is_some(), out.is_some(), "gradients of the norm's scales");
            let fits = out.is_none_or(|out| out.add && out.to.numel() == how.heads.dim);
            assert!(fits, "the gradients of scales accumulate");
        }
    }
    fn cost(&self) -> Work {
        let (elements, moved) = moved_elements(self.qkv, &self.how, self.dx.to == self.dy);
        let read = self.how.norm.map(|_| moved);
        Work::op(16 * elements).moving([moved, moved]).moving(read)
    }
    fn tensors(&self) -> Accesses {
        let QueryKeyBackward { dy, qkv, how, dx, dquery, dkey } = *self;
        let read = reads([dy]).read(how.norm.map(|_| qkv)).read(how.tensors());
        read.write([dx]).write(dquery).write(dkey)
    }
}

/// Number of elements of queries and keys, and the moved part of qkv: in place, values are not
/// moved.
fn moved_elements(qkv: Tensor, how: &crate::QueryKey, in_place: bool) -> (usize, Tensor) {
    let elements = qkv.rows * (how.heads.query + how.heads.kv) * how.heads.dim;
    (elements, if in_place { qkv.span(0, elements) } else { qkv })
}

fn check_query_key(how: &crate::QueryKey, qkv: Tensor, y: Tensor) {
    assert_eq!(qkv.cols, how.heads.qkv_width(), "qkv");
    assert_like(qkv, &[y], "qkv and y");
    assert!(how.heads.dim <= 256, "a head of {} is wider than 256", how.heads.dim);
    let wide = (how.heads.dim, qkv.dtype);
    if let Some(QkNorm { query, key, .. }) = how.norm {
        assert!([query, key].iter().all(|w| (w.numel(), w.dtype) == wide), "norms of heads");
    }
    if let Some(Rotation { positions, table }) = how.rotation {
        assert_eq!((positions.rows, positions.dtype), (qkv.rows, DType::I32), "positions");
        assert_eq!((table.cols, table.dtype), (wide.0, DType::F32), "angles");
        assert!(how.heads.dim.is_multiple_of(2), "a head of {} columns", how.heads.dim);
    }
}

/// y = softmax(scale·q·kᵀ + bias)·v per head and sample, without a T×T matrix. qkv [N, qkv width],
/// y [N, query width], lse f32 [N, query heads]: log-sum-exp of each query's scores. A query
/// without visible keys gives y = 0.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub qkv: Tensor,
    pub how: Attend,
    pub y: Out,
    pub lse: Out,
}

impl Spec for Attention {
    const NAME: &'static str = ATTENTION;
    fn check(&self) {
        assert!(!self.y.add && !self.lse.add, "attention overwrites");
        check_attend(&self.how, self.qkv, self.y.to, self.lse.to);
    }
    fn cost(&self) -> Work {
        let Attention { qkv, how, y, lse } = *self;
        Work::op(2 * product(qkv, &how)).moving([qkv, y.to, lse.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.qkv])
            .read(self.how.tensors())
            .write([self.y, self.lse])
    }
}

/// dqkv from dy, with y and lse of forward. Overwrites.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward {
    pub dy: Tensor,
    pub qkv: Tensor,
    pub y: Tensor,
    pub lse: Tensor,
    pub how: Attend,
    pub dqkv: Out,
}

impl Spec for AttentionBackward {
    const NAME: &'static str = ATTENTION_BACKWARD;
    fn check(&self) {
        let AttentionBackward { dy, qkv, y, lse, how, dqkv } = *self;
        check_attend(&how, qkv, y, lse);
        assert_like(y, &[dy], "y and dy");
        assert_like(qkv, &[dqkv.to], "qkv and dqkv");
        assert!(!dqkv.add, "dqkv is overwritten");
    }
    fn cost(&self) -> Work {
        let AttentionBackward { dy, qkv, y, lse, how, dqkv } = *self;
        // Scores are rebuilt: five products, compared to two in forward.
        Work::op(5 * product(qkv, &how)).moving([dy, qkv, y, lse, dqkv.to])
    }
    fn tensors(&self) -> Accesses {
        let AttentionBackward { dy, qkv, y, lse, how, dqkv } = *self;
        reads([dy, qkv, y, lse]).read(how.tensors()).write([dqkv])
    }
}

/// FLOPs of a product of the scores' size. A causal mask halves it, a window keeps the scores
/// within it.
fn product(qkv: Tensor, how: &Attend) -> usize {
    let (seq, window) = (how.seq, how.window.unwrap_or(how.seq).min(how.seq));
    // Under a causal window of w, a query sees w − w²/2T keys of T on average.
    let halves = match how.visible {
        Visible::Causal => window * (2 * seq - window),
        Visible::Ranges(_) => 2 * seq * seq.min(2 * window),
    };
    qkv.rows * halves / seq * how.heads.query_width()
}

fn check_attend(how: &Attend, qkv: Tensor, y: Tensor, lse: Tensor) {
    let Heads { query, kv, .. } = how.heads;
    assert!(query.is_multiple_of(kv), "{query} query heads share {kv} of keys and values");
    assert_eq!(qkv.cols, how.heads.qkv_width(), "qkv");
    let width = how.heads.query_width();
    assert_eq!((y.rows, y.cols, y.dtype), (qkv.rows, width, qkv.dtype), "y");
    assert_eq!((lse.rows, lse.cols, lse.dtype), (qkv.rows, query, DType::F32), "lse");
    if let Visible::Ranges(ranges) = how.visible {
        assert_eq!((ranges.rows, ranges.cols), (qkv.rows, 2), "visible ranges");
    }
    if let Some(slopes) = how.slopes {
        assert_eq!(slopes.numel(), query, "slopes");
    }
    let rows = qkv.rows;
    let seq = how.seq;
    assert!(rows.is_multiple_of(seq), "{rows} rows are not divisible by {seq} per sample");
}
