//! Norm of a step's update, ‖Δθ‖₂ over all master weights, for any optimizer. Marin (issue 1368)
//! saw it rise before the gradient's norm and the loss.
//!
//! Computed only in steps that ask for it, with ops of every device. Master weights are copied to a
//! window in batches, updated, and subtracted there. The differences are squared and summed: 24
//! bytes per parameter, besides the update's 30. The window shares memory with activations, so it
//! costs none of its own. Updating in pieces gives the same bits.

use super::masters::{self, PIECE};
use super::states::{MASTER, ParamStates, rows_without_padding};
use base::DType;
use device::{Arena, Backend, Home, Tensor, op};
use std::cell::Cell;

/// Alignment of pieces in the window, in elements: 256 bytes.
const LINE: usize = 64;

/// Accumulator of the norm of a rank's update: `begin`, `around` for every change, `finish`.
pub struct UpdateNorm {
    /// f32 [1, n]: old master weights, then their differences.
    window: Tensor,
    /// f32 [1, m]: Σ Δ² of each piece.
    sums: Tensor,
    /// f32 [1, 1]: the constant 1, for the subtraction.
    one: Tensor,
    /// f32 [1, 1]: Σ `sums`, if those are on the host.
    total: Tensor,
    /// Index of the next piece's sum.
    next: Cell<usize>,
    tp_rank: usize,
    vocab: usize,
}

/// Elements of a window for these states.
pub fn window(states: &[ParamStates]) -> usize {
    let all = states.iter().map(|kept| kept.part.len().next_multiple_of(LINE)).sum::<usize>();
    all.min(PIECE)
}

/// Whether another rank counts a parameter's sum of squares.
pub fn is_counted_elsewhere(kept: &ParamStates, tp_rank: usize) -> bool {
    let repeated = kept.param.spec.split == model::TpSplit::Whole && tp_rank > 0;
    repeated || kept.param.tied_copy
}

impl UpdateNorm {
    /// Plans the norm for a tensor-parallel rank of a model with `vocab` tokens. `small` has the
    /// home of `window`.
    pub fn plan(
        states: &[ParamStates],
        [tp_rank, vocab]: [usize; 2],
        window: Tensor,
        small: &Arena,
    ) -> UpdateNorm {
        // A bucket offloaded in pieces may split a parameter one more time.
        let size = window.numel().max(1);
        let pieces = states.iter().map(|kept| kept.part.len().div_ceil(size) + 1).sum();
        let row = |len| small.matrix(1, len, DType::F32);
        let (sums, one, total) = (row(pieces), row(1), row(1));
        UpdateNorm { window, sums, one, total, next: Cell::new(0), tp_rank, vocab }
    }

    /// Resets the sums before the update of a step.
    pub fn begin(&self, be: &dyn Backend) {
        let be = self.backend(be);
        be.run(op::Zero { x: self.sums });
        be.upload_async(bytemuck::bytes_of(&1.0f32), self.one);
        self.next.set(0);
    }

    /// Calls `work` on pieces of `params`, which it updates on `be`, and adds the squares of the
    /// changes.
    pub fn around(
        &self,
        be: &dyn Backend,
        params: &[&ParamStates],
        work: &mut dyn FnMut(&[&ParamStates]),
    ) {
        let elsewhere = |kept: &&ParamStates| is_counted_elsewhere(kept, self.tp_rank);
        let (elsewhere, counted): (Vec<_>, Vec<_>) = params.iter().copied().partition(elsewhere);
        if !elsewhere.is_empty() {
            work(&elsewhere);
        }
        let (mut held, mut end) = (Vec::new(), 0);
        let size = self.window.numel();
        for piece in counted.into_iter().flat_map(|kept| masters::pieces(kept, size)) {
            let len = self.without_padding(&piece);
            if end + len > size {
                self.change(be, &std::mem::take(&mut held), work);
                end = 0;
            }
            held.push((piece, self.window.span(end, len)));
            end += len.next_multiple_of(LINE);
        }
        self.change(be, &held, work);
    }

    /// Elements of a piece without the padding of the vocabulary at its end.
    fn without_padding(&self, piece: &ParamStates) -> usize {
        let rows = rows_without_padding(&piece.param, self.tp_rank, self.vocab);
        piece.part.end.min(rows * piece.param.cols).saturating_sub(piece.part.start)
    }

    /// Updates pieces, each with its place in the window.
    fn change(
        &self,
        be: &dyn Backend,
        held: &[(ParamStates, Tensor)],
        work: &mut dyn FnMut(&[&ParamStates]),
    ) {
        if held.is_empty() {
            return;
        }
        let master = |piece: &ParamStates, place: Tensor| piece.get(MASTER).span(0, place.numel());
        let counted = || held.iter().filter(|(_, place)| place.numel() > 0);
        counted().for_each(|(piece, place)| {
            be.run(op::Copy { x: master(piece, *place), y: place.set() })
        });
        work(&held.iter().map(|(piece, _)| piece).collect::<Vec<_>>());
        for (piece, place) in counted() {
            be.run(op::Axpy {
                a: -1.0,
                factor: self.one,
                x: master(piece, *place),
                y: place.add(),
            });
        }
        let places: Vec<Tensor> = counted().map(|(_, place)| *place).collect();
        if places.is_empty() {
            return;
        }
        let first = self.next.replace(self.next.get() + places.len());
        be.run(op::SquareSums { xs: &places, y: self.sums.span(first, places.len()).set() });
    }

    /// Writes this rank's Σ Δ² to `to`, f32 [1, 1] on the device.
    pub fn finish(&self, be: &dyn Backend, to: Tensor) {
        match self.sums.home() {
            Home::Device => be.run(op::Sum { x: self.sums, y: to.set() }),
            Home::Host => {
                be.host().run(op::Sum { x: self.sums, y: self.total.set() });
                be.finish_transfer(be.transfer(self.total, to));
            }
        }
    }

    fn backend<'a>(&self, be: &'a dyn Backend) -> &'a dyn Backend {
        match self.sums.home() {
            Home::Device => be,
            Home::Host => be.host(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arenas::Arenas;
    use crate::params::{self, OnHost};
    use crate::{groups, rule};
    use device::cpu::Cpu;
    use model::{Layout, ModelShard};

    /// Sum of squares on a rank after every master weight moved by its index in the parameter.
    fn moved(tp_rank: usize, size: Option<usize>) -> (f64, f64, usize) {
        let text = "
model: {layers: 2, hidden: 20, heads: 2, vocab: 61, seq_len: 8}
data: {train: none}
batch: {micro: 1, global: 2}
lr: {peak: 1e-3}
train: {samples: 800}
";
        let (m, cpu) = (manifest::of_test(text, &["precision=bf16"]), Cpu::new(Some(1)));
        let layout = Layout::new(&m.model, ModelShard { tp: 2, ..ModelShard::whole(&m.model) });
        let (rule, model) = (rule::of(&m), groups::model_dtype(m.precision));
        let lay = |at: &Arenas| {
            let buckets = params::buckets(0, 0, &layout, model, OnHost::of(&m), at);
            let states = params::states(&layout, &buckets, &*rule, false, at);
            let len = size.unwrap_or(window(&states));
            let window = at.saved.matrix(1, len, DType::F32);
            let of = [tp_rank, m.model.vocab];
            let norm = UpdateNorm::plan(&states, of, window, &at.inputs);
            (states, norm, at.inputs.matrix(1, 1, DType::F32))
        };
        let measured = Arenas::measuring();
        lay(&measured);
        let (states, norm, total) = lay(&measured.reserve(&cpu).unwrap());
        let by = |i: usize| ((i % 97) as f32 - 40.0) * 1e-4;
        let (mut expected, mut calls, mut seen) = (0.0, 0, 0);
        norm.begin(&cpu);
        norm.around(&cpu, &states.iter().collect::<Vec<_>>(), &mut |pieces| {
            calls += 1;
            for piece in pieces {
                seen += piece.part.len();
                let step: Vec<f32> = piece.part.clone().map(by).collect();
                let param = &piece.param;
                let pads = |i: usize| {
                    param.spec.vocab && tp_rank * param.rows + i / param.cols >= m.model.vocab
                };
                if !is_counted_elsewhere(piece, tp_rank) {
                    let real = piece.part.clone().zip(&step).filter(|(i, _)| !pads(*i));
                    expected += real.map(|(_, x)| f64::from(*x).powi(2)).sum::<f64>();
                }
                cpu.upload(bytemuck::cast_slice(&step), piece.get(MASTER)); // from 0
            }
        });
        assert_eq!(seen, states.iter().map(|kept| kept.part.len()).sum::<usize>());
        norm.finish(&cpu, total);
        let mut sum = 0.0f32;
        cpu.download(total, bytemuck::bytes_of_mut(&mut sum));
        (sum.into(), expected, calls)
    }

    /// A window of any size counts every change once. Weights repeated on tensor-parallel ranks
    /// count on the first only, and padding of the vocabulary counts on none.
    #[test]
    fn every_change_is_counted_once() {
        for tp_rank in [0, 1] {
            let mut before = 0;
            for size in [None, Some(1024), Some(64)] {
                let (sum, expected, calls) = moved(tp_rank, size);
                assert!((sum / expected - 1.0).abs() < 1e-6, "{size:?}: {sum}, not {expected}");
                assert!(calls > before, "{size:?}: {calls} windows");
                before = calls;
            }
        }
        assert!(moved(0, None).1 > moved(1, None).1);
    }
}
