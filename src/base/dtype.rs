//! Element types of tensors.

use half::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    BF16,
    F16,
    I32,
    I64,
}

impl DType {
    pub const ALL: [DType; 5] = [DType::F32, DType::BF16, DType::F16, DType::I32, DType::I64];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::BF16 | DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }

    /// The type of this name.
    pub fn named(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.to_string() == name)
    }

    /// The bits of values rounded to this type; none where it has not 16 bits.
    pub fn halves(self, values: &[f32]) -> Option<Vec<u16>> {
        match self {
            DType::BF16 => Some(values.iter().map(|v| bf16::from_f32(*v).to_bits()).collect()),
            DType::F16 => Some(values.iter().map(|v| f16::from_f32(*v).to_bits()).collect()),
            DType::F32 | DType::I32 | DType::I64 => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::I64 => "i64",
        })
    }
}
