//! Lookup of embeddings, and the loss.

use super::{Accesses, Spec, reads};
use crate::{Logits, Out, Tensor, Work, ZLoss};
use base::DType;

/// y[i] (+)= table[ids[i] − first], or 0 if this share of the table (rows `first ..`) does not
/// contain it. ids i32 [N, 1], table [v, H], y [N, H].
#[derive(Clone, Copy, Debug)]
pub struct Embed {
    pub ids: Tensor,
    pub table: Tensor,
    pub first: usize,
    pub y: Out,
}

impl Spec for Embed {
    const NAME: &'static str = "embed";
    fn check(&self) {
        let ids = self.ids;
        let table = self.table;
        let y = self.y.to;
        assert_eq!((ids.numel(), table.cols), (y.rows, y.cols), "ids, table and y");
        assert_eq!((ids.dtype, table.dtype), (DType::I32, y.dtype), "ids; table and y");
    }
    fn cost(&self) -> Work {
        Work::op(0).moving([self.y.to, self.y.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.ids, self.table]).write([self.y])
    }
}

/// dtable[ids[i] − first] += dy[i], in the order of i. dtable f32 [v, H]; always accumulates.
#[derive(Clone, Copy, Debug)]
pub struct EmbedBackward {
    pub dy: Tensor,
    pub ids: Tensor,
    pub first: usize,
    pub dtable: Out,
}

impl Spec for EmbedBackward {
    const NAME: &'static str = "embed backward";
    fn check(&self) {
        let EmbedBackward { dy, ids, dtable, .. } = *self;
        assert!(dtable.add, "the gradient of a table accumulates");
        assert_eq!((ids.numel(), dtable.to.cols), (dy.rows, dy.cols), "ids, dtable and dy");
        assert_eq!((ids.dtype, dtable.to.dtype), (DType::I32, DType::F32), "ids and dtable");
    }
    fn cost(&self) -> Work {
        Work::op(self.dy.numel()).moving([self.dy; 3])
    }
    fn tensors(&self) -> Accesses {
        reads([self.dy, self.ids]).write([self.dtable])
    }
}

/// Per row of this rank's share of the logits: stats f32 [R, 3] = maximum, Σ exp(logit − maximum),
/// and the target's logit (−∞ if the target is not in this share).
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyStats {
    pub logits: Logits,
    pub targets: Tensor,
    pub stats: Out,
}

impl Spec for CrossEntropyStats {
    const NAME: &'static str = "cross entropy";
    fn check(&self) {
        let CrossEntropyStats { logits, targets, stats } = *self;
        let rows = logits.x.rows;
        assert_eq!((targets.numel(), stats.to.numel()), (rows, 3 * rows), "rows");
        assert!(stats.to.dtype == DType::F32 && !stats.add, "stats are f32 and overwritten");
    }
    fn cost(&self) -> Work {
        Work::op(4 * self.logits.x.numel()).moving([self.logits.x, self.stats.to])
    }
    fn tensors(&self) -> Accesses {
        reads([self.logits.x, self.targets]).write([self.stats])
    }
}

/// Losses from the stats of all shares, [shares·R, 3]: losses[r] = weights[r]·(−log p(target)), f32
/// [R, 1], and the z-loss if it is on. With a scale, f32 [1, 1], also replaces the logits by the
/// gradient of the sum of both losses times the scale, with 0 in the padding; the losses are not
/// scaled. targets i32 [R, 1], weights f32 [R, 1]. A weight of 0 gives loss 0 for any logits.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    pub logits: Logits,
    pub targets: Tensor,
    pub weights: Tensor,
    pub stats: Tensor,
    pub losses: Out,
    pub z: Option<ZLoss>,
    /// Scale of the gradient; None to keep the logits.
    pub scale: Option<Tensor>,
}

impl Spec for CrossEntropy {
    const NAME: &'static str = "cross entropy";
    fn check(&self) {
        let CrossEntropy { logits, targets, weights, stats, losses, z, .. } = *self;
        let rows = logits.x.rows;
        assert_eq!([targets, weights, losses.to].map(Tensor::numel), [rows; 3], "rows");
        assert!(stats.cols == 3 && stats.rows.is_multiple_of(rows.max(1)), "stats of all shares");
        assert!(!losses.add, "losses are overwritten");
        assert!(z.is_none_or(|z| z.losses.to.numel() == rows && !z.losses.add), "z losses");
    }
    fn cost(&self) -> Work {
        let CrossEntropy { logits: Logits { x, .. }, stats, losses, scale, .. } = *self;
        let work = Work::op(4 * x.numel()).moving([stats, losses.to]);
        if scale.is_some() { work.moving([x, x]) } else { work }
    }
    fn tensors(&self) -> Accesses {
        let CrossEntropy { logits, targets, weights, stats, losses, z, scale } = *self;
        let read = reads([targets, weights, stats]).read(scale);
        let all = read.write([losses]).write(z.map(|z| z.losses));
        if scale.is_some() { all.update([logits.x]) } else { all }
    }
}

/// `CrossEntropyStats` of an unsplit vocabulary into `stats` [R, 3], then `CrossEntropy`. Fused if
/// the device supports it, so that a row is read from memory once.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyUnsplit(pub CrossEntropy);

impl CrossEntropyUnsplit {
    pub fn parts(&self) -> (CrossEntropyStats, CrossEntropy) {
        let CrossEntropy { logits, targets, stats, .. } = self.0;
        (CrossEntropyStats { logits, targets, stats: stats.set() }, self.0)
    }
}

impl Spec for CrossEntropyUnsplit {
    const NAME: &'static str = "cross entropy";
    fn check(&self) {
        let (stats, losses) = self.parts();
        stats.check();
        losses.check();
    }
    fn cost(&self) -> Work {
        let CrossEntropy { logits: Logits { x, .. }, losses, scale, .. } = self.0;
        Work::op(8 * x.numel())
            .moving([x, losses.to])
            .moving(scale.map(|_| x))
    }
    fn tensors(&self) -> Accesses {
        let CrossEntropy { logits, targets, weights, stats, losses, z, scale } = self.0;
        let read = reads([logits.x, targets, weights]).read(scale);
        let all = read.write([stats.set(), losses]).write(z.map(|z| z.losses));
        if scale.is_some() { all.write([logits.x.set()]) } else { all }
    }
}
