//! Micro-batch: one buffer of columns with the same layout on the host and on a device, so that it
//! is copied to the device in one transfer.

use Column::{FirstSample, Positions, Targets, Tokens, Visible, Weights};
use base::DType;
use bytemuck::{AnyBitPattern, NoUninit, cast_slice, cast_slice_mut};
use std::ops::Range;

/// Column of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Input ids.
    Tokens,
    /// Id that follows each input.
    Targets,
    /// Weight of each position's loss. The weights of a causal sample sum to 1.
    Weights,
    /// Position numbers, from 0 in each sample (in each document if positions are reset).
    Positions,
    /// Number of the first sample; the others follow it.
    FirstSample,
    /// Half-open range of keys visible to each position, as positions within its own sample.
    Visible,
}

/// Number of values of a column.
#[derive(Clone, Copy)]
enum ColumnSize {
    PerToken(usize),
    PerBatch,
}
use ColumnSize::{PerBatch, PerToken};

/// Columns in memory order. `Visible` is last, because it is omitted if every batch is causal.
#[rustfmt::skip]
const TABLE: [(Column, DType, ColumnSize); 6] = [
    (Tokens,      DType::I32, PerToken(1)),
    (Targets,     DType::I32, PerToken(1)),
    (Weights,     DType::F32, PerToken(1)),
    (Positions,   DType::I32, PerToken(1)),
    (FirstSample, DType::I64, PerBatch),
    (Visible,     DType::I32, PerToken(2)),
];

/// Alignment of columns, in values of 4 bytes.
const ALIGN: usize = 64;

/// Layout of a micro-batch of `tokens` tokens.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    pub tokens: usize,
}

/// Column in the buffer: [rows, cols], starting at byte `first`.
#[derive(Clone, Copy, Debug)]
pub struct ColumnPlace {
    pub first: usize,
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
}

impl ColumnPlace {
    fn bytes(&self) -> Range<usize> {
        self.first..self.first + self.rows * self.cols * self.dtype.size()
    }
}

impl Columns {
    pub fn place(self, column: Column) -> ColumnPlace {
        let row = TABLE
            .iter()
            .position(|row| row.0 == column)
            .expect("every column has a row");
        let first = TABLE[..row]
            .iter()
            .map(|row| self.column_bytes(row.2))
            .sum();
        let (_, dtype, size) = TABLE[row];
        let (rows, cols) = match size {
            PerToken(values) => (self.tokens, values),
            PerBatch => (1, 1),
        };
        ColumnPlace { first, rows, cols, dtype }
    }

    /// Bytes of the buffer.
    pub fn bytes(self) -> usize {
        TABLE.iter().map(|row| self.column_bytes(row.2)).sum()
    }

    fn column_bytes(self, size: ColumnSize) -> usize {
        match size {
            PerToken(values) => 4 * values * self.tokens.next_multiple_of(ALIGN),
            PerBatch => 4 * ALIGN,
        }
    }
}

/// Samples on the host, ready to be copied to the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    samples: usize,
    seq_len: usize,
    buffer: Vec<i64>,
}

/// Sample of a batch to fill: each field [seq_len], `visible` [seq_len, 2].
pub struct Sample<'a> {
    pub tokens: &'a mut [i32],
    pub targets: &'a mut [i32],
    pub weights: &'a mut [f32],
    pub positions: &'a mut [i32],
    pub visible: &'a mut [i32],
}

impl Sample<'_> {
    /// Marks positions from `from` on as padding: each sees only itself, with weight 0.
    pub fn clear_from(&mut self, from: usize) {
        for at in from..self.tokens.len() {
            (self.tokens[at], self.targets[at], self.positions[at]) = (0, 0, 0);
            self.visible[2 * at..2 * at + 2].copy_from_slice(&[at as i32, at as i32 + 1]);
            self.weights[at] = 0.0;
        }
    }
}

impl Batch {
    /// Causal batch. `tokens` is [samples, seq_len + 1]; each token's loss has the weight `weight`.
    pub fn causal(tokens: &[i32], samples: usize, first_sample: u64, weight: f32) -> Batch {
        let mut batch = Batch::default();
        batch.reshape(first_sample, samples, tokens.len() / samples - 1);
        for (sample, tokens) in batch
            .samples_mut()
            .zip(tokens.chunks(tokens.len() / samples))
        {
            sample.tokens.copy_from_slice(&tokens[..tokens.len() - 1]);
            sample.targets.copy_from_slice(&tokens[1..]);
            sample.weights.fill(weight);
            for (t, visible) in sample.visible.chunks_mut(2).enumerate() {
                (sample.positions[t], visible[1]) = (t as i32, t as i32 + 1);
            }
        }
        batch
    }

    /// Changes the number of samples. Allocates only if the batch was never that large.
    pub fn reshape(&mut self, first_sample: u64, samples: usize, seq_len: usize) {
        if (self.samples, self.seq_len) != (samples, seq_len) {
            (self.samples, self.seq_len) = (samples, seq_len);
            self.buffer.clear();
            self.buffer
                .resize(self.columns().bytes() / size_of::<i64>(), 0);
        }
        self.column_mut(FirstSample)[0] = first_sample as i64;
    }

    pub fn columns(&self) -> Columns {
        Columns { tokens: self.samples * self.seq_len }
    }

    pub fn samples(&self) -> usize {
        self.samples
    }

    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    pub fn first_sample(&self) -> u64 {
        self.column::<i64>(FirstSample)[0] as u64
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> &[u8] {
        cast_slice(&self.buffer)
    }

    /// Values of a column, row by row.
    pub fn column<T: AnyBitPattern>(&self, column: Column) -> &[T] {
        cast_slice(&self.bytes()[self.columns().place(column).bytes()])
    }

    pub fn column_mut<T: AnyBitPattern + NoUninit>(&mut self, column: Column) -> &mut [T] {
        let place = self.columns().place(column);
        cast_slice_mut(&mut cast_slice_mut::<i64, u8>(&mut self.buffer)[place.bytes()])
    }

    pub fn samples_mut(&mut self) -> impl Iterator<Item = Sample<'_>> {
        let columns = self.columns();
        let seq_len = self.seq_len;
        let mut rest = cast_slice_mut::<i64, u8>(&mut self.buffer);
        let mut at = 0;
        // In the order of the table.
        let mut next = |column| {
            let Range { start, end } = columns.place(column).bytes();
            let (_, tail) = std::mem::take(&mut rest).split_at_mut(start - at);
            let (found, tail) = tail.split_at_mut(end - start);
            (rest, at) = (tail, end);
            found
        };
        let tokens = cast_slice_mut(next(Tokens)).chunks_mut(seq_len);
        let targets = cast_slice_mut(next(Targets)).chunks_mut(seq_len);
        let weights = cast_slice_mut(next(Weights)).chunks_mut(seq_len);
        let positions = cast_slice_mut(next(Positions)).chunks_mut(seq_len);
        let visible = cast_slice_mut(next(Visible)).chunks_mut(2 * seq_len);
        tokens
            .zip(targets)
            .zip(weights)
            .zip(positions)
            .zip(visible)
            .map(|((((tokens, targets), weights), positions), visible)| Sample {
                tokens,
                targets,
                weights,
                positions,
                visible,
            })
    }
}
