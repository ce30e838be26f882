//! Expected bytes that a rank sends in a step: the formulas of the literature on the layout of its
//! memory. Tests compare them with what groups of threads send, and with what the dry run counts.

mod formulas;
#[cfg(test)]
mod tests;

pub use formulas::Volume;

use super::groups::{Groups, context, model_shard, pipeline_rank};
use crate::base::{DType, div_exact};
use crate::device::Backend;
use crate::manifest::{Manifest, Recompute};
use crate::model::{Bucket, Layout, Module, Param};
use formulas::{Kind, Step};

/// Bytes this rank sends in a step of `global` samples, by group.
pub fn volume(be: &dyn Backend, groups: &Groups, m: &Manifest, global: usize) -> Volume {
    let cx = context(be, groups, m, true);
    let layout = Layout::new(&m.model, model_shard(groups, m));
    let pp = pipeline_rank(groups, m);
    let stages: Vec<usize> = (0..pp.chunks).map(|chunk| pp.stage(chunk)).collect();
    let tokens = m.batch.micro * m.model.seq_len;
    let bytes = |elements: usize, dtype: DType| (elements * dtype.size()) as f64;
    let both = groups.embedding.size() > 1;
    let shared = layout.params().find(|param| both && param.spec.tied);
    formulas::sent(&Step {
        tensor: groups.tensor.size(),
        pipeline: pp.ranks,
        data: groups.data.size(),
        sequence: m.topology.sequence_parallel,
        zero: m.topology.zero,
        micros: div_exact(global, m.batch.micro * groups.data.size()),
        tokens,
        stream: bytes(tokens * m.model.hidden, cx.dtype),
        again: match m.topology.recompute {
            Recompute::None => [0, 0],
            Recompute::Selective => [2, 0],
            Recompute::Full => [2, 2],
        },
        before: stages.iter().filter(|stage| **stage > 0).count(),
        after: stages.iter().filter(|stage| *stage + 1 < pp.stages()).count(),
        buckets: layout.buckets.iter().map(|bucket| entry(bucket, cx.dtype, m)).collect(),
        tied: shared.map_or(0.0, |param| bytes(param.numel(), DType::F32)),
    })
}

fn entry(bucket: &Bucket, live: DType, m: &Manifest) -> formulas::Bucket {
    let bytes = |elements: usize, dtype: DType| (elements * dtype.size()) as f64;
    let unsplit = bucket.params.iter().filter(|param| param.spec.partial_grad(true));
    formulas::Bucket {
        kind: match bucket.module {
            Module::Embed => Kind::Embedding,
            Module::Block => Kind::Block,
            Module::Head => Kind::Head,
            Module::TiedCopy => Kind::Copy,
        },
        weights: bytes(bucket.range.len(), live),
        grads: bytes(bucket.range.len(), DType::F32),
        unsplit: bytes(unsplit.map(Param::numel).sum(), DType::F32),
        low_rank: low_rank(bucket, m),
    }
}

/// 4·r·(n + m) bytes for each matrix [n, m] of a block that is compressed; the rest whole, as it lies
/// in memory.
fn low_rank(bucket: &Bucket, m: &Manifest) -> Option<f64> {
    let settings = m.topology.compression.filter(|_| bucket.module == Module::Block)?;
    let (mut factors, mut rest, mut plain_from) = (0, 0, None);
    for param in &bucket.params {
        let (n, m) = (param.rows, param.cols);
        let r = settings.rank.min(n).min(m);
        let from = plain_from.take();
        if (r * (n + m)) as f64 * settings.min_rate < (n * m) as f64 {
            factors += r * (n + m);
        } else {
            // Neighbours with what lies between them.
            let start = from.unwrap_or(param.offset);
            rest += param.range().end - start;
            plain_from = Some(param.range().end);
        }
    }
    Some((4 * (factors + rest)) as f64)
}
