//! Lookup of embeddings, and the loss.

use super::{CrossEntropy, CrossEntropyStats, CrossEntropyUnsplit, Embed, EmbedBackward, Spec};
use crate::{LossLogits, Tensor, Work};
use base::DType;

impl Spec for Embed {
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
}

impl Spec for EmbedBackward {
    fn check(&self) {
        let EmbedBackward { dy, ids, dtable, .. } = *self;
        assert!(dtable.add, "the gradient of a table accumulates");
        assert_eq!((ids.numel(), dtable.to.cols), (dy.rows, dy.cols), "ids, dtable and dy");
        assert_eq!((ids.dtype, dtable.to.dtype), (DType::I32, DType::F32), "ids and dtable");
    }
    fn cost(&self) -> Work {
        Work::op(self.dy.numel()).moving([self.dy; 3])
    }
}

impl Spec for CrossEntropyStats {
    fn check(&self) {
        let CrossEntropyStats { logits, targets, stats } = *self;
        let rows = logits.x.rows;
        assert_eq!((targets.numel(), stats.to.numel()), (rows, 3 * rows), "rows");
        assert!(stats.to.dtype == DType::F32 && !stats.add, "stats are f32 and overwritten");
    }
    fn cost(&self) -> Work {
        Work::op(4 * self.logits.x.numel()).moving([self.logits.x, self.stats.to])
    }
}

impl Spec for CrossEntropy {
    fn check(&self) {
        let CrossEntropy { targets, weights, stats, losses, z, logits } = *self;
        let rows = logits.logits.x.rows;
        assert_eq!([targets, weights, losses.to].map(Tensor::numel), [rows; 3], "rows");
        assert!(stats.cols == 3 && stats.rows.is_multiple_of(rows.max(1)), "stats of all shares");
        assert!(!losses.add, "losses are overwritten");
        assert!(z.is_none_or(|z| z.losses.to.numel() == rows && !z.losses.add), "z losses");
    }
    fn cost(&self) -> Work {
        let CrossEntropy { stats, losses, logits: LossLogits { logits, scale }, .. } = *self;
        let work = Work::op(4 * logits.x.numel()).moving([stats, losses.to]);
        if scale.is_some() { work.moving([logits.x; 2]) } else { work }
    }
}

impl CrossEntropyUnsplit {
    /// Computes the stats that the losses read.
    pub fn new(losses: CrossEntropy) -> CrossEntropyUnsplit {
        let CrossEntropy { logits, targets, stats, .. } = losses;
        let stats = CrossEntropyStats { logits: logits.logits, targets, stats: stats.set() };
        CrossEntropyUnsplit { stats, losses }
    }
}

impl Spec for CrossEntropyUnsplit {
    fn check(&self) {
        let CrossEntropyUnsplit { stats, losses } = self;
        stats.check();
        losses.check();
        assert!(stats.stats.to == losses.stats, "the losses are of these stats");
        assert!(stats.logits.x == losses.logits.logits.x, "stats and losses are of one tensor");
    }
    fn cost(&self) -> Work {
        let CrossEntropy { losses, logits: LossLogits { logits, scale }, .. } = self.losses;
        Work::op(8 * logits.x.numel())
            .moving([logits.x, losses.to])
            .moving(scale.map(|_| logits.x))
    }
}
