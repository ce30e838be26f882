//! A micro-batch on the device.

use crate::base::DType;
use crate::data::Batch;
use crate::device::{Arena, Backend, Tensor, Visible};

/// Where a micro-batch lies: filled before each forward, read again by its backward.
#[rustfmt::skip]
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    pub tokens:       Tensor, // i32 [N, 1]
    pub targets:      Tensor, // i32 [N, 1]
    pub weights:      Tensor, // f32 [N, 1]  of each token's loss in the step's loss
    pub positions:    Tensor, // i32 [N, 1]
    pub first_sample: Tensor, // i64 [1, 1]
    pub visible:      Tensor, // i32 [N, 2]  keys each query sees
    pub causal:       bool,   // every batch is plainly causal: `visible` is not needed
    pub seq:          usize,
    all:              Tensor, // all of these, as f32 [1, words]
}

impl Inputs {
    pub fn plan(samples: usize, seq: usize, causal: bool, arena: &Arena) -> Inputs {
        let rows = samples * seq;
        // Each column starts on a multiple of 256 bytes.
        let words = rows.next_multiple_of(64);
        let all = arena.matrix(1, 6 * words + 64, DType::F32);
        let at =
            |first, rows, cols, dtype| Tensor::at(all.span(first, 1).addr(), rows, cols, dtype);
        Inputs {
            tokens: at(0, rows, 1, DType::I32),
            targets: at(words, rows, 1, DType::I32),
            weights: at(2 * words, rows, 1, DType::F32),
            positions: at(3 * words, rows, 1, DType::I32),
            first_sample: at(4 * words, 1, 1, DType::I64),
            visible: at(4 * words + 64, rows, 2, DType::I32),
            causal,
            seq,
            all,
        }
    }

    /// N.
    pub fn rows(&self) -> usize {
        self.tokens.rows
    }

    pub fn visible(&self) -> Visible {
        if self.causal { Visible::Causal } else { Visible::Ranges(self.visible) }
    }

    /// The same micro-batch, from where it lies.
    pub fn copy(&self, be: &dyn Backend, from: &Inputs) {
        be.copy(from.all, self.all.set());
    }

    /// A micro-batch from the host, in one piece.
    pub fn upload(&self, be: &dyn Backend, batch: &Batch) {
        let used =
            if self.causal { self.visible.addr() - self.all.addr() } else { self.all.bytes() };
        let mut bytes = vec![0; used];
        let mut lay = |column: &[u8], to: Tensor| {
            assert_eq!(column.len(), to.bytes(), "bytes of a column");
            let first = to.addr() - self.all.addr();
            bytes[first..first + column.len()].copy_from_slice(column);
        };
        lay(bytemuck::cast_slice(&batch.tokens), self.tokens);
        lay(bytemuck::cast_slice(&batch.targets), self.targets);
        lay(bytemuck::cast_slice(&batch.weights), self.weights);
        lay(bytemuck::cast_slice(&batch.positions), self.positions);
        lay(bytemuck::bytes_of(&(batch.first_sample as i64)), self.first_sample);
        if !self.causal {
            lay(bytemuck::cast_slice(&batch.visible), self.visible);
        }
        be.feed(&bytes, self.all.span(0, used / self.all.dtype.size()));
    }
}
