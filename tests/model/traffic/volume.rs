//! Expected bytes that a rank sends in a step: formulas of the literature applied to its memory
//! layout.

use super::formulas::{self, Kind, Step, Sums, Volume};
use gptrain::base::{DType, div_exact};
use gptrain::device::Dry;
use gptrain::engine::{Engine, Groups, model_dtype};
use gptrain::manifest::{
    Manifest, OffloadWhat, Optimizer, Precision, Recompute, Schedule, StateReplicas,
};
use gptrain::model::{Bucket, Layout, Module, Param, TpSplit};
use gptrain::plan::schedule::PipelineRank;

/// Bytes that this rank sends in a step of `global` samples, by group.
pub fn volume(groups: &Groups, m: &Manifest, global: usize) -> Volume {
    let dtype = model_dtype(m.precision);
    let (_, layout) = Engine::plan(&Dry::default(), groups, m, true);
    let (rank, ranks) = (groups.pipeline.rank(), groups.pipeline.size());
    let pp = PipelineRank { rank, ranks, chunks: m.topology.chunks };
    let stages: Vec<usize> = (0..pp.chunks).map(|chunk| pp.stage(chunk)).collect();
    let tokens = m.batch.micro * m.model.seq_len;
    let bytes = |elements: usize, dtype: DType| (elements * dtype.size()) as f64;
    let both = groups.embedding.size() > 1;
    let shared = layout.params().find(|param| both && param.spec.tied);
    formulas::sent(&Step {
        tensor: groups.tensor.size(),
        pipeline: pp.ranks,
        data: groups.grad_sum.size(),
        shard: groups.shard().size(),
        equal_states: m.topology.states == StateReplicas::Shard,
        sequence: m.topology.sequence_parallel,
        zero: m.topology.zero,
        zero_every: m.topology.zero_every,
        whole_chunk: (m.topology.schedule == Schedule::BreadthFirst)
            .then(|| {
                layout
                    .shard
                    .chunks
                    .iter()
                    .map(|chunk| chunk.layers.len())
                    .max()
            })
            .flatten(),
        micros: div_exact(global, m.batch.micro * groups.replicas()),
        tokens,
        stream: bytes(tokens * m.model.hidden, dtype),
        divides: (tokens * m.model.hidden).is_multiple_of(groups.tensor.size()),
        again: match m.topology.recompute {
            Recompute::None => [0, 0],
            Recompute::Selective => [2, 0],
            // Backward does not need the output of the feed-forward sublayer.
            Recompute::Full => [2, 1],
        },
        maxima: [tokens, m.model.hidden].map(|lines| match m.precision {
            Precision::Fp8 => bytes(groups.tensor.size() * lines, DType::F32),
            _ => 0.0,
        }),
        keeps_codes: keeps_codes(groups, m),
        before: stages.iter().filter(|stage| **stage > 0).count(),
        after: stages
            .iter()
            .filter(|stage| *stage + 1 < pp.stages())
            .count(),
        buckets: layout
            .buckets
            .iter()
            .map(|bucket| entry(bucket, dtype, m))
            .collect(),
        tied: shared.map_or(0.0, |param| bytes(param.numel(), DType::F32)),
        sums: sums(&layout, both, m),
    })
}

/// Whether fp8 codes of weights are kept through a step: if a step has several micro-batches and
/// every rank holds its layers' weights all the time.
fn keeps_codes(groups: &Groups, m: &Manifest) -> bool {
    let largest = m.batch.ramp().sizes().max().expect("a batch");
    let several = largest > m.batch.micro * groups.replicas();
    let whole = (m.topology.zero < 3 || groups.grad_sum.size() == 1)
        && m.topology.offload.what != OffloadWhat::Full;
    m.precision == Precision::Fp8 && several && whole
}

/// Two sums of Adafactor (Shazeer & Stern 2018, and `engine::rule`): Σ g² of each row and column of
/// a matrix, or of each element of a vector, then ΣU² of each matrix. With `scale_parameter` also Σ
/// θ². Fused q, k and v have separate sums by column.
fn sums(layout: &Layout, both: bool, m: &Manifest) -> Sums {
    let Optimizer::Adafactor(settings) = m.optimizer else { return Sums::default() };
    let whole = if settings.scale_parameter { 2 } else { 1 };
    let mut sums = Sums::default();
    for param in layout.params() {
        let (spec, fused) = (&param.spec, param.spec.fused(&m.model).count());
        let (by_row, by_col) = match spec.rows {
            1 => (0, param.cols),
            _ => (param.rows, fused * param.cols),
        };
        let scalars = whole * fused;
        let split = match spec.split {
            TpSplit::Whole => 0,
            TpSplit::Rows => by_col + scalars,
            TpSplit::Cols => by_row + scalars,
        };
        let all = by_row + by_col + scalars;
        let f32s = |numbers: usize| (4 * numbers) as f64;
        sums.all += f32s(all);
        sums.split += f32s(split);
        sums.tied += if both && spec.tied { f32s(all) } else { 0.0 };
    }
    sums
}

fn entry(bucket: &Bucket, live: DType, m: &Manifest) -> formulas::Bucket {
    let bytes = |elements: usize, dtype: DType| (elements * dtype.size()) as f64;
    let unsplit = bucket
        .params
        .iter()
        .filter(|param| param.spec.partial_grad(true));
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

/// Bytes of a bucket under compression: 4·r·(n + m) for each compressed matrix [n, m] of a block;
/// other gradients whole, with padding.
fn low_rank(bucket: &Bucket, m: &Manifest) -> Option<f64> {
    let settings = m
        .topology
        .compression
        .filter(|_| bucket.module == Module::Block)?;
    let (mut factors, mut rest, mut plain_from) = (0, 0, None);
    for param in &bucket.params {
        let (n, m) = (param.rows, param.cols);
        let r = settings.rank.min(n).min(m);
        let from = plain_from.take();
        if (r * (n + m)) as f64 * settings.min_rate < (n * m) as f64 {
            factors += r * (n + m);
        } else {
            // Neighbouring parameters, including the padding between them.
            let start = from.unwrap_or(param.offset);
            rest += param.range().end - start;
            plain_from = Some(param.range().end);
        }
    }
    Some((4 * (factors + rest)) as f64)
}
