//! Attention, and the transform of queries and keys before it.

use super::{Attention, AttentionBackward, QueryKey, QueryKeyBackward, Spec, assert_like};
use crate::{Attend, QkNorm, Rotation, Tensor, Visible, Work};
use base::{DType, Heads};

impl Spec for QueryKey {
    fn check(&self) {
        assert!(!self.y.add, "y is overwritten");
        check_query_key(&self.transform, self.qkv, self.y.to);
    }
    fn cost(&self) -> Work {
        let elements = transformed_elements(self.qkv, &self.transform);
        let moved = moved_part(self.qkv, elements, self.y.to);
        Work::op(10 * elements).moving([moved, moved])
    }
}

impl Spec for QueryKeyBackward {
    fn check(&self) {
        let QueryKeyBackward { dy, qkv, transform, dx, dquery, dkey } = *self;
        assert!(!dx.add, "dx is overwritten");
        check_query_key(&transform, dy, dx.to);
        assert_eq!(transform.norm.is_some(), qkv.is_some(), "the norm's input");
        assert_like(dy, qkv.as_slice(), "dy and qkv");
        for out in [dquery, dkey] {
            assert_eq!(transform.norm.is_some(), out.is_some(), "gradients of the norm's scales");
            let fits = out.is_none_or(|out| out.add && out.to.numel() == transform.heads.dim);
            assert!(fits, "the gradients of scales accumulate");
        }
    }
    fn cost(&self) -> Work {
        let elements = transformed_elements(self.dy, &self.transform);
        let moved = moved_part(self.dy, elements, self.dx.to);
        Work::op(16 * elements)
            .moving([moved, moved])
            .moving(self.qkv.map(|_| moved))
    }
}

/// Number of elements of queries and keys.
fn transformed_elements(qkv: Tensor, transform: &crate::QueryKey) -> usize {
    qkv.rows * (transform.heads.query + transform.heads.kv) * transform.heads.dim
}

/// Part of x that moves to y: in place, values do not move.
fn moved_part(x: Tensor, elements: usize, y: Tensor) -> Tensor {
    if x == y { x.span(0, elements) } else { x }
}

fn check_query_key(transform: &crate::QueryKey, qkv: Tensor, y: Tensor) {
    let crate::QueryKey { heads, norm, rotation } = *transform;
    assert_eq!(qkv.cols, heads.qkv_width(), "qkv");
    assert_like(qkv, &[y], "qkv and y");
    assert!(heads.dim <= 256, "a head of {} is wider than 256", heads.dim);
    let wide = (heads.dim, qkv.dtype);
    if let Some(QkNorm { query, key, .. }) = norm {
        assert!([query, key].iter().all(|w| (w.numel(), w.dtype) == wide), "norms of heads");
    }
    if let Some(Rotation { positions, table }) = rotation {
        assert_eq!((positions.rows, positions.dtype), (qkv.rows, DType::I32), "positions");
        assert_eq!((table.cols, table.dtype), (heads.dim, DType::F32), "angles");
        assert!(heads.dim.is_multiple_of(2), "a head of {} columns", heads.dim);
    }
}

impl Spec for Attention {
    fn check(&self) {
        assert!(!self.y.add && !self.lse.add, "attention overwrites");
        check_attend(&self.attend, self.qkv, self.y.to, self.lse.to);
    }
    fn cost(&self) -> Work {
        let Attention { qkv, attend, y, lse } = *self;
        Work::op(2 * product(qkv, &attend)).moving([qkv, y.to, lse.to])
    }
}

impl Spec for AttentionBackward {
    fn check(&self) {
        let AttentionBackward { dy, qkv, y, lse, attend, dqkv } = *self;
        check_attend(&attend, qkv, y, lse);
        assert_like(y, &[dy], "y and dy");
        assert_like(qkv, &[dqkv.to], "qkv and dqkv");
        assert!(!dqkv.add, "dqkv is overwritten");
    }
    fn cost(&self) -> Work {
        let AttentionBackward { dy, qkv, y, lse, attend, dqkv } = *self;
        // Scores are rebuilt: five products, compared to two in forward.
        Work::op(5 * product(qkv, &attend)).moving([dy, qkv, y, lse, dqkv.to])
    }
}

/// FLOPs of a product of the scores' size. A causal mask halves it, a window keeps the scores
/// within it.
fn product(qkv: Tensor, attend: &Attend) -> usize {
    let seq = attend.seq;
    let window = attend.window.unwrap_or(seq).min(seq);
    // Under a causal window of w, a query sees w − w²/2T keys of T on average.
    let halves = match attend.visible {
        Visible::Causal => window * (2 * seq - window),
        Visible::Ranges(_) => 2 * seq * seq.min(2 * window),
    };
    qkv.rows * halves / seq * attend.heads.query_width()
}

fn check_attend(attend: &Attend, qkv: Tensor, y: Tensor, lse: Tensor) {
    let Heads { query, kv, .. } = attend.heads;
    assert!(query.is_multiple_of(kv), "{query} query heads share {kv} of keys and values");
    assert_eq!(qkv.cols, attend.heads.qkv_width(), "qkv");
    let width = attend.heads.query_width();
    assert_eq!((y.rows, y.cols, y.dtype), (qkv.rows, width, qkv.dtype), "y");
    assert_eq!((lse.rows, lse.cols, lse.dtype), (qkv.rows, query, DType::F32), "lse");
    if let Visible::Ranges(ranges) = attend.visible {
        assert_eq!((ranges.rows, ranges.cols), (qkv.rows, 2), "visible ranges");
    }
    if let Some(slopes) = attend.slopes {
        assert_eq!(slopes.numel(), query, "slopes");
    }
    let rows = qkv.rows;
    let seq = attend.seq;
    assert!(rows.is_multiple_of(seq), "{rows} rows are not divisible by {seq} per sample");
}
