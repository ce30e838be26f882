//! Updates on the host, for states that lie there (ZeRO-Offload: Ren et al. 2021, but that nothing
//! differs from an update on the device, to the last bit). A piece of the gradients comes to the
//! host, its processor runs the rule, a piece of the model weights goes back: while one piece is
//! updated, gradients of the next ones and weights of the ones before are on their way.
//!
//! Norm, clipping, loss scale and the rule's own scalars stay on the device, which has them anyway.

use super::params::BucketState;
use super::rule::{OptimizerRule, Step};
use super::states::{ParamStates, StateSpec};
use crate::base::DType;
use crate::device::{Arena, Backend, Home, Tensor};
use std::collections::VecDeque;
use std::ops::Range;

/// Most elements of a piece: 16 MiB of gradients, which a link needs some 300 µs for. A multiple of
/// 64, as shards are, so that no block of a state is cut.
pub const PIECE: usize = 4 << 20;

/// Pieces on the host at once: one that comes, one that is updated, one that goes.
const BUFFERS: usize = 3;

/// Where states lie on the host, piece by piece.
pub struct Offload {
    /// Copies of `Step`'s.
    scalars: Tensor,
    updates: Tensor,
    pieces: Vec<Piece>,
}

/// Part of a bucket that this rank updates.
struct Piece {
    /// Model weights and f32 gradients on the device; no weights, where they lie on the host.
    weights: Option<Tensor>,
    grads: Tensor,
    /// Where they lie on the host for a while, the same for every `BUFFERS`th piece; or for good.
    staged_weights: Tensor,
    staged_grads: Tensor,
    /// Parts of parameters in it, whose weights and gradients are the staged ones.
    params: Vec<ParamStates>,
    /// Whether elements between parameters are among the weights that go to the device.
    padded: bool,
}

impl Offload {
    /// Of what was laid out, in pieces of at most `size` elements, with room in `staging` for what is
    /// on its way.
    pub fn plan(
        buckets: &[BucketState],
        states: &[ParamStates],
        model: DType,
        size: usize,
        staging: &Arena,
    ) -> Offload {
        let of = |bucket: usize| -> Vec<&ParamStates> {
            states.iter().filter(|kept| kept.param.bucket == bucket).collect()
        };
        let ranges: Vec<(usize, Range<usize>)> = (0..buckets.len())
            .flat_map(|i| cuts(&buckets[i].own, &of(i), size).map(move |range| (i, range)))
            .collect();
        let longest = ranges.iter().map(|(_, range)| range.len()).max().unwrap_or(0);
        let buffer = |dtype| staging.matrix(1, longest, dtype);
        let buffers: Vec<_> = (0..BUFFERS).map(|_| [buffer(model), buffer(DType::F32)]).collect();
        let piece = |(i, (bucket, range)): (usize, (usize, Range<usize>))| {
            Piece::of(&buckets[bucket], &of(bucket), range, buffers[i % BUFFERS])
        };
        Offload {
            scalars: staging.matrix(1, 3, DType::F32),
            updates: staging.matrix(1, 1, DType::I64),
            pieces: ranges.into_iter().enumerate().map(piece).collect(),
        }
    }

    /// The rule's update. `step` is the device's, with the rule's numbers there.
    pub fn update(&self, step: &Step, rule: &dyn OptimizerRule) {
        let be = step.be;
        let small = [(step.scalars, self.scalars), (step.updates, self.updates)];
        let small = small.map(|(from, to)| be.transfer(from, to));
        small.into_iter().for_each(|transfer| be.finish_transfer(transfer));
        let mut factor = 0.0f32;
        be.host().download(self.scalars.span(0, 1), bytemuck::bytes_of_mut(&mut factor));
        if factor.is_nan() {
            return; // No staged weight would be written, so none may go back.
        }
        let (scalars, updates) = (self.scalars, self.updates);
        let step = Step { be: be.host(), scalars, updates, ..*step };
        self.each(be, true, |piece| rule.update(&step, &piece.params));
    }

    /// Rounds the master weights into the model weights.
    pub fn cast(&self, be: &dyn Backend) {
        self.each(be, false, |piece| piece.params.iter().for_each(|kept| kept.cast(be.host())));
    }

    /// Runs `pass` for one piece after the other, with its gradients there if they are asked for;
    /// afterwards the weights that it left are on their way to the device.
    fn each(&self, be: &dyn Backend, grads: bool, pass: impl Fn(&Piece)) {
        let fetch = |piece: &Piece| grads.then(|| be.transfer(piece.grads, piece.staged_grads));
        let mut coming: VecDeque<_> = self.pieces.iter().take(BUFFERS).filter_map(fetch).collect();
        let mut going = VecDeque::new();
        for (i, piece) in self.pieces.iter().enumerate() {
            if let Some(transfer) = coming.pop_front() {
                be.finish_transfer(transfer);
            }
            if going.len() == BUFFERS {
                let sent: Option<_> = going.pop_front().flatten();
                sent.into_iter().for_each(|transfer| be.finish_transfer(transfer));
            }
            if piece.padded {
                be.host().zero(piece.staged_weights);
            }
            pass(piece);
            going.push_back(piece.weights.map(|to| be.transfer(piece.staged_weights, to)));
            coming.extend(self.pieces.get(i + BUFFERS).and_then(fetch));
        }
        going.into_iter().flatten().for_each(|transfer| be.finish_transfer(transfer));
    }
}

/// Where a bucket's own elements are cut. States that are kept whole beside shards (means of rows
/// and columns) belong to whole parameters, so that a bucket with such is one piece.
fn cuts(
    own: &Range<usize>,
    kept: &[&ParamStates],
    size: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let sharded = |spec: &StateSpec| spec.extent.is_sharded() || spec.extent.serves_exchange();
    let divides = kept.iter().flat_map(|kept| kept.states()).all(|(spec, ..)| sharded(spec));
    let (end, size) = (own.end, if divides { size } else { own.len().max(1) });
    own.clone().step_by(size).map(move |start| start..end.min(start + size))
}

impl Piece {
    fn of(
        bucket: &BucketState,
        kept: &[&ParamStates],
        range: Range<usize>,
        [weights, grads]: [Tensor; 2],
    ) -> Piece {
        let (first, len) = (range.start - bucket.own.start, range.len());
        let (own, staged_grads) = (bucket.own_weights.span(first, len), grads.span(0, len));
        let on_device = own.home() == Home::Device;
        let staged_weights = if on_device { weights.span(0, len) } else { own };
        let mut params = Vec::new();
        for kept in kept {
            let offset = kept.param.offset;
            let start = (offset + kept.part.start).clamp(range.start, range.end);
            let end = (offset + kept.part.end).clamp(start, range.end);
            let whole = len == bucket.own.len();
            let part = match start < end {
                true => start - offset..end - offset,
                false if whole => kept.part.clone(),
                false => continue,
            };
            let cut = |flat: Tensor| flat.span(start - range.start, part.len());
            params.push(kept.piece(part.clone(), [cut(staged_weights), cut(staged_grads)]));
        }
        let filled: usize = params.iter().map(|kept| kept.part.len()).sum();
        Piece {
            weights: on_device.then_some(own),
            grads: bucket.own_grads.span(first, len),
            staged_weights,
            staged_grads,
            params,
            padded: on_device && filled < len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::Cpu;
    use crate::engine::arenas::Arenas;
    use crate::engine::groups::Groups;
    use crate::engine::params;
    use crate::engine::rule;
    use crate::manifest::{self, Manifest};
    use crate::model::{Layout, ModelShard};

    fn manifest() -> Manifest {
        let text = "
model: {layers: 2, hidden: 20, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 2}
lr: {peak: 1e-3}
train: {samples: 800}
topology: {data: 2, zero: 1, offload: optimizer}
";
        manifest::of_test(text, &["precision=bf16"])
    }

    /// The bits of every state after two updates of one rank, and of the model weights, gaps between
    /// parameters among them.
    fn trained(size: usize, dp_rank: usize) -> (Vec<Vec<u8>>, usize) {
        let (m, cpu) = (manifest(), Cpu::new(Some(1)));
        let layout = Layout::new(&m.model, ModelShard { dp: 2, ..ModelShard::whole(&m.model) });
        let rule = rule::of(&m);
        let lay = |at: &Arenas| {
            let buckets = params::buckets(1, dp_rank, &layout, DType::BF16, false, at);
            let states = params::states(&layout, &buckets, &*rule, true, at);
            let offload = Offload::plan(&buckets, &states, DType::BF16, size, &at.staging);
            let scalars = at.inputs.matrix(1, 3, DType::F32);
            (buckets, states, offload, scalars, at.inputs.matrix(1, 1, DType::I64))
        };
        let measured = Arenas::measuring();
        lay(&measured);
        let (buckets, states, offload, scalars, updates) = lay(&measured.reserve(&cpu).unwrap());
        for bucket in &buckets {
            let grads: Vec<f32> = bucket.own.clone().map(|i| (i as f32 * 0.37).sin()).collect();
            cpu.upload(bytemuck::cast_slice(&grads), bucket.own_grads);
        }
        for (update, factor) in [(1i64, 0.5f32), (2, 0.25), (2, f32::NAN)] {
            cpu.upload(bytemuck::bytes_of(&update), updates);
            cpu.upload(bytemuck::bytes_of(&factor), scalars.span(0, 1));
            let (groups, scratch) = (&Groups::solo(), scalars.span(0, 0));
            let (be, sharded) = (&cpu, false);
            let step = Step { be, groups, sharded, lr: 1e-2, scalars, updates, scratch };
            rule.begin(&step);
            offload.update(&step, &*rule);
        }
        let read = |at: Tensor| {
            let mut bytes = vec![0; at.bytes()];
            cpu.download(at, &mut bytes);
            bytes
        };
        let kept = states.iter().flat_map(|kept| kept.states().map(|(.., at)| read(at)));
        let weights = buckets.iter().map(|bucket| read(bucket.own_weights));
        (kept.chain(weights).collect(), offload.pieces.len())
    }

    /// However a shard is cut, within parameters and across them, every element is updated once.
    #[test]
    fn pieces_of_any_size_give_the_same_bits() {
        for dp_rank in [0, 1] {
            let (whole, few) = trained(PIECE, dp_rank);
            assert!(whole.iter().any(|bytes| bytes.iter().any(|byte| *byte != 0)));
            for size in [64, 192, 1024] {
                let (pieces, many) = trained(size, dp_rank);
                assert!(pieces == whole && many > few, "{size}: {many} pieces");
            }
        }
    }
}
