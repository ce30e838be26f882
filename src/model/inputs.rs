//! Device buffers of a micro-batch.

use base::DType;
use data::batch::{Batch, Column, ColumnPlace, Columns};
use device::{Arena, Backend, Tensor, Visible, op};

/// Buffers of a micro-batch: filled before each forward, read again by its backward.
#[rustfmt::skip]
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    pub tokens:       Tensor, // i32 [N, 1]
    pub targets:      Tensor, // i32 [N, 1]
    pub weights:      Tensor, // f32 [N, 1]  weight of each token's loss in the step's loss
    pub positions:    Tensor, // i32 [N, 1]
    pub first_sample: Tensor, // i64 [1, 1]
    pub visible:      Tensor, // i32 [N, 2]  keys each query sees
    pub causal:       bool,   // all batches have a plain causal mask: `visible` is unused
    pub seq:          usize,
    all:              Tensor, // all fields as one tensor, f32 [1, words]
}

impl Inputs {
    pub fn plan(samples: usize, seq: usize, causal: bool, arena: &Arena) -> Inputs {
        let columns = Columns { tokens: samples * seq };
        let all = arena.matrix(1, columns.bytes() / DType::F32.size(), DType::F32);
        let at = |column| {
            let ColumnPlace { first, rows, cols, dtype } = columns.place(column);
            Tensor::at(all.addr() + first, rows, cols, dtype)
        };
        Inputs {
            tokens: at(Column::Tokens),
            targets: at(Column::Targets),
            weights: at(Column::Weights),
            positions: at(Column::Positions),
            first_sample: at(Column::FirstSample),
            visible: at(Column::Visible),
            causal,
            seq,
            all,
        }
    }

    /// The same buffers, for batches that may have their own masks.
    pub fn with_masks(self) -> Inputs {
        Inputs { causal: false, ..self }
    }

    /// Number of tokens, N.
    pub fn rows(&self) -> usize {
        self.tokens.rows
    }

    pub fn visible(&self) -> Visible {
        if self.causal { Visible::Causal } else { Visible::Ranges(self.visible) }
    }

    /// Copies the micro-batch from another buffer on the device.
    pub fn copy(&self, be: &dyn Backend, from: &Inputs) {
        be.run(op::Copy { x: from.all, y: self.all.set() });
    }

    /// Copies a micro-batch from the host in one transfer.
    pub fn upload(&self, be: &dyn Backend, batch: &Batch) {
        assert_eq!((batch.columns().tokens, batch.seq_len()), (self.rows(), self.seq), "tokens");
        let used =
            if self.causal { self.visible.addr() - self.all.addr() } else { self.all.bytes() };
        be.upload_async(&batch.bytes()[..used], self.all.span(0, used / self.all.dtype.size()));
    }
}
