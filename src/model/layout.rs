//! The table, cut for one rank: where each weight lies in the flat buffers of weights, gradients,
//! master weights and moments (all share these offsets).

use super::weights::{Place, Spec, Split, Weight, table};
use crate::base::div_exact;
use crate::device::Tensor;
use crate::manifest::Model;
use std::ops::{Index, Range};

/// Slots start on multiples of this many elements: 256 bytes in bf16.
const ALIGN: usize = 128;

/// Which part of the model a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// In the order forward meets them; several under an interleaved pipeline.
    pub chunks: Vec<Chunk>,
    /// Its share of the width.
    pub tp: usize,
    pub tp_rank: usize,
    /// Ranks among which a bucket can be divided.
    pub dp: usize,
}

/// Layers in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub layers: Range<usize>,
    /// Whether it holds the embedding, and the head.
    pub first: bool,
    pub last: bool,
}

impl Part {
    /// The whole model.
    pub fn whole(model: &Model) -> Part {
        let chunk = Chunk { layers: 0..model.layers, first: true, last: true };
        Part { chunks: vec![chunk], tp: 1, tp_rank: 0, dp: 1 }
    }

    fn layers(&self) -> impl Iterator<Item = usize> {
        self.chunks.iter().flat_map(|chunk| chunk.layers.clone())
    }
}

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
    pub bucket: usize,
    /// A copy of a weight another stage has: kept equal, counted nowhere.
    pub copy: bool,
}

impl Slot {
    pub fn numel(&self) -> usize {
        self.rows * self.cols
    }

    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.numel()
    }

    /// This slot, given where its bucket lies.
    pub fn tensor(&self, bucket: &Bucket, base: Tensor) -> Tensor {
        let flat = base.span(self.offset - bucket.range.start, self.numel());
        Tensor::at(flat.addr(), self.rows, self.cols, base.dtype)
    }
}

/// Slots that are gathered, reduced and stepped together: the embedding, one block, or the head.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub place: Place,
    pub slots: Vec<Slot>,
    /// In elements; padded so that the data-parallel ranks can own equal shards.
    pub range: Range<usize>,
}

impl Bucket {
    /// What one of `dp` ranks owns of it.
    pub fn shard(&self, dp: usize, rank: usize) -> Range<usize> {
        let each = div_exact(self.range.len(), dp);
        self.range.start + rank * each..self.range.start + (rank + 1) * each
    }

    /// The parts of a range that belong to slots, with each slot.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = (&Slot, Range<usize>)> {
        let clip =
            move |slot: &Slot| slot.range().start.max(range.start)..slot.range().end.min(range.end);
        self.slots.iter().map(move |slot| (slot, clip(slot))).filter(|(_, part)| !part.is_empty())
    }
}

/// Everything one rank holds, in the order forward meets it.
#[derive(Clone, Debug)]
pub struct Layout {
    pub buckets: Vec<Bucket>,
    pub part: Part,
}

impl Layout {
    pub fn new(model: &Model, part: Part) -> Layout {
        let first = part.chunks.iter().any(|chunk| chunk.first);
        let last = part.chunks.iter().any(|chunk| chunk.last);
        let layers: Vec<usize> = part.layers().collect();
        let mut layout = Layout { buckets: Vec::new(), part };
        let table = table(model);
        let of = |place| table.iter().filter(move |spec| spec.place == place);
        if first {
            layout.push(Place::Embed, of(Place::Embed), "");
        }
        for layer in layers {
            layout.push(Place::Block, of(Place::Block), &format!("block.{layer}."));
        }
        if last {
            layout.push(Place::Head, of(Place::Head), "");
        }
        if last && !first && model.tied_head {
            let token = of(Place::Embed).filter(|spec| spec.weight == Weight::TokenEmbed);
            layout.push(Place::TiedCopy, token, "");
        }
        layout
    }

    fn push<'a>(&mut self, place: Place, specs: impl Iterator<Item = &'a Spec>, prefix: &str) {
        let start = self.len();
        let mut offset = start;
        let mut slots = Vec::new();
        for spec in specs {
            let (rows, cols) = match spec.split {
                Split::Rows => (div_exact(spec.rows, self.part.tp), spec.cols),
                Split::Cols => (spec.rows, div_exact(spec.cols, self.part.tp)),
                Split::Whole => (spec.rows, spec.cols),
            };
            let name = format!("{prefix}{}", spec.name);
            let (bucket, copy) = (self.buckets.len(), place == Place::TiedCopy);
            slots.push(Slot { spec: *spec, name, rows, cols, offset, bucket, copy });
            offset += (rows * cols).next_multiple_of(ALIGN);
        }
        let end = start + (offset - start).next_multiple_of(ALIGN * self.part.dp);
        self.buckets.push(Bucket { place, slots, range: start..end });
    }

    /// Elements of a flat buffer, padding included.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.range.end)
    }

    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.buckets.iter().flat_map(|bucket| &bucket.slots)
    }

    /// First row and column of this rank's share of a weight.
    pub fn corner(&self, slot: &Slot) -> [usize; 2] {
        match slot.spec.split {
            Split::Rows => [slot.rows * self.part.tp_rank, 0],
            Split::Cols => [0, slot.cols * self.part.tp_rank],
            Split::Whole => [0, 0],
        }
    }

    /// The bucket of a place, if this rank has it; the first one, for blocks.
    pub fn bucket(&self, place: Place) -> Option<usize> {
        self.buckets.iter().position(|bucket| bucket.place == place)
    }

    /// The bucket of a layer's block.
    pub fn block(&self, layer: usize) -> usize {
        let number = self.part.layers().position(|other| other == layer);
        let first = self.bucket(Place::Block).expect("a block");
        first + number.unwrap_or_else(|| panic!("layer {layer} is not in {:?}", self.part))
    }
}

/// The weights (or the gradients) of one bucket, by name: `w[QkvW]`.
#[derive(Clone, Debug)]
pub struct Params([Option<Tensor>; Weight::COUNT]);

impl Params {
    /// A bucket's slots, given where it lies.
    pub fn new(bucket: &Bucket, base: Tensor) -> Params {
        let mut params = Params([None; Weight::COUNT]);
        for slot in &bucket.slots {
            params.0[slot.spec.weight as usize] = Some(slot.tensor(bucket, base));
        }
        params
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
