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
    pub visible:      Tensor, // i32 [N, 2]  keys each query sees
    pub first_sample: Tensor, // i64 [1, 1]
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
        let at = |first, rows, cols, dtype| {
            Tensor::at(all.span(first * words, 1).addr(), rows, cols, dtype)
        };
        Inputs {
            tokens: at(0, rows, 1, DType::I32),
            targets: at(1, rows, 1, DType::I32),
            weights: at(2, rows, 1, DType::F32),
            positions: at(3, rows, 1, DType::I32),
            visible: at(4, rows, 2, DType::I32),
            first_sample: at(6, 1, 1, DType::I64),
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

    pub fn upload(&self, be: &dyn Backend, batch: &Batch) {
        be.upload(bytemuck::cast_slice(&batch.tokens), self.tokens);
        be.upload(bytemuck::cast_slice(&batch.targets), self.targets);
        be.upload(bytemuck::cast_slice(&batch.weights), self.weights);
        be.upload(bytemuck::cast_slice(&batch.positions), self.positions);
        if !self.causal {
            be.upload(bytemuck::cast_slice(&batch.visible), self.visible);
        }
        be.upload(bytemuck::bytes_of(&(batch.first_sample as i64)), self.first_sample);
    }
}
