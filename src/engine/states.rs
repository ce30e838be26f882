//! Table of a parameter's states: model weight, master weight, moments of the optimizer. The memory
//! plan, the update, ZeRO, the replica check, checkpoints and the estimator read these rows.

use base::{DType, div_exact};
use device::{Backend, MemoryKind, Tensor, op};
use model::Param;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Weight for forward and backward. Every parameter has one.
pub const MODEL: &str = "model";
/// f32 weight that the optimizer updates. Every parameter has one.
pub const MASTER: &str = "master";

/// Row of the table: one state of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Name in checkpoints and messages.
    pub name: &'static str,
    pub dtype: DType,
    pub extent: Extent,
    /// Whether checkpoints store its values; for other states they store digests.
    pub saved: bool,
    /// Whether it is on the host under `topology.offload`, where the rule then runs.
    pub offloads: bool,
    pub init: Initial,
}

/// Initial value of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// The parameter's initial value.
    Parameter,
    Zero,
    /// Another state, rounded. Two states with equal dtype share memory.
    CastOf(&'static str),
    /// Standard normals, seeded by the run's seed, the parameter's name and the state's name.
    Normal,
}

impl StateSpec {
    /// Weight for forward and backward.
    pub const fn model(dtype: DType) -> StateSpec {
        let init = Initial::CastOf(MASTER);
        let extent = Extent::Like;
        let saved = false;
        let offloads = false;
        StateSpec { name: MODEL, dtype, extent, saved, offloads, init }
    }

    /// Weight that the optimizer updates.
    pub const fn master() -> StateSpec {
        StateSpec { init: Initial::Parameter, ..StateSpec::moment(MASTER) }
    }

    /// An f32 for each element of the parameter, initially 0.
    pub const fn moment(name: &'static str) -> StateSpec {
        let dtype = DType::F32;
        let extent = Extent::Like;
        let init = Initial::Zero;
        StateSpec { name, dtype, extent, saved: true, offloads: true, init }
    }

    /// Whether the state has memory of its own, not that of the model weight, which is in `model`.
    /// `all` are the states of its parameter.
    pub(super) fn has_own_memory(
        &self,
        all: &[StateSpec],
        on_host: bool,
        model: MemoryKind,
    ) -> bool {
        let has_equal_copy = all
            .iter()
            .any(|other| other.init == Initial::CastOf(self.name) && other.dtype == self.dtype);
        let is_shared = has_equal_copy && on_host == (model == MemoryKind::Host);
        self.name != MODEL && !is_shared
    }
}

/// Shape of a state of a parameter [rows, cols].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// [rows, cols].
    #[default]
    Like,
    /// [rows, 1]: one per row.
    Rows,
    /// [1, cols]: one per column.
    Cols,
    /// [n, cols]: one per column of each of n matrices that are fused by rows (`Fused`).
    PartCols(usize),
    /// [rows, cols / n]: one per n columns of a row. n divides 64, so no block crosses a ZeRO
    /// shard.
    ColBlocks(usize),
    /// [rows, cols] on each replica: never sharded by ZeRO, and different on every replica.
    PerReplica,
    /// [cols, rank] for each of `shares` tensor-parallel shares of the rows, stacked by rows.
    LowRank { rank: usize, shares: usize },
}

impl Extent {
    /// Part of the state that belongs to a rectangle of the parameter.
    pub fn part_for(self, param: TensorSlice) -> TensorSlice {
        let TensorSlice { at: [row, col], size: [rows, cols] } = param;
        match self {
            Extent::Like | Extent::PerReplica => param,
            Extent::LowRank { rank, shares } => {
                let share = if shares > 1 { row / rows } else { 0 };
                TensorSlice { at: [share * cols + col, 0], size: [cols, rank] }
            }
            Extent::Rows => TensorSlice { at: [row, 0], size: [rows, 1] },
            Extent::Cols => TensorSlice { at: [0, col], size: [1, cols] },
            Extent::PartCols(n) => TensorSlice { at: [0, col], size: [n, cols] },
            Extent::ColBlocks(n) => {
                let col = div_exact(col, n);
                let cols = div_exact(cols, n);
                TensorSlice { at: [row, col], size: [rows, cols] }
            }
        }
    }

    /// Part of the parameter that belongs to a part of the state; `whole` is the parameter's size.
    pub fn param_part(self, state: TensorSlice, whole: [usize; 2]) -> TensorSlice {
        let TensorSlice { at: [row, col], size: [rows, cols] } = state;
        match self {
            Extent::Like | Extent::PerReplica => state,
            Extent::LowRank { .. } => TensorSlice { at: [0, 0], size: whole },
            Extent::Rows => TensorSlice { at: [row, 0], size: [rows, whole[1]] },
            Extent::Cols | Extent::PartCols(_) => {
                TensorSlice { at: [0, col], size: [whole[0], cols] }
            }
            Extent::ColBlocks(n) => TensorSlice { at: [row, col * n], size: [rows, cols * n] },
        }
    }

    /// Smallest part of the state that covers a rectangle of the parameter.
    pub fn covering_part(self, param: TensorSlice) -> TensorSlice {
        let Extent::ColBlocks(n) = self else { return self.part_for(param) };
        let first = param.at[1] / n;
        let end = (param.at[1] + param.size[1]).div_ceil(n);
        TensorSlice { at: [param.at[0], first], size: [param.size[0], end - first] }
    }

    /// Shape for the whole parameter.
    pub fn shape(self, size: [usize; 2]) -> [usize; 2] {
        let [rows, cols] = self.part_for(TensorSlice { at: [0, 0], size }).size;
        match self {
            Extent::LowRank { shares, .. } => [shares * rows, cols],
            _ => [rows, cols],
        }
    }

    /// Number of elements for a rank's share of a parameter.
    pub fn numel(self, param: &Param) -> usize {
        let share = TensorSlice { at: [0, 0], size: [param.rows, param.cols] };
        self.part_for(share).numel()
    }

    /// Whether gradient compression uses it, not the optimizer. A run may resume without its saved
    /// values.
    pub fn serves_exchange(self) -> bool {
        matches!(self, Extent::PerReplica | Extent::LowRank { .. })
    }

    /// Whether a parameter of this size can have such a state.
    pub fn fits(self, size: [usize; 2]) -> bool {
        let [rows, cols] = size;
        match self {
            Extent::ColBlocks(n) => n > 0 && cols.is_multiple_of(n),
            Extent::LowRank { rank, shares } => {
                let thin = 0 < rank && rank <= rows.min(cols);
                thin && 0 < shares && rows.is_multiple_of(shares)
            }
            Extent::PartCols(n) => n > 0,
            _ => true,
        }
    }

    /// Range of the state's elements that belongs to a ZeRO range of the parameter's elements: the
    /// corresponding part of a sharded state, or the whole of any other.
    pub(super) fn shard(self, param: &Param, part: &Range<usize>) -> Range<usize> {
        match self {
            Extent::Like => part.clone(),
            Extent::ColBlocks(n) => div_exact(part.start, n)..div_exact(part.end, n),
            _ => 0..self.numel(param),
        }
    }

    /// Whether ZeRO shards the state with its parameter; otherwise each replica keeps it whole.
    pub fn is_sharded(self) -> bool {
        matches!(self, Extent::Like | Extent::ColBlocks(_))
    }

    pub fn is_like(&self) -> bool {
        *self == Extent::Like
    }
}

/// Rectangle of a whole matrix, in memory or on disk; a vector is a matrix of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSlice {
    /// First row and column.
    pub at: [usize; 2],
    /// Rows and columns.
    pub size: [usize; 2],
}

impl TensorSlice {
    pub fn numel(&self) -> usize {
        self.size[0] * self.size[1]
    }

    pub fn rows(&self) -> Range<usize> {
        self.at[0]..self.at[0] + self.size[0]
    }

    pub fn cols(&self) -> Range<usize> {
        self.at[1]..self.at[1] + self.size[1]
    }

    /// Index, within the slice, of an element of the whole matrix.
    pub fn element(&self, row: usize, col: usize) -> usize {
        (row - self.at[0]) * self.size[1] + col - self.at[1]
    }

    /// Intersection with a rectangle.
    pub fn overlap(&self, rows: &Range<usize>, cols: &Range<usize>) -> [Range<usize>; 2] {
        let both = |a: Range<usize>, b: &Range<usize>| a.start.max(b.start)..a.end.min(b.end);
        [both(self.rows(), rows), both(self.cols(), cols)]
    }
}

/// Rows of a tensor-parallel rank's share without padding of the vocabulary. The padding depends on
/// the grid, and checkpoints do not contain it.
pub fn rows_without_padding(param: &Param, tp_rank: usize, vocab: usize) -> usize {
    if param.spec.vocab {
        param.rows.min(vocab.saturating_sub(param.rows * tp_rank))
    } else {
        param.rows
    }
}

/// States of one parameter on a rank.
#[derive(Clone, Debug)]
pub struct ParamStates {
    pub param: Param,
    /// Elements of the parameter that this rank updates: all, or a ZeRO shard.
    pub part: Range<usize>,
    /// Gradient of those elements, f32.
    pub grad: Tensor,
    states: Vec<(StateSpec, Tensor)>,
}

impl ParamStates {
    /// Lays out the states of a part whose model weight and gradient are placed already. States for
    /// which `on_host` is true do not share memory with a device tensor. None if the rank has no
    /// element of any state.
    pub fn plan(
        param: &Param,
        part: Range<usize>,
        model: Tensor,
        grad: Tensor,
        specs: &[StateSpec],
        on_host: impl Fn(&StateSpec) -> bool,
        mut place: impl FnMut(&StateSpec, usize) -> Tensor,
    ) -> Option<ParamStates> {
        let mut states = Vec::new();
        for spec in specs {
            let len = spec.extent.shard(param, &part).len();
            let at = if !spec.has_own_memory(specs, on_host(spec), model.memory()) {
                model
            } else if len > 0 {
                place(spec, len)
            } else {
                // Aligned, as every tensor is; without elements, so never accessed.
                let addr = model.addr().next_multiple_of(spec.dtype.size());
                Tensor::at(addr, 1, 0, spec.dtype)
            };
            states.push((*spec, at));
        }
        let has_elements = states.iter().any(|(_, at)| at.numel() > 0);
        has_elements.then(|| ParamStates { param: param.clone(), part, grad, states })
    }

    /// States of a sub-range of the part, with other memory for model weight and gradient. States
    /// that ZeRO does not shard (`Extent::is_sharded`) stay whole.
    pub fn piece(&self, part: Range<usize>, model: Tensor, grad: Tensor) -> ParamStates {
        let mut piece = ParamStates { part, grad, ..self.clone() };
        for (spec, at) in &mut piece.states {
            let whole = spec.extent.shard(&self.param, &self.part);
            let shard = spec.extent.shard(&self.param, &piece.part);
            *at = match spec.name {
                MODEL => model,
                _ if at.numel() == 0 => *at,
                _ => at.span(shard.start - whole.start, shard.len()),
            };
        }
        piece
    }

    /// The same states, with the named one in other memory.
    pub fn with_memory(mut self, name: &str, at: Tensor) -> ParamStates {
        for (_, tensor) in self.states.iter_mut().filter(|(spec, _)| spec.name == name) {
            *tensor = at;
        }
        self
    }

    /// Non-empty states, each with the range of its elements and its memory.
    pub fn iter(&self) -> impl Iterator<Item = (&StateSpec, Range<usize>, Tensor)> {
        self.states
            .iter()
            .filter(|(_, at)| at.numel() > 0)
            .map(|(spec, at)| (spec, spec.extent.shard(&self.param, &self.part), *at))
    }

    /// Rounds the master weight into the model weight.
    pub fn cast(&self, be: &dyn Backend) {
        let master = self.get(MASTER);
        let model = self.get(MODEL);
        if master.addr() != model.addr() && master.numel() > 0 {
            be.run(op::Copy { x: master, y: model.set() });
        }
    }

    /// Tensor of the named state; empty if this rank has no element of it.
    pub fn get(&self, name: &str) -> Tensor {
        let Some((_, at)) = self.states.iter().find(|(spec, _)| spec.name == name) else {
            panic!("{} has no {name}", self.param.name)
        };
        *at
    }
}
