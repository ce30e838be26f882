//! A micro-batch: one buffer of columns, laid out alike on the host and on a device, so that it is
//! copied to the device in one piece.

use Column::{FirstSample, Positions, Targets, Tokens, Visible, Weights};
use base::DType;
use bytemuck::{AnyBitPattern, NoUninit, cast_slice, cast_slice_mut};
use std::ops::Range;

/// What a micro-batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Input ids.
    Tokens,
    /// The id that follows each input.
    Targets,
    /// How much each position's loss counts; a causal sample's weights sum to 1.
    Weights,
    /// Position numbers, from 0 in each sample (in each document where positions are reset).
    Positions,
    /// Number of the first sample; the others follow it.
    FirstSample,
    /// The half-open range of keys each position may see, as positions within its own sample.
    Visible,
}

/// How many values a column has.
#[derive(Clone, Copy)]
enum Extent {
    PerToken(usize),
    PerBatch,
}
use Extent::{PerBatch, PerToken};

/// In the order in which they lie. `Visible` is last: where every batch is causal, it is left out.
#[rustfmt::skip]
const TABLE: [(Column, DType, Extent); 6] = [
    (Tokens,      DType::I32, PerToken(1)),
    (Targets,     DType::I32, PerToken(1)),
    (Weights,     DType::F32, PerToken(1)),
    (Positions,   DType::I32, PerToken(1)),
    (FirstSample, DType::I64, PerBatch),
    (Visible,     DType::I32, PerToken(2)),
];

/// Each column starts on a multiple of so many values of 4 bytes.
const ALIGN: usize = 64;

/// Where the columns of a micro-batch of `tokens` lie in its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    pub tokens: usize,
}

/// A column in the buffer: [rows, cols] from byte `first` on.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub first: usize,
    pub rows: usize,
    pub cols: usize,
    pub dtype: DType,
}

impl Place {
    fn bytes(&self) -> Range<usize> {
        self.first..self.first + self.rows * self.cols * self.dtype.size()
    }
}

impl Columns {
    pub fn place(self, column: Column) -> Place {
        let at = TABLE.iter().position(|row| row.0 == column).expect("every column has a row");
        let first = TABLE[..at].iter().map(|row| self.room(row.2)).sum();
        let (_, dtype, extent) = TABLE[at];
        let (rows, cols) = match extent {
            PerToken(values) => (self.tokens, values),
            PerBatch => (1, 1),
        };
        Place { first, rows, cols, dtype }
    }

    /// Bytes of the buffer.
    pub fn bytes(self) -> usize {
        TABLE.iter().map(|row| self.room(row.2)).sum()
    }

    /// Bytes that a column takes.
    fn room(self, extent: Extent) -> usize {
        match extent {
            PerToken(values) => 4 * values * self.tokens.next_multiple_of(ALIGN),
            PerBatch => 4 * ALIGN,
        }
    }
}

/// Some samples on the host, ready to be copied to the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    samples: usize,
    seq_len: usize,
    buffer: Vec<i64>,
}

/// One sample of a batch, to be filled: each [seq_len], `visible` [seq_len, 2].
pub struct Sample<'a> {
    pub tokens: &'a mut [i32],
    pub targets: &'a mut [i32],
    pub weights: &'a mut [f32],
    pub positions: &'a mut [i32],
    pub visible: &'a mut [i32],
}

impl Sample<'_> {
    /// Positions from `from` on are of no sequence: each sees itself, and none counts.
    pub fn clear_from(&mut self, from: usize) {
        for at in from..self.tokens.len() {
            (self.tokens[at], self.targets[at], self.positions[at]) = (0, 0, 0);
            self.visible[2 * at..2 * at + 2].copy_from_slice(&[at as i32, at as i32 + 1]);
            self.weights[at] = 0.0;
        }
    }
}

impl Batch {
    /// A batch whose positions see all before them. `tokens` is [samples, seq_len + 1]; each
    /// token's loss counts `weight`.
    pub fn causal(tokens: &[i32], samples: usize, first_sample: u64, weight: f32) -> Batch {
        let mut batch = Batch::default();
        batch.reshape(first_sample, samples, tokens.len() / samples - 1);
        for (sample, tokens) in batch.samples_mut().zip(tokens.chunks(tokens.len() / samples)) {
            sample.tokens.copy_from_slice(&tokens[..tokens.len() - 1]);
            sample.targets.copy_from_slice(&tokens[1..]);
            sample.weights.fill(weight);
            for (t, visible) in sample.visible.chunks_mut(2).enumerate() {
                (sample.positions[t], visible[1]) = (t as i32, t as i32 + 1);
            }
        }
        batch
    }

    /// Makes room for so many samples. Allocates only where it has never been so large.
    pub fn reshape(&mut self, first_sample: u64, samples: usize, seq_len: usize) {
        if (self.samples, self.seq_len) != (samples, seq_len) {
            (self.samples, self.seq_len) = (samples, seq_len);
            self.buffer.clear();
            self.buffer.resize(self.columns().bytes() / size_of::<i64>(), 0);
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

    /// The buffer.
    pub fn bytes(&self) -> &[u8] {
        cast_slice(&self.buffer)
    }

    /// The values of a column, row by row.
    pub fn column<T: AnyBitPattern>(&self, column: Column) -> &[T] {
        cast_slice(&self.bytes()[self.columns().place(column).bytes()])
    }

    pub fn column_mut<T: AnyBitPattern + NoUninit>(&mut self, column: Column) -> &mut [T] {
        let place = self.columns().place(column);
        cast_slice_mut(&mut cast_slice_mut::<i64, u8>(&mut self.buffer)[place.bytes()])
    }

    pub fn samples_mut(&mut self) -> impl Iterator<Item = Sample<'_>> {
        let (columns, seq_len) = (self.columns(), self.seq_len);
        let (mut rest, mut at) = (cast_slice_mut::<i64, u8>(&mut self.buffer), 0);
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
        tokens.zip(targets).zip(weights).zip(positions).zip(visible).map(
            |((((tokens, targets), weights), positions), visible)| Sample {
                tokens,
                targets,
                weights,
                positions,
                visible,
            },
        )
    }
}
