//! The table, cut for one rank: where each weight lies in the flat buffers of weights, gradients,
//! master weights and moments (all share these offsets).

use super::weights::{Place, Spec, Split, Weight, table};
use crate::base::div_exact;
use crate::device::Tensor;
use crate::manifest::Model;
use std::ops::{Index, Range};

/// Slots start on multiples of this many elements: 256 bytes in bf16.
const ALIGN: usize = 128;

/// One weight of one layer on one rank: its place in the flat buffers.
#[derive(Clone, Debug)]
pub struct Slot {
    pub spec: Spec,
    /// "block.3.attn.qkv.weight".
    pub name: String,
    /// This rank's share.
    pub rows: usize,
    pub cols: usize,
    /// In elements.
    pub offset: usize,
}

impl Slot {
    pub fn numel(&self) -> usize {
        self.rows * self.cols
    }

    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.numel()
    }

    /// This slot in a flat buffer at `base`.
    pub fn tensor(&self, base: Tensor) -> Tensor {
        let flat = base.span(self.offset, self.numel());
        Tensor::at(flat.addr(), self.rows, self.cols, base.dtype)
    }
}

/// Slots that are gathered, reduced and stepped together: the embedding, one block, or the head.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub place: Place,
    pub slots: Vec<Slot>,
    pub range: Range<usize>,
}

/// Everything one rank holds, in the order forward meets it.
#[derive(Clone, Debug)]
pub struct Layout {
    pub buckets: Vec<Bucket>,
    pub tp: usize,
    pub tp_rank: usize,
}

impl Layout {
    /// The whole depth of the model, this rank's share of its width.
    pub fn new(model: &Model, tp: usize, tp_rank: usize) -> Layout {
        let mut layout = Layout { buckets: Vec::new(), tp, tp_rank };
        let table = table(model);
        layout.push(&table, Place::Embed, String::new());
        for layer in 0..model.layers {
            layout.push(&table, Place::Block, format!("block.{layer}."));
        }
        layout.push(&table, Place::Head, String::new());
        layout
    }

    fn push(&mut self, table: &[Spec], place: Place, prefix: String) {
        let start = self.len();
        let mut offset = start;
        let mut slots = Vec::new();
        for spec in table.iter().filter(|s| s.place == place) {
            let (rows, cols) = match spec.split {
                Split::Rows => (div_exact(spec.rows, self.tp), spec.cols),
                Split::Cols => (spec.rows, div_exact(spec.cols, self.tp)),
                Split::Whole => (spec.rows, spec.cols),
            };
            let name = format!("{prefix}{}", spec.name);
            slots.push(Slot { spec: *spec, name, rows, cols, offset });
            offset += (rows * cols).next_multiple_of(ALIGN);
        }
        self.buckets.push(Bucket { place, slots, range: start..offset });
    }

    /// Elements of a flat buffer, padding included.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.range.end)
    }

    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.buckets.iter().flat_map(|bucket| &bucket.slots)
    }

    /// Runs of neighbouring slots with one weight-decay setting: all the optimizer wants to know.
    pub fn decay_spans(&self) -> Vec<(Range<usize>, bool)> {
        let mut spans: Vec<(Range<usize>, bool)> = Vec::new();
        for slot in self.slots() {
            match spans.last_mut() {
                Some((range, decay)) if *decay == slot.spec.decay => range.end = slot.range().end,
                _ => spans.push((slot.range(), slot.spec.decay)),
            }
        }
        spans
    }
}

/// The weights (or the gradients) of one bucket, by name: `w[QkvW]`.
#[derive(Clone, Debug)]
pub struct Params([Option<Tensor>; Weight::COUNT]);

impl Params {
    /// A bucket's slots in the flat buffer `base`.
    pub fn new(base: Tensor, bucket: &Bucket) -> Params {
        let mut params = Params([None; Weight::COUNT]);
        for slot in &bucket.slots {
            params.0[slot.spec.weight as usize] = Some(slot.tensor(base));
        }
        params
    }

    /// One for each bucket.
    pub fn all(base: Tensor, layout: &Layout) -> Vec<Params> {
        layout.buckets.iter().map(|bucket| Params::new(base, bucket)).collect()
    }
}

impl Index<Weight> for Params {
    type Output = Tensor;
    fn index(&self, weight: Weight) -> &Tensor {
        self.0[weight as usize]
            .as_ref()
            .unwrap_or_else(|| panic!("{weight:?} is not in this bucket"))
    }
}
