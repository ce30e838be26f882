//! Rows and columns of a parameter of ours that one tensor of Hugging Face or of another trainer
//! holds: one description, read in both directions.

use base::{Heads, Qkv};
use model::{Param, TpSplit, Weight};
use std::ops::Range;

/// Values of a block of rows, at most, unless a row has more.
const BLOCK: usize = 1 << 20;

/// Columns of a head that RoPE turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// Column i and column i + dim/2: Hugging Face's, Megatron's and ours.
    Halves,
    /// Neighbours: Meta's, torchtitan's.
    Neighbours,
}

/// Order of the rows of queries, keys and values in one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fused {
    /// Megatron's since checkpoint_version 2.0, and ours: by head, the queries of a key, the key, the
    /// value.
    Heads(Pairs),
    /// Version 0: all queries of the rank, all keys, all values.
    Kinds,
    /// Version 1.0: by head and column, its query, key and value in turn.
    Columns,
}

/// A tensor as a part of a parameter. A vector is a matrix of one column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// Our row of each of its rows.
    rows: Vec<usize>,
    cols: Range<usize>,
}

impl TensorPart {
    /// These rows, with all columns.
    pub fn from_rows(rows: Vec<usize>, cols: usize) -> TensorPart {
        TensorPart { rows, cols: 0..cols }
    }

    /// The part of tensor rank `rank` of `ranks` in a parameter of `[rows, cols]`, in Megatron's
    /// order: of SwiGLU's first matrix the rank's gates, then its values, which take turns in ours.
    pub fn for_rank(
        param: &Param,
        [rows, cols]: [usize; 2],
        [rank, ranks]: [usize; 2],
        gated: bool,
    ) -> TensorPart {
        let share = |all: usize| rank * all / ranks..(rank + 1) * all / ranks;
        let vector = param.spec.rows == 1;
        match param.spec.split {
            TpSplit::Whole => TensorPart::from_rows((0..rows).collect(), cols),
            TpSplit::Cols if !vector => TensorPart { rows: (0..rows).collect(), cols: share(cols) },
            TpSplit::Rows | TpSplit::Cols => {
                let own = share(rows);
                let halves = gated && matches!(param.spec.weight, Weight::Fc1W | Weight::Fc1B);
                let rows =
                    if halves { gates_values(own).concat() } else { own.collect::<Vec<_>>() };
                TensorPart::from_rows(rows, cols)
            }
        }
    }

    /// The part of a tensor rank in the matrix of queries, keys and values, of `cols` columns.
    pub fn for_fused(
        heads: Heads,
        cols: usize,
        [rank, ranks]: [usize; 2],
        order: Fused,
    ) -> TensorPart {
        let serves = heads.query / heads.kv;
        let dim = heads.dim;
        let share = heads.qkv_width() / ranks;
        let row = |row: usize| match order {
            Fused::Heads(Pairs::Halves) => row,
            Fused::Heads(Pairs::Neighbours) => {
                let head = row / dim;
                let i = row % dim;
                let value = head % (serves + 2) == serves + 1;
                head * dim + if value { i } else { i % 2 * (dim / 2) + i / 2 }
            }
            Fused::Kinds => {
                let kind = share / 3;
                row % kind / dim * 3 * dim + row / kind * dim + row % dim
            }
            Fused::Columns => row / (3 * dim) * 3 * dim + row % 3 * dim + row % (3 * dim) / 3,
        };
        TensorPart::from_rows(
            (0..share)
                .map(|theirs| rank * share + row(theirs))
                .collect(),
            cols,
        )
    }

    /// Our row of each of its rows.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    pub fn shape(&self) -> [usize; 2] {
        [self.rows.len(), self.cols.len()]
    }

    /// Puts a rectangle of the tensor, `size` from `at` on, into our rows of `width` columns. Rows
    /// that ours does not have are padding of the vocabulary.
    pub fn put(
        &self,
        (at, size): ([usize; 2], [usize; 2]),
        theirs: &[f32],
        ours: &mut [f32],
        width: usize,
    ) {
        if size.contains(&0) {
            return;
        }
        let from = self.cols.start + at[1];
        for (row, values) in self.rows[at[0]..at[0] + size[0]]
            .iter()
            .zip(theirs.chunks(size[1]))
        {
            if let Some(to) = ours.get_mut(row * width + from..row * width + from + size[1]) {
                to.copy_from_slice(values);
            }
        }
    }

    /// The tensor, out of our rows of `width` columns; rows that ours does not have are zero.
    pub fn take(&self, ours: &[f32], width: usize) -> Vec<f32> {
        self.take_rows(0..self.rows.len(), ours, width)
    }

    /// Passes the tensor to `each` in blocks of whole rows, of some MiB.
    pub fn each_block<E>(
        &self,
        ours: &[f32],
        width: usize,
        each: &mut dyn FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let rows = self.rows.len();
        let block = (BLOCK / self.cols.len().max(1)).max(1);
        for first in (0..rows).step_by(block) {
            each(&self.take_rows(first..(first + block).min(rows), ours, width))?;
        }
        Ok(())
    }

    /// Some rows of the tensor.
    fn take_rows(&self, rows: Range<usize>, ours: &[f32], width: usize) -> Vec<f32> {
        let mut theirs = Vec::with_capacity(rows.len() * self.cols.len());
        for row in &self.rows[rows] {
            match ours.get(row * width + self.cols.start..row * width + self.cols.end) {
                Some(values) => theirs.extend_from_slice(values),
                None => theirs.resize(theirs.len() + self.cols.len(), 0.0),
            }
        }
        theirs
    }
}

/// A weight, and its block's number; None outside of the blocks.
pub type ParamKey = (Weight, Option<usize>);

pub fn param_key(param: &Param) -> ParamKey {
    (param.spec.weight, layer_of(param))
}

/// Block number of a parameter; None outside of the blocks.
pub fn layer_of(param: &Param) -> Option<usize> {
    param
        .name
        .strip_prefix("block.")?
        .split_once('.')?
        .0
        .parse()
        .ok()
}

/// Rows of SwiGLU's first matrix: of the gates, of the values.
pub fn gates_values(rows: Range<usize>) -> [Vec<usize>; 2] {
    [0, 1].map(|first| (rows.start + first..rows.end).step_by(2).collect())
}

/// Our fused rows of all queries, of all keys and of all values, in the order that a trainer's pairs
/// give to the rows of a head.
pub fn queries_keys_values(heads: Heads, pairs: Pairs) -> [Vec<usize>; 3] {
    let serves = heads.query / heads.kv;
    let row = |which: Qkv, row: usize| match pairs {
        Pairs::Neighbours if which != Qkv::Value => row % 2 * (heads.dim / 2) + row / 2,
        _ => row,
    };
    [(Qkv::Query, 1), (Qkv::Key, serves), (Qkv::Value, serves)].map(|(which, step)| {
        let starts = (0..heads.query)
            .step_by(step)
            .map(|head| heads.column(head, which));
        starts
            .flat_map(|start| (0..heads.dim).map(move |i| start + row(which, i)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_and_put_back_is_the_same_and_padding_is_zero() {
        let heads = Heads { query: 4, kv: 2, dim: 4 };
        let ours: Vec<f32> = (0..32 * 3).map(|n| n as f32).collect();
        for pairs in [Pairs::Halves, Pairs::Neighbours] {
            let mut back = vec![0.0; ours.len()];
            for rows in queries_keys_values(heads, pairs) {
                let cut = TensorPart::from_rows(rows, 3);
                let theirs = cut.take(&ours, 3);
                // In two rectangles.
                let [rows, _] = cut.shape();
                cut.put(([0, 0], [1, 3]), &theirs[..3], &mut back, 3);
                cut.put(([1, 0], [rows - 1, 3]), &theirs[3..], &mut back, 3);
            }
            assert_eq!(back, ours, "{pairs:?}");
        }
        let order = |order, rank| TensorPart::for_fused(heads, 1, [rank, 2], order).rows;
        assert_eq!(order(Fused::Heads(Pairs::Halves), 1), (16..32).collect::<Vec<_>>());
        let turned = [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 13, 14, 15];
        assert_eq!(order(Fused::Heads(Pairs::Neighbours), 0), turned);
        // Two heads of two columns on each of two ranks: query, key, value of ours in turn.
        let heads = Heads { query: 4, kv: 4, dim: 2 };
        let order = |order| TensorPart::for_fused(heads, 1, [1, 2], order).rows;
        assert_eq!(order(Fused::Kinds), [12, 13, 18, 19, 14, 15, 20, 21, 16, 17, 22, 23]);
        assert_eq!(order(Fused::Columns), [12, 14, 16, 13, 15, 17, 18, 20, 22, 19, 21, 23]);
        let cut = TensorPart { rows: vec![1, 2], cols: 1..3 };
        assert_eq!(cut.take(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 3), [4.0, 5.0, 0.0, 0.0]);
        assert_eq!(gates_values(4..8), [vec![4, 6], vec![5, 7]]);
    }
}
