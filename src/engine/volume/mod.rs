//! What a rank sends in a step, foretold from what lies in its memory.

#[cfg(test)]
mod tests;

use super::groups::{part, seat};
use super::{Groups, context};
use crate::base::{DType, div_exact};
use crate::device::Backend;
use crate::manifest::{Manifest, Recompute};
use crate::model::{Bucket, Layout, Place, Slot, Split, Weight};
use crate::plan::volume::{self, Kind, Step, Volume};

/// Bytes this rank sends in a step of `global` samples, by group.
pub fn volume(be: &dyn Backend, groups: &Groups, m: &Manifest, global: usize) -> Volume {
    let cx = context(be, groups, m, true);
    let layout = Layout::new(&m.model, part(groups, m));
    let seat = seat(groups, m);
    let stages: Vec<usize> = (0..seat.chunks).map(|chunk| seat.stage(chunk)).collect();
    let tokens = m.batch.micro * m.model.seq_len;
    let bytes = |elements: usize, dtype: DType| (elements * dtype.size()) as f64;
    let both = m.model.tied_head && groups.ends.size() > 1;
    let shared = layout.slots().find(|slot| both && slot.spec.weight == Weight::TokenEmbed);
    volume::sent(&Step {
        tensor: groups.tensor.size(),
        pipeline: seat.ranks,
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
        after: stages.iter().filter(|stage| *stage + 1 < seat.stages()).count(),
        buckets: layout.buckets.iter().map(|bucket| entry(bucket, cx.dtype)).collect(),
        tied: shared.map_or(0.0, |slot| bytes(slot.numel(), DType::F32)),
    })
}

fn entry(bucket: &Bucket, live: DType) -> volume::Bucket {
    let bytes = |elements: usize, dtype: DType| (elements * dtype.size()) as f64;
    let unsplit = bucket.slots.iter().filter(|slot| slot.spec.split == Split::Whole);
    volume::Bucket {
        kind: match bucket.place {
            Place::Embed => Kind::Embedding,
            Place::Block => Kind::Block,
            Place::Head => Kind::Head,
            Place::TiedCopy => Kind::Copy,
        },
        weights: bytes(bucket.range.len(), live),
        grads: bytes(bucket.range.len(), DType::F32),
        unsplit: bytes(unsplit.map(Slot::numel).sum(), DType::F32),
    }
}
