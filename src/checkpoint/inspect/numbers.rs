//! Saved states of a tensor as numbers, with 8-bit moments decoded.

use crate::{Buffer, Checkpoint, Tensor, row_blocks};
use base::DType;
use engine::{Conversion, TensorSlice, decoding_conversions};
use std::ops::Range;

/// One state.
pub struct Numbers<'c> {
    checkpoint: &'c Checkpoint,
    tensor: &'c Tensor,
    pub name: String,
    made: Option<Conversion>,
}

/// All states of a tensor.
pub fn numbers<'c>(checkpoint: &'c Checkpoint, tensor: &'c Tensor) -> Vec<Numbers<'c>> {
    let decoded = decoding_conversions(&|name| tensor.form(name));
    let is_code = |name: &str| decoded.iter().any(|(_, made)| made.from[0].name == name);
    let state = |name: &str, made| Numbers { checkpoint, tensor, name: name.to_string(), made };
    let saved = tensor.saved().filter(|(name, _)| !is_code(name));
    let mut states: Vec<_> = saved.map(|(name, _)| state(name, None)).collect();
    states.extend(
        decoded
            .into_iter()
            .map(|(name, made)| state(name, Some(made))),
    );
    states
}

impl Numbers<'_> {
    /// Whether it is decoded from codes.
    pub fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Saved states that are read.
    pub fn sources(&self) -> Vec<&str> {
        match &self.made {
            Some(made) => made.from.iter().map(|state| state.name).collect(),
            None => vec![self.name.as_str()],
        }
    }

    /// Shape [rows, cols].
    pub fn shape(&self) -> anyhow::Result<[usize; 2]> {
        self.tensor.shape_of(self.tensor.state(self.sources()[0])?)
    }

    /// Blocks of rows of some MiB.
    pub fn blocks(&self) -> anyhow::Result<impl Iterator<Item = Range<usize>> + use<>> {
        row_blocks(self.tensor, self.sources()[0], 0..self.shape()?[0])
    }

    pub fn read(&self, buffer: &mut Buffer, rows: Range<usize>) -> anyhow::Result<Vec<f32>> {
        let checkpoint = self.checkpoint;
        let tensor = self.tensor;
        let cols = self.shape()?[1];
        let Some(made) = &self.made else {
            let dtype = tensor.state(&self.name)?.dtype;
            checkpoint.read(buffer, tensor, &self.name, rows, 0..cols)?;
            return Ok(buffer.values(dtype));
        };
        let part = TensorSlice { at: [rows.start, 0], size: [rows.len(), cols] };
        let mut bytes = Vec::new();
        for source in &made.from {
            let around = source.extent.covering_part(part);
            checkpoint.read(buffer, tensor, source.name, around.rows(), around.cols())?;
            bytes.push(buffer.bytes().to_vec());
        }
        Ok(DType::F32.widen(&(made.compute)(part, &bytes)))
    }
}
