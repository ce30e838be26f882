//! Optimizer updates on the host, for states stored there (ZeRO-Offload: Ren et al. 2021). Results
//! are bit-identical to updates on the device. For each piece, gradients are copied to the host,
//! the host runs the rule, and model weights are copied back. The copies of other pieces overlap
//! with the update of one.
//!
//! Norm, clipping, loss scale and the rule's own scalars are computed on the device.

use super::plan::BucketState;
use super::ring::Windows;
use crate::arenas::Arenas;
use crate::masters::MasterWindows;
use crate::rule::{OptimizerRule, Step};
use crate::states::ParamStates;
use base::DType;
use device::{Arena, Backend, MemoryKind, Tensor, Transfer, op};
use std::collections::VecDeque;
use std::ops::Range;

/// Staging buffers on the host: one being filled, one being updated, one being stored.
const BUFFERS: usize = 3;

/// Host states, in pieces.
pub struct Offload {
    /// Copies of `Step::scalars` and `Step::updates`.
    scalars: Tensor,
    updates: Tensor,
    pieces: Vec<Piece>,
    /// Windows of a rule that updates on the device; `pieces` is then empty.
    masters: Option<MasterWindows>,
}

/// Part of a bucket that this rank updates.
struct Piece {
    /// Model weights and f32 gradients on the device.
    weights: Option<Tensor>,
    grads: Option<Tensor>,
    /// Host copies, shared by every `BUFFERS`th piece.
    staged_weights: Tensor,
    staged_grads: Tensor,
    /// Parts of parameters in the piece; their weights and gradients are the staged ones.
    params: Vec<ParamStates>,
    /// Whether the weights that are copied to the device include padding between parameters.
    padded: bool,
}

impl Offload {
    /// Plans pieces of at most `size` elements, with their transfer buffers in `staging`.
    pub fn plan(
        buckets: &[BucketState],
        states: &[ParamStates],
        model: DType,
        size: usize,
        staging: &Arena,
    ) -> Offload {
        let params_of = |bucket: usize| -> Vec<&ParamStates> {
            states.iter().filter(|p| p.param.bucket == bucket).collect()
        };
        let mut ranges = Vec::new();
        for (i, bucket) in buckets.iter().enumerate() {
            ranges.extend(piece_ranges(&bucket.own, &params_of(i), size).map(|range| (i, range)));
        }
        let longest = ranges
            .iter()
            .map(|(_, range)| range.len())
            .max()
            .unwrap_or(0);
        let [all_weights, all_grads] =
            [model, DType::F32].map(|dtype| Windows::plan(BUFFERS, longest, dtype, staging));
        let mut pieces = Vec::new();
        for (i, (bucket, range)) in ranges.into_iter().enumerate() {
            let [weights, grads] =
                [&all_weights, &all_grads].map(|windows| windows.view(i, range.len()));
            pieces.push(Piece::new(&buckets[bucket], &params_of(bucket), range, weights, grads));
        }
        Offload {
            scalars: staging.matrix(1, 3, DType::F32),
            updates: staging.matrix(1, 1, DType::I64),
            pieces,
            masters: None,
        }
    }

    /// Plan for a rule that needs global sums (`OptimizerRule::needs_global_sums`).
    pub fn on_device(masters: MasterWindows, arenas: &Arenas) -> Offload {
        Offload {
            scalars: arenas.staging.matrix(1, 3, DType::F32),
            updates: arenas.staging.matrix(1, 1, DType::I64),
            pieces: Vec::new(),
            masters: Some(masters),
        }
    }

    /// Applies the rule to `params`. `step` is the device's, with the rule's numbers on the device.
    pub fn update(&self, step: &Step, rule: &dyn OptimizerRule, params: &[ParamStates]) {
        let be = step.be;
        let copies = [(step.scalars, self.scalars), (step.updates, self.updates)];
        for transfer in copies.map(|(from, to)| be.transfer(from, to)) {
            be.finish_transfer(transfer);
        }
        if self.skips(be) {
            return; // The rule wrote no staged weight, so none may be copied back.
        }
        if let Some(masters) = &self.masters {
            return rule.update(&Step { masters: Some(masters), ..*step }, params);
        }
        let scalars = self.scalars;
        let updates = self.updates;
        let step = Step { be: be.host(), scalars, updates, ..*step };
        self.for_each_piece(be, true, |piece| rule.update(&step, &piece.params));
    }

    /// Whether the factor copied to the host says that the step is skipped.
    fn skips(&self, be: &dyn Backend) -> bool {
        let mut factor = 0.0f32;
        let bytes = bytemuck::bytes_of_mut(&mut factor);
        be.host().download(self.scalars.span(0, 1), bytes);
        factor.is_nan()
    }

    /// Rounds the master weights of `params` into the model weights.
    pub fn cast(&self, be: &dyn Backend, params: &[ParamStates]) {
        if let Some(masters) = &self.masters {
            return masters.for_each_piece(be, params, true, &mut |_, piece| piece.cast(be));
        }
        self.for_each_piece(be, false, |piece| piece.params.iter().for_each(|p| p.cast(be.host())));
    }

    /// Runs `work` on each piece in order, with its gradients on the host if `grads`. On return the
    /// copies of the weights to the device may still be in flight.
    fn for_each_piece(&self, be: &dyn Backend, grads: bool, work: impl Fn(&Piece)) {
        let fetch = |piece: &Piece| {
            let grads = piece.grads.filter(|_| grads);
            grads.map(|from| be.transfer(from, piece.staged_grads))
        };
        let finish = |transfer: Option<Transfer>| {
            if let Some(transfer) = transfer {
                be.finish_transfer(transfer);
            }
        };
        let mut fetches: VecDeque<_> = self.pieces.iter().take(BUFFERS).map(fetch).collect();
        let mut stores = VecDeque::new();
        for (i, piece) in self.pieces.iter().enumerate() {
            finish(fetches.pop_front().flatten());
            if stores.len() == BUFFERS {
                finish(stores.pop_front().flatten());
            }
            piece.pad(be.host());
            work(piece);
            let store = piece
                .weights
                .map(|to| be.transfer(piece.staged_weights, to));
            stores.push_back(store);
            fetches.extend(self.pieces.get(i + BUFFERS).map(fetch));
        }
        stores.into_iter().for_each(finish);
    }
}

/// Splits a bucket's own elements into pieces. A state that is not sharded (means of rows and
/// columns) belongs to whole parameters, so a bucket with such a state is one piece.
fn piece_ranges(
    own: &Range<usize>,
    params: &[&ParamStates],
    size: usize,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let is_divisible = params
        .iter()
        .flat_map(|p| p.iter())
        .all(|(spec, ..)| spec.extent.is_sharded() || spec.extent.serves_exchange());
    let end = own.end;
    let size = if is_divisible { size } else { own.len().max(1) };
    own.clone()
        .step_by(size)
        .map(move |start| start..end.min(start + size))
}

impl Piece {
    fn new(
        bucket: &BucketState,
        states: &[&ParamStates],
        range: Range<usize>,
        weights_buffer: Tensor,
        grads_buffer: Tensor,
    ) -> Piece {
        let first = range.start - bucket.own.start;
        let len = range.len();
        let weights = bucket.weights.own.span(first, len);
        let grads = bucket.grads.own.span(first, len);
        let copies_weights = weights.memory() == MemoryKind::Device;
        let copies_grads = grads.memory() == MemoryKind::Device;
        let staged_weights = if copies_weights { weights_buffer } else { weights };
        let staged_grads = if copies_grads { grads_buffer } else { grads };
        let mut params = Vec::new();
        for p in states {
            let offset = p.param.offset;
            let start = (offset + p.part.start).clamp(range.start, range.end);
            let end = (offset + p.part.end).clamp(start, range.end);
            let part = if start < end {
                start - offset..end - offset
            } else if len == bucket.own.len() {
                p.part.clone()
            } else {
                continue;
            };
            let cut = |flat: Tensor| flat.span(start - range.start, part.len());
            params.push(p.piece(part.clone(), cut(staged_weights), cut(staged_grads)));
        }
        let filled: usize = params.iter().map(|p| p.part.len()).sum();
        Piece {
            weights: copies_weights.then_some(weights),
            grads: copies_grads.then_some(grads),
            staged_weights,
            staged_grads,
            params,
            padded: copies_weights && filled < len,
        }
    }

    /// Zeroes the padding between parameters.
    fn pad(&self, host: &dyn Backend) {
        if self.padded {
            host.run(op::Zero { x: self.staged_weights.set() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Groups;
    use crate::masters::PIECE;
    use crate::params::{self, OffloadPlan, WindowCounts};
    use crate::rule::{Place, optimizer_rule};
    use device::cpu::Cpu;
    use manifest::{self, Manifest};
    use model::{Layout, ModelShard};
    use plan::levels::Levels;

    fn manifest() -> Manifest {
        let text = "
model: {layers: 2, hidden: 20, heads: 2, vocab: 60, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 2}
lr: {peak: 1e-3}
train: {samples: 800}
topology: {data: 2, zero: 1, offload: optimizer}
";
        manifest::for_test(text, &["precision=bf16"])
    }

    /// Bits of every state after two updates of one rank, and of the model weights including
    /// padding.
    fn trained(size: usize, dp_rank: usize) -> (Vec<Vec<u8>>, usize) {
        let m = manifest();
        let cpu = Cpu::new(Some(1));
        let on_host = OffloadPlan::from_manifest(&m);
        let layout = Layout::new(&m.model, ModelShard { dp: 2, ..ModelShard::whole(&m.model) });
        let rule = optimizer_rule(&m);
        let levels = Levels::one(2, dp_rank);
        let windows = WindowCounts::by_block(false);
        let lay_out = |arenas: &Arenas| {
            let buckets =
                params::plan_buckets(1, levels, &layout, DType::BF16, on_host, windows, arenas);
            let (states, _) = params::plan_states(&layout, &buckets, &*rule, true, arenas);
            let offload = Offload::plan(&buckets, &states, DType::BF16, size, &arenas.staging);
            let scalars = arenas.inputs.matrix(1, 3, DType::F32);
            (buckets, states, offload, scalars, arenas.inputs.matrix(1, 1, DType::I64))
        };
        let measured = Arenas::measuring();
        lay_out(&measured);
        let (buckets, states, offload, scalars, updates) =
            lay_out(&measured.reserve(&cpu).unwrap());
        for bucket in &buckets {
            let grads: Vec<f32> = bucket
                .own
                .clone()
                .map(|i| (i as f32 * 0.37).sin())
                .collect();
            cpu.upload(bytemuck::cast_slice(&grads), bucket.grads.own);
        }
        for (update, factor) in [(1i64, 0.5f32), (2, 0.25), (2, f32::NAN)] {
            cpu.upload(bytemuck::bytes_of(&update), updates);
            cpu.upload(bytemuck::bytes_of(&factor), scalars.span(0, 1));
            let groups = &Groups::solo();
            let scratch = scalars.span(0, 0);
            let at = Place { groups, layout: &layout, sharded: false };
            let lr = 1e-2;
            let masters = None;
            let step = Step { be: &cpu, at, lr, scalars, updates, scratch, masters };
            rule.begin(&step);
            offload.update(&step, &*rule, &states);
        }
        let read = |at: Tensor| {
            let mut bytes = vec![0; at.bytes()];
            cpu.download(at, &mut bytes);
            bytes
        };
        let states = states
            .iter()
            .flat_map(|p| p.iter().map(|(.., at)| read(at)));
        let weights = buckets.iter().map(|bucket| read(bucket.weights.own));
        (states.chain(weights).collect(), offload.pieces.len())
    }

    /// Any piece size, within and across parameters, updates every element once.
    #[test]
    fn pieces_of_any_size_give_the_same_bits() {
        for dp_rank in [0, 1] {
            let (whole, few) = trained(PIECE, dp_rank);
            assert!(
                whole
                    .iter()
                    .any(|bytes| bytes.iter().any(|byte| *byte != 0))
            );
            for size in [64, 192, 1024] {
                let (pieces, many) = trained(size, dp_rank);
                assert!(pieces == whole && many > few, "{size}: {many} pieces");
            }
        }
    }
}
