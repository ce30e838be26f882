//! This rank's part of the model as rectangles of whole states, with read and write access.
//!
//! Tensor parallelism splits a parameter by rows or columns. ZeRO splits a bucket of such shares
//! into flat ranges. A rank's part of a state is then up to three rectangles, each contiguous in
//! memory: part of a row, whole rows, and part of a row. Rows that pad the vocabulary belong to no
//! rectangle.

use super::{Residence, ShardedParams};
use crate::states::{Extent, StateSpec, TensorSlice, rows_without_padding};
use device::{Tensor, op};
use manifest::Model;
use model::{Layout, ModelShard, Param, ParamSpec, TpSplit};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// Rectangle of one state of a parameter, contiguous in this rank's memory.
#[derive(Clone, Debug)]
pub struct StateSlice {
    pub param: Param,
    /// Index of the parameter in the whole model.
    pub number: usize,
    pub state: StateSpec,
    /// Rows and columns of the whole state.
    pub shape: [usize; 2],
    pub slice: TensorSlice,
    pub replica: Replica,
    at: Tensor,
}

/// Identifies one of several equal copies of a state: ranks that hold parts of the same copy agree.
/// Each field is 0 if there is only one copy in that direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Replica {
    /// Whether it belongs to the last stage's copy of a tied embedding.
    pub tied: bool,
    pub data: usize,
    pub tensor: usize,
}

impl Replica {
    /// Whether checkpoints are written from this copy.
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

impl StateSlice {
    pub fn numel(&self) -> usize {
        self.slice.numel()
    }

    pub fn bytes(&self) -> usize {
        self.at.bytes()
    }

    /// Address of the values. Two states that share memory have the same address.
    pub fn addr(&self) -> usize {
        self.at.addr()
    }

    /// Tensor of some of its rows.
    pub fn rows(&self, rows: Range<usize>) -> Tensor {
        let cols = self.slice.size[1];
        self.at.span(rows.start * cols, rows.len() * cols)
    }

    /// Rows from `first` on that `bytes` fills.
    pub fn rows_of(&self, first: usize, bytes: &[u8]) -> Tensor {
        let row = self.slice.size[1] * self.state.dtype.size();
        self.rows(first..first + bytes.len() / row)
    }
}

/// Rows of the whole parameter in a checkpoint: padding of the vocabulary is left out, because it
/// depends on the topology and affects no loss.
fn saved_rows(spec: &ParamSpec, vocab: usize) -> usize {
    if spec.vocab { vocab } else { spec.rows }
}

/// Shape of the whole parameter in a checkpoint. Norms and biases are vectors.
pub fn saved_shape(param: &Param, vocab: usize) -> Vec<usize> {
    match param.spec {
        ParamSpec { vocab: false, rows: 1, cols, .. } => vec![cols],
        spec => vec![saved_rows(&spec, vocab), spec.cols],
    }
}

/// Elements of a state that a rank holds, with their memory and data-parallel copy.
pub struct StateRange<'a> {
    pub param: &'a Param,
    pub state: StateSpec,
    pub range: Range<usize>,
    pub at: Tensor,
    pub data: usize,
}

/// Cuts states into rectangles of the whole model's states.
pub fn slice_states<'a>(
    layout: &Layout,
    model: &Model,
    ranges: impl Iterator<Item = StateRange<'a>>,
) -> Vec<StateSlice> {
    let whole = Layout::new(model, ModelShard::whole(model));
    let indices: HashMap<&str, usize> = whole
        .params()
        .enumerate()
        .map(|(i, param)| (param.name.as_str(), i))
        .collect();
    let mut slices = Vec::new();
    for StateRange { param, state, range, at, data } in ranges {
        let extent = state.extent;
        let tensor = if is_whole(param, extent) { layout.shard.tp_rank } else { 0 };
        let replica = Replica { tied: param.tied_copy, data, tensor };
        let rows = rows_without_padding(param, layout.shard.tp_rank, model.vocab);
        let share = TensorSlice { at: layout.tp_offset(param), size: [rows, param.cols] };
        let real = extent.part_for(share);
        let cols = real.size[1];
        for run in split_into_rectangles(cols, range.start..range.end.min(real.numel())) {
            let width = run.len().min(cols);
            let first = [real.at[0] + run.start / cols, real.at[1] + run.start % cols];
            slices.push(StateSlice {
                param: param.clone(),
                number: indices[param.name.as_str()],
                state,
                shape: extent.shape([saved_rows(&param.spec, model.vocab), param.spec.cols]),
                slice: TensorSlice { at: first, size: [run.len() / width, width] },
                replica,
                at: at.span(run.start - range.start, run.len()),
            });
        }
    }
    slices
}

/// Whether every tensor-parallel rank holds the whole state.
pub fn is_whole(param: &Param, extent: Extent) -> bool {
    match param.spec.split {
        TpSplit::Whole => true,
        TpSplit::Rows => matches!(extent, Extent::Cols | Extent::PartCols(_)),
        TpSplit::Cols => extent == Extent::Rows,
    }
}

/// Splits a range of a matrix's elements into the end of a row, whole rows, and the start of a row.
fn split_into_rectangles(cols: usize, range: Range<usize>) -> Vec<Range<usize>> {
    let Range { mut start, end } = range;
    let mut rectangles = Vec::new();
    while start < end {
        let into = start % cols;
        let to = match end - start {
            count if into > 0 => start + count.min(cols - into),
            count if count < cols => end,
            count => start + count / cols * cols,
        };
        rectangles.push(start..to);
        start = to;
    }
    rectangles
}

impl ShardedParams<'_> {
    /// Every state of this rank. Of the model weights, the part that it updates.
    pub fn slices(&self) -> Vec<StateSlice> {
        let replica = self.groups.grad_sum.rank();
        let copy = self.groups.levels.states_copy();
        let ranges = self.params.iter().flat_map(|p| {
            p.iter().map(move |(state, range, at)| {
                let is_sharded = self.level > 0 && state.extent.is_sharded();
                let data = if is_sharded { copy } else { replica };
                StateRange { param: &p.param, state: *state, range, at, data }
            })
        });
        slice_states(&self.layout, &self.model, ranges)
    }

    /// All model weights of this rank.
    pub fn model_slices(&self) -> Vec<StateSlice> {
        let state = StateSpec::model(self.model_dtype);
        let mut ranges = Vec::new();
        for (layout, bucket) in self.layout.buckets.iter().zip(&self.buckets) {
            let (present, weights) = (&bucket.held, bucket.weights.stored);
            let data = match bucket.weights.residence {
                _ if *present == layout.range => self.groups.grad_sum.rank(),
                Residence::Shard => self.groups.levels.copy,
                Residence::Whole | Residence::Host => self.groups.levels.states_copy(),
            };
            for (param, part) in layout.overlaps(present.clone()) {
                let at = weights.span(part.start - present.start, part.len());
                let range = part.start - param.offset..part.end - param.offset;
                ranges.push(StateRange { param, state, range, at, data });
            }
        }
        slice_states(&self.layout, &self.model, ranges.into_iter())
    }

    /// Copies rows of a slice to the host in memory order. Model weights are valid after
    /// `wait_gathers`.
    pub fn read(&self, slice: &StateSlice, rows: Range<usize>, out: &mut [u8]) {
        self.be.download(slice.rows(rows), out);
    }

    /// Writes rows of a slice, starting at row `first`. Call `cast_master_to_model` after the last
    /// master weight.
    pub fn write(&self, slice: &StateSlice, first: usize, bytes: &[u8]) {
        self.be.upload(bytes, slice.rows_of(first, bytes));
    }

    /// Zeroes all states of the rows that pad the vocabulary, which checkpoints do not contain.
    pub fn clear_padding(&self) {
        for states in &self.params {
            let tp_rank = self.layout.shard.tp_rank;
            let rows = rows_without_padding(&states.param, tp_rank, self.model.vocab);
            for (state, range, at) in states.iter() {
                if state.extent.serves_exchange() {
                    continue; // states of blocks, which have no padding
                }
                let real = state
                    .extent
                    .shape([rows, states.param.cols])
                    .iter()
                    .product();
                let start = range.end.min(range.start.max(real));
                if start < range.end {
                    let padding = at.span(start - range.start, range.end - start);
                    self.be.run(op::Zero { x: padding.set() });
                }
            }
        }
    }
}
