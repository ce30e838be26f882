//! Parameter table of one rank: the position of each weight in the flat buffers of weights,
//! gradients, master weights and moments, which all use the same offsets.

use super::fp8_weight::Fp8Weight;
use super::weights::{Module, ParamSpec, TpSplit, Weight, table};
use base::div_exact;
use device::{Out, Tensor};
use manifest::Model;
use std::ops::{Index, Range};

/// Alignment of params in elements: 256 bytes in bf16.
const ALIGN: usize = 128;

/// Part of the model that a rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShard {
    /// In forward order; several under an interleaved pipeline.
    pub chunks: Vec<Chunk>,
    /// Number of tensor-parallel ranks, each of which holds one share of the width.
    pub tp: usize,
    pub tp_rank: usize,
    /// Number of data-parallel ranks; a bucket is divisible into that many shards.
    pub dp: usize,
}

/// Consecutive layers of one virtual pipeline stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub layers: Range<usize>,
    /// Whether it holds the embedding; whether it holds the head.
    pub first: bool,
    pub last: bool,
}

impl ModelShard {
    /// Shard of one rank that holds the whole model.
    pub fn whole(model: &Model) -> ModelShard {
        let chunk = Chunk { layers: 0..model.layers, first: true, last: true };
        ModelShard { chunks: vec![chunk], tp: 1, tp_rank: 0, dp: 1 }
    }

    fn layers(&self) -> impl Iterator<Item = usize> {
        self.chunks.iter().flat_map(|chunk| chunk.layers.clone())
    }
}

/// Weight of one layer on one rank, and its range in the flat buffers.
#[derive(Clone, Debug)]
pub struct Param {
    pub spec: ParamSpec,
    /// For example "block.3.attn.qkv.weight".
    pub name: String,
    /// Shape of this rank's share.
    pub rows: usize,
    pub cols: usize,
    /// First element in the flat buffers.
    pub offset: usize,
    pub bucket: usize,
    /// Whether it is the last stage's copy of the tied embedding. The copy is kept equal to the
    /// first stage's and is not counted.
    pub tied_copy: bool,
}

impl Param {
    pub fn numel(&self) -> usize {
        self.rows * self.cols
    }

    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.numel()
    }

    /// View of the param in `base`, the tensor of its bucket.
    pub fn tensor(&self, bucket: &Bucket, base: Tensor) -> Tensor {
        let flat = base.span(self.offset - bucket.range.start, self.numel());
        Tensor::at(flat.addr(), self.rows, self.cols, base.dtype)
    }
}

/// Params that are gathered, reduced and updated together: embedding, one block, or head.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub module: Module,
    pub params: Vec<Param>,
    /// Elements, padded so that data-parallel ranks own equal shards.
    pub range: Range<usize>,
}

impl Bucket {
    /// Shard of one of `dp` ranks.
    pub fn shard(&self, dp: usize, rank: usize) -> Range<usize> {
        let each = div_exact(self.range.len(), dp);
        self.range.start + rank * each..self.range.start + (rank + 1) * each
    }

    /// Params that a range overlaps, each with its part of the range.
    pub fn overlaps(&self, range: Range<usize>) -> impl Iterator<Item = (&Param, Range<usize>)> {
        self.params.iter().filter_map(move |param| {
            let own = param.range();
            let part = own.start.max(range.start)..own.end.min(range.end);
            (!part.is_empty()).then_some((param, part))
        })
    }
}

/// All params of one rank, in forward order.
#[derive(Clone, Debug)]
pub struct Layout {
    pub buckets: Vec<Bucket>,
    pub shard: ModelShard,
}

impl Layout {
    pub fn new(model: &Model, shard: ModelShard) -> Layout {
        let first = shard.chunks.iter().any(|chunk| chunk.first);
        let last = shard.chunks.iter().any(|chunk| chunk.last);
        let layers: Vec<usize> = shard.layers().collect();
        let mut layout = Layout { buckets: Vec::new(), shard };
        let table = table(model);
        let rows = |module| table.iter().filter(move |spec| spec.module == module);
        if first {
            layout.push(Module::Embed, rows(Module::Embed), "");
        }
        for layer in layers {
            layout.push(Module::Block, rows(Module::Block), &format!("block.{layer}."));
        }
        if last {
            layout.push(Module::Head, rows(Module::Head), "");
        }
        if last && !first && table.iter().any(|spec| spec.tied) {
            layout.push(Module::TiedCopy, table.iter().filter(|spec| spec.tied), "");
        }
        layout
    }

    fn push<'a>(
        &mut self,
        module: Module,
        specs: impl Iterator<Item = &'a ParamSpec>,
        prefix: &str,
    ) {
        let start = self.len();
        let mut offset = start;
        let mut params = Vec::new();
        for spec in specs {
            let [rows, cols] = spec.share(self.shard.tp);
            let name = format!("{prefix}{}", spec.name);
            let bucket = self.buckets.len();
            let tied_copy = module == Module::TiedCopy;
            params.push(Param { spec: *spec, name, rows, cols, offset, bucket, tied_copy });
            offset += (rows * cols).next_multiple_of(ALIGN);
        }
        let end = start + (offset - start).next_multiple_of(ALIGN * self.shard.dp);
        self.buckets
            .push(Bucket { module, params, range: start..end });
    }

    /// Elements of a flat buffer, including padding.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.buckets.last().map_or(0, |bucket| bucket.range.end)
    }

    pub fn params(&self) -> impl Iterator<Item = &Param> {
        self.buckets.iter().flat_map(|bucket| &bucket.params)
    }

    /// First row and column of this rank's share of a weight.
    pub fn tp_offset(&self, param: &Param) -> [usize; 2] {
        match param.spec.split {
            TpSplit::Rows => [param.rows * self.shard.tp_rank, 0],
            TpSplit::Cols => [0, param.cols * self.shard.tp_rank],
            TpSplit::Whole => [0, 0],
        }
    }

    /// Bucket of a module, or the first bucket of blocks; None if this rank has none.
    pub fn bucket(&self, module: Module) -> Option<usize> {
        self.buckets
            .iter()
            .position(|bucket| bucket.module == module)
    }

    /// Matrix [v, H] of the head: its own, the tied embedding, or the copy of it.
    pub fn head_matrix(&self) -> &Param {
        self.params()
            .find(|Param { spec, .. }| spec.vocab && (spec.tied || spec.module == Module::Head))
            .expect("the last stage has a head")
    }

    /// Bucket of a layer's block.
    pub fn block(&self, layer: usize) -> usize {
        let number = self.shard.layers().position(|other| other == layer);
        let first = self.bucket(Module::Block).expect("a block");
        first + number.unwrap_or_else(|| panic!("layer {layer} is not in {:?}", self.shard))
    }
}

/// Weights (or gradients) of one bucket, by name: `w[QkvW]`.
#[derive(Clone, Debug)]
pub struct Params {
    tensors: [Option<Tensor>; Weight::COUNT],
    /// Gradients before the first micro-batch: matrix products' are uninitialised, the others zero.
    fresh: bool,
    /// fp8 state of the weights.
    fp8_weights: Vec<(Weight, Fp8Weight)>,
}

impl Params {
    /// Params of a bucket, as views of its tensor `base`.
    pub fn new(bucket: &Bucket, base: Tensor) -> Params {
        let mut tensors = [None; Weight::COUNT];
        for param in &bucket.params {
            tensors[param.spec.weight as usize] = Some(param.tensor(bucket, base));
        }
        Params { tensors, fresh: false, fp8_weights: Vec::new() }
    }

    /// The same gradients before the first micro-batch: `out` overwrites.
    pub fn fresh(&self) -> Params {
        Params { fresh: true, ..self.clone() }
    }
}

impl Params {
    /// The same weights, with the fp8 state that `plan` returns for each matrix [out, in] of a
    /// block.
    pub fn with_fp8(mut self, bucket: &Bucket, plan: impl Fn([usize; 2]) -> Fp8Weight) -> Params {
        let matrices = bucket
            .params
            .iter()
            .filter(|param| param.spec.is_block_matrix());
        self.fp8_weights = matrices
            .map(|param| (param.spec.weight, plan([param.rows, param.cols])))
            .collect();
        self
    }

    /// fp8 state of a matrix of a block.
    pub fn fp8_weight(&self, weight: Weight) -> Fp8Weight {
        let found = self.fp8_weights.iter().find(|(known, _)| *known == weight);
        found
            .unwrap_or_else(|| panic!("{weight:?} has no fp8 state"))
            .1
    }

    /// Weight, or None if the model has no such weight.
    pub fn get(&self, weight: Weight) -> Option<Tensor> {
        self.tensors[weight as usize]
    }

    /// Destination of a product's gradient, or None if the model has no such weight.
    pub fn get_out(&self, weight: Weight) -> Option<Out> {
        assert!(weight.is_of_product(), "the gradient of {weight:?} is a sum of several ops");
        let write = if self.fresh { Tensor::set } else { Tensor::add };
        self.get(weight).map(write)
    }

    /// Destination of a product's gradient.
    pub fn out(&self, weight: Weight) -> Out {
        self.get_out(weight)
            .unwrap_or_else(|| panic!("{weight:?} is not in this bucket"))
    }
}

impl Index<Weight> for Params {
    type Output = Tensor;
    fn index(&self, weight: Weight) -> &Tensor {
        self.tensors[weight as usize]
            .as_ref()
            .unwrap_or_else(|| panic!("{weight:?} is not in this bucket"))
    }
}
