//! What a rank keeps of the whole model's weights, as rectangles of them, and the doors to it.
//!
//! Tensor parallelism cuts a weight by rows or columns; ZeRO cuts a bucket of such shares into flat
//! ranges. What a rank has of a weight is then part of a row, whole rows, and part of a row: up to
//! three rectangles, each one run of memory. Rows that only pad the vocabulary are in none.

use super::{Engine, Moment};
use crate::device::Tensor;
use crate::manifest::Model;
use crate::model::{Layout, Part, Slot, Split, Weight};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// A rectangle of a weight, in one run of this rank's memory.
#[derive(Clone, Debug)]
pub struct Piece {
    pub slot: Slot,
    /// The weight's number in the whole model.
    pub number: usize,
    /// Of the whole weight: first row and column, rows and columns.
    pub at: [usize; 2],
    pub size: [usize; 2],
    pub replica: Replica,
    /// In elements of the layout.
    range: Range<usize>,
}

/// Which of the equal copies of a weight: ranks that hold parts of the same one agree. Each number
/// is 0 where there is one copy, or none was made in that direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Replica {
    /// The last stage's copy of a tied embedding.
    pub tied: bool,
    pub data: usize,
    pub tensor: usize,
}

impl Replica {
    /// Whether it is the one that goes into a checkpoint.
    pub fn is_first(&self) -> bool {
        *self == Replica::default()
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TP{} DP{}", self.tensor, self.data)?;
        if self.tied { write!(f, ", tied") } else { Ok(()) }
    }
}

impl Piece {
    pub fn numel(&self) -> usize {
        self.range.len()
    }

    /// Some of its rows, as a range of the layout.
    fn rows(&self, rows: Range<usize>) -> Range<usize> {
        let start = self.range.start + rows.start * self.size[1];
        let end = self.range.start + rows.end * self.size[1];
        assert!(start <= end && end <= self.range.end, "{}: rows {rows:?}", self.slot.name);
        start..end
    }
}

/// The whole weight's shape, as checkpoints have it: norms and biases are vectors, and rows that
/// only pad the vocabulary are left out. They depend on the topology, and no loss depends on them.
pub fn saved_shape(slot: &Slot, vocab: usize) -> Vec<usize> {
    match slot.spec.weight {
        Weight::TokenEmbed | Weight::HeadW => vec![vocab, slot.spec.cols],
        _ if slot.spec.rows == 1 => vec![slot.spec.cols],
        _ => vec![slot.spec.rows, slot.spec.cols],
    }
}

/// A range of every bucket, cut into pieces. `data` numbers the copies it belongs to.
pub(super) fn cut(
    layout: &Layout,
    model: &Model,
    held: impl Fn(usize) -> (Range<usize>, usize),
) -> Vec<Piece> {
    let whole = Layout::new(model, Part::whole(model));
    let numbers: HashMap<&str, usize> =
        whole.slots().enumerate().map(|(i, slot)| (slot.name.as_str(), i)).collect();
    let mut pieces = Vec::new();
    for (number, bucket) in layout.buckets.iter().enumerate() {
        let (range, data) = held(number);
        for (slot, range) in bucket.within(range) {
            let tensor = if slot.spec.split == Split::Whole { layout.part.tp_rank } else { 0 };
            let replica = Replica { tied: slot.copy, data, tensor };
            let corner = layout.corner(slot);
            for range in runs(slot, range, slot.offset + real_rows(layout, slot, model) * slot.cols)
            {
                let first = range.start - slot.offset;
                let width = range.len().min(slot.cols);
                pieces.push(Piece {
                    slot: slot.clone(),
                    number: numbers[slot.name.as_str()],
                    at: [corner[0] + first / slot.cols, corner[1] + first % slot.cols],
                    size: [range.len() / width, width],
                    replica,
                    range,
                });
            }
        }
    }
    pieces
}

/// Rows of a rank's share that do not only pad the vocabulary.
fn real_rows(layout: &Layout, slot: &Slot, model: &Model) -> usize {
    match slot.spec.weight {
        Weight::TokenEmbed | Weight::HeadW => {
            model.vocab.saturating_sub(layout.corner(slot)[0]).min(slot.rows)
        }
        _ => slot.rows,
    }
}

/// A range of a slot, up to `end`, as the end of a row, whole rows, and the beginning of a row.
fn runs(slot: &Slot, range: Range<usize>, end: usize) -> Vec<Range<usize>> {
    let (mut start, end) = (range.start, range.end.min(end));
    let mut runs = Vec::new();
    while start < end {
        let into = (start - slot.offset) % slot.cols;
        let to = match end - start {
            left if into > 0 => start + left.min(slot.cols - into),
            left if left < slot.cols => end,
            left => start + left / slot.cols * slot.cols,
        };
        runs.push(start..to);
        start = to;
    }
    runs
}

impl Engine<'_> {
    /// What this rank keeps for the optimizer: master weights and moments.
    pub fn pieces(&self) -> Vec<Piece> {
        let data = if self.zero.shares() { 0 } else { self.groups.data.rank() };
        cut(&self.layout, &self.manifest.model, |bucket| (self.zero.own(bucket), data))
    }

    /// What it holds of the live weights, for forward and backward.
    pub fn live_pieces(&self) -> Vec<Piece> {
        cut(&self.layout, &self.manifest.model, |bucket| {
            let (range, _) = self.live(bucket);
            let whole = self.zero.whole_weights(bucket).is_some();
            (range, if whole { self.groups.data.rank() } else { 0 })
        })
    }

    /// Which part of a bucket's live weights is there, and where.
    fn live(&self, bucket: usize) -> (Range<usize>, Tensor) {
        match self.zero.whole_weights(bucket) {
            Some(weights) => (self.layout.buckets[bucket].range.clone(), weights),
            None => (self.zero.own(bucket), self.zero.own_weights(bucket)),
        }
    }

    /// What the optimizer keeps of a piece, to the host.
    pub fn read(&self, moment: Moment, piece: &Piece, out: &mut [f32]) {
        let from = self.optimizer.kept(moment, piece.slot.bucket, piece.range.clone());
        self.be.download(from, bytemuck::cast_slice_mut(out));
    }

    /// Rows of the live copy of a piece, which forward and backward compute with, as they lie in
    /// memory. After `settle`.
    pub fn read_live(&self, piece: &Piece, rows: Range<usize>, out: &mut [u8]) {
        let (range, live) = self.live(piece.slot.bucket);
        let rows = piece.rows(rows);
        self.be.download(live.span(rows.start - range.start, rows.len()), out);
    }

    /// What the optimizer keeps of a piece from row `first` on, from the host. After the last
    /// master weight: `publish`.
    pub fn write(&self, moment: Moment, piece: &Piece, first: usize, values: &[f32]) {
        let rows = piece.rows(first..first + values.len() / piece.size[1]);
        let to = self.optimizer.kept(moment, piece.slot.bucket, rows);
        self.be.upload(bytemuck::cast_slice(values), to);
    }

    /// Sets what is kept of the rows that only pad the vocabulary to zero: no checkpoint has them.
    pub fn clear_padding(&self) {
        for (number, bucket) in self.layout.buckets.iter().enumerate() {
            for (slot, range) in bucket.within(self.zero.own(number)) {
                let rows = real_rows(&self.layout, slot, &self.manifest.model);
                let start = (slot.offset + rows * slot.cols).max(range.start);
                if start < range.end {
                    let clear = |m| self.be.zero(self.optimizer.kept(m, number, start..range.end));
                    Moment::ALL.into_iter().for_each(clear);
                }
            }
        }
    }

    /// Waits until what the ranks of this rank's replicas sent each other has arrived.
    pub fn settle(&self) {
        self.zero.settle(&*self.groups.data);
    }
}
