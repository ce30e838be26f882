//! Reads the run of another trainer, whichever layout its files have: a table lists the stored parts of each
//! parameter, and a `PartReader` of the format reads their numbers.

mod tensors;

use super::arguments::Arguments;
use super::compare::{Comparison, like};
use super::megatron::names::add_one;
use super::replica_merger::ReplicaMerger;
use super::{AdamState, Choices, RunDescription};
use crate::tensor_part::{
    Fused, Pairs, ParamKey, TensorPart, gates_values, param_key, queries_keys_values,
};
use crate::torch::{Element, IS_WHOLE};
use base::Problems;
use manifest::Model;
use model::{Param, TpSplit, Weight};
use std::collections::{BTreeMap, BTreeSet};

/// A tensor in the files, or a tensor rank's share of one.
#[derive(Clone, Debug, Default)]
pub struct Source {
    pub name: String,
    /// Shape in the files; of a tensor with all layers, that of one layer.
    pub shape: Vec<usize>,
    /// Tensor rank whose share it is.
    pub rank: usize,
    /// Pipeline stage, and number among the parameters of the stage.
    pub stage: usize,
    pub entry: usize,
    /// Layer that is read, if the tensor has all of them on a leading axis.
    pub layer: Option<usize>,
}

impl Source {
    /// Rows and columns: a vector is a matrix of one column.
    pub fn matrix(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.shape.get(axis).copied().unwrap_or(1))
    }

    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Rows of a parameter that a tensor holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    #[default]
    All,
    /// Half of SwiGLU's first matrix: gates 0, values 1.
    Half(usize),
    /// Queries 0, keys 1, values 2.
    Kind(usize),
    /// SwiGLU's gates, then its values.
    Halves,
    /// All queries, then all keys, then all values.
    Kinds,
}

/// A tensor that holds a parameter, or a piece of it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub source: Source,
    pub piece: Piece,
    /// States that it is stored for.
    pub states: &'static [AdamState],
}

impl Stored {
    /// A parameter in one tensor per tensor rank.
    pub fn whole(source: Source) -> Stored {
        Stored { source, piece: Piece::All, states: &AdamState::ALL }
    }
}

/// Tensors of each parameter, and the names of tensors that no parameter of gptrain has.
#[derive(Default)]
pub struct ParamTable {
    pub stored: BTreeMap<ParamKey, Vec<Stored>>,
    pub unknown: Vec<String>,
}

/// A source, and its place in the parameter.
pub struct StoredPart {
    pub source: Source,
    pub cut: TensorPart,
}

/// Takes a rectangle of a tensor: first row and column, rows and columns, values.
pub type Put<'a> = dyn FnMut([usize; 2], [usize; 2], &[f32]) + 'a;

/// Passes values of a tensor to a `Put` in whole rows, as they come from a file.
pub struct Rows<'p, 'a> {
    put: &'p mut Put<'a>,
    corner: [usize; 2],
    cols: usize,
    /// Rows that were passed.
    row: usize,
    /// Begin of the next row.
    rest: Vec<f32>,
    /// Values that are still expected.
    pub left: usize,
}

impl<'p, 'a> Rows<'p, 'a> {
    /// Rows of a rectangle of `size` from the row and column `corner` on.
    pub fn new(put: &'p mut Put<'a>, corner: [usize; 2], size: [usize; 2]) -> Rows<'p, 'a> {
        let [rows, cols] = size;
        Rows { put, corner, cols: cols.max(1), row: 0, rest: Vec::new(), left: rows * cols }
    }

    /// Adds the next values. Values beyond the rectangle are left out.
    pub fn push(&mut self, values: &[f32]) {
        let values = &values[..values.len().min(self.left)];
        self.left -= values.len();
        let begun = self.rest.len();
        let missing = if begun == 0 { 0 } else { (self.cols - begun).min(values.len()) };
        let (end_of_row, values) = values.split_at(missing);
        self.rest.extend_from_slice(end_of_row);
        if self.rest.len() == self.cols {
            let row = std::mem::take(&mut self.rest);
            self.pass(&row);
        }
        let (rows, begin_of_row) = values.split_at(values.len() / self.cols * self.cols);
        self.pass(rows);
        self.rest.extend_from_slice(begin_of_row);
    }

    fn pass(&mut self, values: &[f32]) {
        let rows = values.len() / self.cols;
        let [row, col] = self.corner;
        if rows > 0 {
            (self.put)([row + self.row, col], [rows, self.cols], values);
        }
        self.row += rows;
    }
}

/// Reader of a format's files.
pub trait PartReader {
    /// Passes a state of a source to `put`, in rectangles that cover it.
    fn read(&mut self, source: &Source, state: AdamState, put: &mut Put) -> anyhow::Result<()>;

    /// Type of the numbers of a state in the files.
    fn element(&mut self, source: &Source, state: AdamState) -> anyhow::Result<Element>;

    /// Compares a state with the shape that the model expects.
    fn compare(&self, source: &Source, state: AdamState, shape: &[usize], into: &mut Comparison) {
        if state == AdamState::Master {
            into.shape(&source.name, Some(&source.shape), shape);
        }
    }

    /// Name that the files should have for a parameter, if there is one such name.
    fn name(&self, _: &Param, _: AdamState) -> Option<String> {
        None
    }
}

/// Form of a run's tensors.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Tensor ranks whose shares the files hold.
    pub ranks: usize,
    /// Order of the rows of queries, keys and values.
    pub fused: Fused,
    /// Whether SwiGLU's gates come before its values.
    pub gated: bool,
    /// Whether the files have a norm's scale less one.
    pub less_one: bool,
}

impl Layout {
    /// Form that Megatron's arguments describe; `version` is `checkpoint_version`.
    pub fn new(ranks: usize, version: f64, args: &Arguments) -> Layout {
        let fused = match (version, args.is_set("rotary_interleaved")) {
            (version, _) if version < 1.0 => Fused::Kinds,
            (version, _) if version < 2.0 => Fused::Columns,
            (_, true) => Fused::Heads(Pairs::Neighbours),
            _ => Fused::Heads(Pairs::Halves),
        };
        Layout {
            ranks,
            fused,
            gated: args.is_set("model.ffn: swiglu"),
            less_one: args.is_set("apply_layernorm_1p"),
        }
    }
}

/// A run of another trainer.
pub struct ForeignRun {
    pub(super) found: RunDescription,
    table: ParamTable,
    reader: Box<dyn PartReader>,
    layout: Layout,
    /// Rows of the stored embedding, if they may be more than the model's.
    rows: Option<usize>,
    /// Empty comparison, with its place and words.
    pub(super) comparison: Comparison,
    merger: ReplicaMerger,
}

impl ForeignRun {
    pub fn new(
        found: RunDescription,
        table: ParamTable,
        reader: impl PartReader + 'static,
        layout: Layout,
    ) -> ForeignRun {
        let comparison = Comparison::with_args(&found.folder);
        let merger = ReplicaMerger::default();
        ForeignRun {
            found,
            table,
            reader: Box::new(reader),
            layout,
            rows: None,
            comparison,
            merger,
        }
    }

    pub fn description(&self) -> &RunDescription {
        &self.found
    }

    /// Decides the model's vocabulary by Megatron's arguments. `vocab` is the number of rows of the embedding
    /// without padding, if it is known.
    pub fn with_vocabulary(
        mut self,
        args: &Arguments,
        vocab: Option<u64>,
        choices: &Choices,
    ) -> anyhow::Result<ForeignRun> {
        self.merger = ReplicaMerger::new(choices.replicated);
        let Some(stored) = self.table.stored.get(&(Weight::TokenEmbed, None)) else {
            let what = "has no word_embeddings";
            return Err(Problems::one(self.found.folder, what, IS_WHOLE).into());
        };
        let embedding = stored[0].source.clone();
        let rows = embedding.matrix()[0] * self.layout.ranks;
        self.rows = Some(rows);
        let original = vocab
            .map_or(rows, |size| size as usize)
            .clamp(1, rows.max(1));
        let strip =
            original < rows && (choices.mask_padding || self.is_untrained(&embedding, original)?);
        self.found.vocabulary([original, rows], args, strip)?;
        self.found.ignored = args.ignored();
        self.found.refusals = args.refusals();
        Ok(self)
    }

    /// Whether the rows from `original` on, which pad the embedding, are zero in every state.
    fn is_untrained(&mut self, embedding: &Source, original: usize) -> anyhow::Result<bool> {
        let ForeignRun { found, reader, layout, .. } = self;
        let rows = embedding.matrix()[0];
        for rank in 0..layout.ranks {
            let from = original.saturating_sub(rank * rows);
            if from >= rows {
                continue;
            }
            let source = Source { rank, ..embedding.clone() };
            for state in found.read_states() {
                let mut zero = true;
                reader.read(&source, *state, &mut |[row, _], [_, cols], values| {
                    let padding = from.saturating_sub(row).saturating_mul(cols);
                    zero &= values.iter().skip(padding).all(|value| *value == 0.0);
                })?;
                if !zero {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Tensors that hold a state of a parameter.
    fn stored(&self, param: &Param, state: AdamState) -> Vec<&Stored> {
        let Some(stored) = self.table.stored.get(&param_key(param)) else { return Vec::new() };
        stored
            .iter()
            .filter(|stored| stored.states.contains(&state))
            .collect()
    }

    /// Parts of a state of a parameter, those of the first tensor rank first, with the shapes that the
    /// model expects.
    fn parts(
        &self,
        model: &Model,
        param: &Param,
        shape: &[usize],
        state: AdamState,
    ) -> Vec<StoredPart> {
        let mut parts = Vec::new();
        for rank in 0..self.layout.ranks {
            for Stored { source, piece, .. } in self.stored(param, state) {
                let cut = self.cut(model, param, shape, rank, *piece);
                let shape = like(shape, cut.shape());
                parts.push(StoredPart { source: Source { rank, shape, ..source.clone() }, cut });
            }
        }
        parts
    }

    /// Place of a piece in a parameter, on a tensor rank.
    fn cut(
        &self,
        model: &Model,
        param: &Param,
        shape: &[usize],
        rank: usize,
        piece: Piece,
    ) -> TensorPart {
        let rows = self.rows.filter(|_| param.spec.vocab).unwrap_or(shape[0]);
        let cols = shape.get(1).copied().unwrap_or(1);
        let ranks = [rank, self.layout.ranks];
        match (piece, param.spec.weight) {
            (Piece::Half(half), _) => {
                let [gates, values] = gates_values(0..rows);
                TensorPart::from_rows(if half == 0 { gates } else { values }, cols)
            }
            (Piece::Halves, _) => TensorPart::from_rows(gates_values(0..rows).concat(), cols),
            (Piece::Kind(_) | Piece::Kinds, _) => {
                let pairs = match self.layout.fused {
                    Fused::Heads(pairs) => pairs,
                    _ => Pairs::Halves,
                };
                let kinds = queries_keys_values(model.heads(), pairs);
                let rows = match piece {
                    Piece::Kind(kind) => kinds[kind].clone(),
                    _ => kinds.concat(),
                };
                TensorPart::from_rows(rows, cols)
            }
            (Piece::All, Weight::QkvW | Weight::QkvB) => {
                TensorPart::for_fused(model.heads(), cols, ranks, self.layout.fused)
            }
            (Piece::All, _) => TensorPart::for_rank(param, [rows, cols], ranks, self.layout.gated),
        }
    }

    /// Fails unless every parameter of the model is there with its shape; the error lists the differences.
    pub fn check(&self, model: &Model, params: &[&Param]) -> anyhow::Result<()> {
        self.check_heads(model)?;
        let mut compared = self.comparison.clone();
        let mut known = BTreeSet::new();
        known.extend(model.tied_head.then_some((Weight::HeadW, None)));
        for param in params {
            known.insert(param_key(param));
            let shape = engine::saved_shape(param, model.vocab);
            for state in self.found.read_states().iter().copied() {
                let stored = self.stored(param, state);
                if !are_whole(&stored) {
                    match self.reader.name(param, state) {
                        Some(name) => compared.shape(&name, None, &shape),
                        None => compared.add(format!("has no parameter for {}", param.name)),
                    }
                    break;
                }
                for Stored { source, piece, .. } in stored {
                    let cut = self.cut(model, param, &shape, 0, *piece);
                    let expected = like(&shape, cut.shape());
                    self.reader.compare(source, state, &expected, &mut compared);
                }
            }
        }
        // A tensor of all layers is stored for each of them.
        let mut others = BTreeSet::new();
        for (key, stored) in &self.table.stored {
            if !known.contains(key) {
                others.extend(stored.iter().map(|stored| &stored.source.name));
            }
        }
        for name in others.into_iter().chain(&self.table.unknown) {
            compared.add(format!("{name} is not in gptrain's model"));
        }
        Ok(compared.finish()?)
    }

    /// Fails if the order of queries, keys and values on the tensor ranks is not one that is read.
    fn check_heads(&self, model: &Model) -> Result<(), Problems> {
        let mut compared = self.comparison.clone();
        let heads = model.heads();
        let ranks = self.layout.ranks;
        if !heads.kv.is_multiple_of(ranks) {
            let kv = heads.kv;
            compared
                .add(format!("{kv} heads of keys on {ranks} tensor ranks: copies are not read"));
        }
        if heads.kv != heads.query && !matches!(self.layout.fused, Fused::Heads(_)) {
            let what = "checkpoint_version is older than 2.0, and there are groups of queries";
            compared.add(what.into());
        }
        compared.finish()
    }

    /// Whether the files have a tensor for a parameter, which may be the last stage's copy of the tied
    /// embedding.
    pub fn holds(&self, param: &Param) -> bool {
        !self.stored(param, AdamState::Master).is_empty()
    }

    /// One state of a whole parameter, row by row.
    pub fn read(
        &mut self,
        model: &Model,
        param: &Param,
        state: AdamState,
    ) -> anyhow::Result<Vec<f32>> {
        let shape = engine::saved_shape(param, model.vocab);
        let mut ours = vec![0.0; shape.iter().product()];
        if !self.found.read_states().contains(&state) {
            return Ok(ours);
        }
        let width = shape.get(1).copied().unwrap_or(1);
        let parts = self.parts(model, param, &shape, state);
        if param.spec.split == TpSplit::Whole && parts.len() > 1 {
            let mut copies = Vec::new();
            for part in &parts {
                let mut copy = vec![0.0; ours.len()];
                self.put(part, state, &mut copy, width)?;
                copies.push(copy);
            }
            ours = self.merger.merge(&parts[0].source.name, state, copies);
        } else {
            for part in &parts {
                self.put(part, state, &mut ours, width)?;
            }
        }
        if param.spec.tied && state == AdamState::Master {
            self.compare_tied(&parts, &ours, width)?;
        }
        if self.layout.less_one {
            add_one(param, state, &mut ours);
        }
        Ok(ours)
    }

    /// Reads a part into our rows of `width` columns.
    fn put(
        &mut self,
        part: &StoredPart,
        state: AdamState,
        ours: &mut [f32],
        width: usize,
    ) -> anyhow::Result<()> {
        self.reader
            .read(&part.source, state, &mut |at, size, values| {
                part.cut.put((at, size), values, ours, width);
            })
    }

    /// Compares the embedding with the copy that the last stage has of it as the head.
    fn compare_tied(
        &mut self,
        parts: &[StoredPart],
        ours: &[f32],
        width: usize,
    ) -> anyhow::Result<()> {
        let ForeignRun { table, reader, merger, .. } = self;
        let Some(head) = table.stored.get(&(Weight::HeadW, None)) else { return Ok(()) };
        for StoredPart { source, .. } in parts {
            // Without the rows that were left out.
            let begin = source.rank * source.numel();
            let first = &ours[begin.min(ours.len())..(begin + source.numel()).min(ours.len())];
            let copy = Source { rank: source.rank, ..head[0].source.clone() };
            reader.read(&copy, AdamState::Master, &mut |[row, _], _, last| {
                let from = (row * width).min(first.len());
                merger.compare_tied(&source.name, source.rank, &first[from..], last);
            })?;
        }
        Ok(())
    }

    /// Notes for the user from reading, such as copies that differ.
    pub fn remarks(&mut self) -> Vec<String> {
        self.merger.remarks()
    }
}

/// Whether tensors are a whole parameter: one, two halves, or three kinds of rows.
fn are_whole(stored: &[&Stored]) -> bool {
    let mut pieces: Vec<Piece> = stored.iter().map(|stored| stored.piece).collect();
    pieces.sort();
    matches!(
        pieces[..],
        [Piece::All | Piece::Halves | Piece::Kinds]
            | [Piece::Half(0), Piece::Half(1)]
            | [Piece::Kind(0), Piece::Kind(1), Piece::Kind(2)]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_blocks_of_any_size_are_the_same_rows() {
        let values: Vec<f32> = (0..15).map(|n| n as f32).collect();
        for block in 1..=16 {
            let mut found = vec![0.0; 12];
            let mut put = |[row, col]: [usize; 2], [rows, cols]: [usize; 2], values: &[f32]| {
                assert_eq!((col, cols, values.len()), (1, 3, 3 * rows));
                found[3 * (row - 2)..3 * (row - 2 + rows)].copy_from_slice(values);
            };
            let mut rows = Rows::new(&mut put, [2, 1], [4, 3]);
            values.chunks(block).for_each(|block| rows.push(block));
            assert_eq!(rows.left, 0);
            assert_eq!(found, values[..12], "blocks of {block}");
        }
    }
}
